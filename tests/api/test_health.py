import asyncio

import asyncpg
import httpx
import pytest
import structlog
from litestar import Litestar
from support.api import client_of, new_collection, problem, serving

from service import __version__
from service.db.migrate import newest_revision
from service.indexing.worker import Worker


async def test_a_process_that_serves_says_so_without_a_key(app: Litestar) -> None:
    async with client_of(app, {}) as client:
        assert (await client.get("/livez")).json() == {"status": "ok"}
        assert (await client.get("/healthz")).json() == {"status": "ok", "version": __version__}
        assert (await client.get("/readyz")).json() == {
            "status": "ok",
            "revision": newest_revision(),
        }


@pytest.mark.parametrize("path", ["/livez", "/healthz", "/readyz", "/schema"])
async def test_a_probe_may_ask_for_the_head_alone(app: Litestar, path: str) -> None:
    async with client_of(app, {}) as client:
        head = await client.head(path)
        assert head.status_code == 200
        assert head.content == b""
        assert head.headers == (await client.get(path)).headers
        await app.state.services.database.close()
        assert (await client.head("/readyz")).status_code == 503


async def test_each_role_serves_health_and_its_own_routes(dsn: str) -> None:
    async with serving(dsn, "search") as app, client_of(app) as client:
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200
        assert (await client.get("/v1/collections")).status_code == 200
        problem(await client.post("/v1/collections", json={"name": "docs"}), 405)
    async with serving(dsn, "index") as app, client_of(app) as client:
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get("/metrics")).status_code == 200
        await new_collection(client, "docs")
        problem(await client.post("/v1/collections/docs/search", json={}), 404)


async def test_an_older_schema_is_not_ready(client: httpx.AsyncClient, dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute("UPDATE braid.schema_revision SET version_num = '0000'")
    detail = problem(await client.get("/readyz"), 503)["detail"]
    assert "0000" in detail
    assert newest_revision() in detail
    await connection.execute("DROP TABLE braid.schema_revision")
    await connection.close()
    problem(await client.get("/readyz"), 503)
    assert (await client.get("/livez")).status_code == 200


async def test_without_a_database_the_process_is_alive_but_not_ready(app: Litestar) -> None:
    await app.state.services.database.close()
    async with client_of(app, {}) as client:
        problem(await client.get("/readyz"), 503)
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/healthz")).status_code == 200


async def test_a_worker_that_broke_is_logged_and_makes_the_process_not_ready(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = asyncio.Event()

    async def run(_: Worker) -> None:
        broken.set()
        raise ValueError

    monkeypatch.setattr(Worker, "run", run)
    with structlog.testing.capture_logs() as logs:
        async with serving(dsn) as app, client_of(app, {}) as client:
            await broken.wait()
            assert "worker" in problem(await client.get("/readyz"), 503)["detail"]
            assert (await client.get("/livez")).status_code == 200
    (bug,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert (bug["work"], bug["error"]) == ("worker", "builtins.ValueError")
