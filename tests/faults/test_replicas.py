import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from urllib.parse import parse_qs

import asyncpg
import httpx
import pytest
from litestar import Litestar
from support.api import client_of, serving
from support.replication import ReplicaServer, replica_of, replicated_primary
from support.searching import chunk, document, fill, filled, ids, search

from service.api.services import Services
from service.db.changes import Changes
from service.db.embedded import EmbeddedPostgres
from service.db.hosts import hosts_of
from service.db.migrate import migrate
from service.db.replicas import PrimaryLog, Replicas, parse_addresses

EVENTUALLY_SECONDS = 60
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def primary() -> Iterator[EmbeddedPostgres]:
    with replicated_primary() as server:
        yield server


@pytest.fixture(scope="module")
def replica(primary: EmbeddedPostgres) -> Iterator[ReplicaServer]:
    with replica_of(primary) as server:
        yield server


@pytest.fixture(scope="module")
async def schema(primary: EmbeddedPostgres) -> str:
    await execute(primary.dsn(), "CREATE DATABASE migrated")
    await migrate(primary.dsn("migrated"))
    return "migrated"


@pytest.fixture
async def name(
    primary: EmbeddedPostgres, replica: ReplicaServer, schema: str
) -> AsyncIterator[str]:
    """A migrated database that the replica has too."""
    name = f"replicated_{next(_numbers)}"
    await execute(primary.dsn(), f"CREATE DATABASE {name} TEMPLATE {schema}")
    await caught_up(primary, replica)
    yield name
    await execute(replica.dsn(name), "SELECT pg_wal_replay_resume()")


async def execute(dsn: str, statement: str) -> Any:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def caught_up(primary: EmbeddedPostgres, replica: ReplicaServer) -> None:
    """Wait until the replica has replayed all that the primary has written."""
    position = await execute(primary.dsn(), "SELECT pg_current_wal_lsn()::text")

    replayed = f"SELECT pg_last_wal_replay_lsn() >= '{position}'"
    async with asyncio.timeout(EVENTUALLY_SECONDS):
        while True:
            if await execute(replica.dsn("postgres"), replayed):
                return
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(EVENTUALLY_SECONDS):
        while True:
            if condition():
                return
            await asyncio.sleep(0.01)


def replicas_of(app: Litestar) -> Replicas:
    services: Services = app.state.services
    assert services.search.replicas is not None
    return services.search.replicas


@pytest.fixture
async def app(
    primary: EmbeddedPostgres, replica: ReplicaServer, name: str
) -> AsyncIterator[Litestar]:
    given = {"database_read_urls": replica.dsn(name), "replica_max_lag_seconds": 600.0}
    async with serving(primary.dsn(name), **given) as app:
        await until(lambda: replicas_of(app).usable == ["replica-1"])
        yield app


def tea(doc_id: str) -> dict[str, Any]:
    return document(doc_id, chunk(f"{doc_id}-0", "green tea", [1, 0, 0]))


async def ask(client: httpx.AsyncClient, **body: Any) -> list[str]:
    query = {"text": "green tea", "vector": [1, 0, 0]}
    answer = await search(client, "teas", query=query, mode="hybrid", **body)
    assert answer["degraded"] == []
    return sorted(ids(answer))


async def test_a_search_reads_a_replica_and_a_strong_one_the_primary(
    app: Litestar, primary: EmbeddedPostgres, replica: ReplicaServer, name: str
) -> None:
    async with client_of(app) as client:
        await filled(client, "teas", [tea("old")])
        await caught_up(primary, replica)
        assert await ask(client) == ["old-0"]
        await execute(replica.dsn(name), "SELECT pg_wal_replay_pause()")
        await fill(client, "teas", [tea("new")])
        assert await ask(client) == ["old-0"]
        assert await ask(client, consistency="strong") == ["new-0", "old-0"]
        await execute(replica.dsn(name), "SELECT pg_wal_replay_resume()")
        await caught_up(primary, replica)
        assert await ask(client) == ["new-0", "old-0"]


async def test_a_generation_that_a_replica_has_not_seen_swapped_in_is_read_on_the_primary(
    app: Litestar, primary: EmbeddedPostgres, replica: ReplicaServer, name: str
) -> None:
    async with client_of(app) as client:
        await filled(client, "teas", [tea("old")])
        await caught_up(primary, replica)
        assert await ask(client) == ["old-0"]
        await execute(replica.dsn(name), "SELECT pg_wal_replay_pause()")
        body = {"language": "english"}
        job = await client.post("/v1/collections/teas/reindex", json=body)
        assert job.is_success, job.text
        await until_done(client, job.json()["job_id"])
        assert await ask(client) == ["old-0"]
        await execute(replica.dsn(name), "SELECT pg_wal_replay_resume()")


async def until_done(client: httpx.AsyncClient, job_id: int) -> None:
    async with asyncio.timeout(EVENTUALLY_SECONDS):
        while True:
            job = (await client.get(f"/v1/collections/teas/jobs/{job_id}")).json()
            if job["status"] == "done":
                return
            assert job["status"] in ("pending", "processing"), job
            await asyncio.sleep(0.02)


async def test_a_replica_that_lags_is_left_out_until_it_has_caught_up(
    primary: EmbeddedPostgres, replica: ReplicaServer, name: str
) -> None:
    given = {"database_read_urls": replica.dsn(name), "replica_max_lag_seconds": 0.2}
    async with serving(primary.dsn(name), **given) as app, client_of(app) as client:
        await until(lambda: replicas_of(app).usable == ["replica-1"])
        await execute(replica.dsn(name), "SELECT pg_wal_replay_pause()")
        await filled(client, "teas", [tea("new")])
        await until(lambda: replicas_of(app).usable == [])
        assert await ask(client) == ["new-0"]
        await execute(replica.dsn(name), "SELECT pg_wal_replay_resume()")
        await until(lambda: replicas_of(app).usable == ["replica-1"])
        assert await ask(client) == ["new-0"]


@pytest.mark.parametrize("harm", ["kill", "freeze"])
async def test_no_search_fails_when_a_replica_does(
    harm: str, primary: EmbeddedPostgres, name: str
) -> None:
    with replica_of(primary) as doomed:
        given = {"database_read_urls": doomed.dsn(name), "db_pool_size": 4}
        async with serving(primary.dsn(name), **given) as app, client_of(app) as client:
            await filled(client, "teas", [tea("one")])
            await until(lambda: replicas_of(app).usable == ["replica-1"])
            stop = asyncio.Event()

            async def keep_asking() -> int:
                asked = 0
                while not stop.is_set():
                    assert await ask(client, timeout_ms=60_000) == ["one-0"]
                    asked += 1
                return asked

            askers = [asyncio.create_task(keep_asking()) for _ in range(3)]
            getattr(doomed, harm)()
            await until(lambda: replicas_of(app).usable == [])
            stop.set()
            assert all(await asyncio.gather(*askers))
            assert await ask(client) == ["one-0"]
        if harm == "freeze":
            doomed.thaw()


async def test_a_failover_to_a_promoted_replica_needs_no_restart(name: str) -> None:
    with replicated_primary() as primary, replica_of(primary) as standby:
        await execute(primary.dsn(), f"CREATE DATABASE {name}")
        await migrate(primary.dsn(name))
        await caught_up(primary, standby)
        async with serving(both(primary, standby, name)) as app, client_of(app) as client:
            await filled(client, "teas", [tea("one")])
            await caught_up(primary, standby)
            promoted = standby.dsn("postgres")
            rewritten = asyncio.Event()
            changes = Changes(both(primary, standby, name))
            changes.subscribe_to_history(rewritten.set)
            listening = asyncio.create_task(changes.listen())
            await until(lambda: changes.current)
            primary.stop()
            response = await client.post(
                "/v1/collections/teas/search", json={"query": {"text": "tea"}, "mode": "text"}
            )
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) >= 1
            await execute(promoted, "SELECT pg_promote()")
            assert await ask(client) == ["one-0"]
            await fill(client, "teas", [tea("two")])
            assert await ask(client) == ["one-0", "two-0"]
            async with asyncio.timeout(EVENTUALLY_SECONDS):
                await rewritten.wait()
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def test_a_host_that_takes_connections_and_never_answers_hides_no_other(
    primary: EmbeddedPostgres, name: str
) -> None:
    silent = await asyncio.start_server(lambda _reader, _writer: asyncio.sleep(0), "127.0.0.1", 0)
    login, _, query = primary.dsn(name).partition("?")
    folder = parse_qs(query)["host"][0]
    port = silent.sockets[0].getsockname()[1]
    address = f"{login}?host=127.0.0.1,{folder}&port={port},5432"
    async with silent:
        await migrate(address)
        async with serving(address) as app, client_of(app) as client:
            await filled(client, "teas", [tea("one")])
            assert await ask(client) == ["one-0"]


def both(primary: EmbeddedPostgres, standby: ReplicaServer, name: str) -> str:
    """Both servers in one address: whichever takes writes is the one."""
    login = primary.dsn(name).partition("?")[0]
    folders = f"{primary.root / 'postgres.socket'},{standby.socket_folder()}"
    return f"{login}?host={folders}&port=5432,5432&target_session_attrs=primary"


async def test_a_server_that_takes_writes_is_no_replica(
    primary: EmbeddedPostgres, replica: ReplicaServer, name: str
) -> None:
    given = {"database_read_urls": f"{primary.dsn(name)} {replica.dsn(name)}"}
    async with serving(primary.dsn(name), **given) as app:
        await until(lambda: bool(replicas_of(app).usable))
        assert replicas_of(app).usable == ["replica-2"]


def test_the_log_of_the_primary_tells_how_old_a_position_is() -> None:
    log = PrimaryLog()
    assert log.lag(10, now=1.0) == float("inf")
    log.note(100, at=1.0)
    log.note(100, at=2.0)
    log.note(200, at=3.0)
    assert log.lag(200, now=9.0) == 0.0
    assert log.lag(199, now=9.0) == 7.0
    assert log.lag(99, now=9.0) == float("inf")


def test_the_log_of_a_new_primary_begins_anew() -> None:
    log = PrimaryLog()
    log.note(200, at=1.0)
    log.note(100, at=2.0)
    assert log.lag(150, now=3.0) == 0.0
    assert log.lag(99, now=3.0) == float("inf")


def test_hosts_are_found_in_both_forms_of_an_address() -> None:
    assert hosts_of("postgresql://u:p@a,b:5433/x") == [("a", 5432), ("b", 5433)]
    assert hosts_of("postgresql://u:p@[::1]:6000,c/x") == [("::1", 6000), ("c", 5432)]
    assert hosts_of("postgresql:///x?host=/run/a,/run/b&port=5433") == [
        ("/run/a", 5433),
        ("/run/b", 5433),
    ]
    assert hosts_of("postgresql:///x") == []


def test_addresses_are_separated_by_commas_or_spaces_and_hosts_stay_together() -> None:
    given = " postgresql://a,b/x?target_session_attrs=standby, postgres://c/x\npostgresql://d/x,"
    assert parse_addresses(given) == [
        "postgresql://a,b/x?target_session_attrs=standby",
        "postgres://c/x",
        "postgresql://d/x",
    ]
