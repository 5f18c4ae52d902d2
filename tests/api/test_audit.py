"""`GET .../health` sees what is really there: indexes, statistics, rows, segments, failures."""

from typing import Any

import httpx
import pytest
from litestar import Litestar
from support.api import new_collection
from support.indexing import eventually
from support.rows import add_rows, stored_collection
from support.searching import chunk, document, filled

from service.indexing.packing import pack_if_grown


async def checks(client: httpx.AsyncClient, name: str) -> dict[str, dict[str, Any]]:
    response = await client.get(f"/v1/collections/{name}/health")
    assert response.status_code == 200, response.text
    health = response.json()
    assert health["collection"] == name
    found: dict[str, dict[str, Any]] = {check["name"]: check for check in health["checks"]}
    return {"status": health["status"], **found}


async def execute(app: Litestar, statement: str, *arguments: Any) -> Any:
    async with app.state.services.database.administer() as connection:
        return await connection.fetchval(statement, *arguments)


async def test_a_fresh_collection_is_well(client: httpx.AsyncClient) -> None:
    await new_collection(client, "empty")
    await filled(client, "docs", [document("d", chunk("a", "a text", [1, 0, 0]))])
    for name in ("empty", "docs"):
        found = await checks(client, name)
        assert found.pop("status") == "ok"
        assert {check["severity"] for check in found.values()} == {"ok"}
        assert {check["fix"] for check in found.values()} == {None}
    assert found["indexes"]["facts"]["indexes"] >= 6
    assert found["vectors"]["facts"] == {
        "provider": "none",
        "rows": 1,
        "without_vector": 0,
        "estimated": False,
    }


async def test_a_missing_and_an_invalid_index_are_errors(
    app: Litestar, client: httpx.AsyncClient
) -> None:
    created = await new_collection(client, "docs")
    part = f"chunks_{created['generation']}_tsv_idx"
    await execute(
        app, "UPDATE pg_index SET indisvalid = false WHERE indexrelid = $1::regclass",
        f"braid.{part}",
    )  # fmt: skip
    found = await checks(client, "docs")
    assert found["status"] == found["indexes"]["severity"] == "error"
    assert found["indexes"]["facts"]["invalid"] == [part]
    await execute(app, "CREATE INDEX extra ON ONLY braid.chunks (source)")
    found = await checks(client, "docs")
    assert found["indexes"]["facts"]["missing"] == ["extra"]


async def test_records_without_a_vector_are_counted(client: httpx.AsyncClient) -> None:
    made = document("d", chunk("a", "with", [1, 0, 0]), chunk("b", "without"))
    await filled(client, "docs", [made])
    found = await checks(client, "docs")
    assert found["vectors"]["severity"] == "info"
    assert found["vectors"]["facts"]["without_vector"] == 1


async def test_documents_that_failed_are_named(client: httpx.AsyncClient) -> None:
    await new_collection(client, "docs")
    posted = await client.post(
        "/v1/collections/docs/documents?wait=true",
        json={"documents": [{"doc_id": "blank", "text": "  "}, {"doc_id": "good", "text": "x"}]},
    )
    assert posted.json()["counts"]["failed"] == 1
    found = await checks(client, "docs")
    assert found["documents"]["severity"] == "warning"
    assert found["documents"]["facts"]["failed"] == 1
    (example,) = found["documents"]["facts"]["examples"]
    assert example["doc_id"] == "blank"
    assert example["reason"]


async def test_an_open_job_that_nobody_works_on_is_a_warning(
    app: Litestar, client: httpx.AsyncClient
) -> None:
    await new_collection(client, "docs")
    insert = (
        "INSERT INTO braid.jobs (team_id, collection_id, kind, status, created_at, updated_at)"
        " SELECT 1, id, 'index', 'pending', now() - $1::interval, now() - $1::interval"
        " FROM braid.collections"
    )
    await execute(app, insert.replace("$1", "'1 second'"))
    assert (await checks(client, "docs"))["jobs"]["severity"] == "info"
    await execute(app, "UPDATE braid.jobs SET updated_at = now() - interval '1 hour'")
    found = await checks(client, "docs")
    assert found["jobs"]["severity"] == "warning"
    assert found["jobs"]["facts"]["pending"] == 1
    assert found["jobs"]["fix"] == "braid worker"


async def test_segments_and_average_length_of_a_larger_collection(
    app: Litestar, client: httpx.AsyncClient
) -> None:
    database = app.state.services.database
    collection = await stored_collection(database, ["one two three"] * 5_000, name="docs")
    found = await checks(client, "docs")
    assert found["packed_postings"]["severity"] == "warning"
    assert found["packed_postings"]["facts"]["fresh"] == 5_000
    assert await pack_if_grown(database, collection.generation)
    found = await checks(client, "docs")
    assert found["packed_postings"]["severity"] == "ok"
    assert found["packed_postings"]["facts"] == {
        "segments": 1,
        "rows": 5_000,
        "dead": 0,
        "fresh": 0,
    }
    await execute(
        app, "DELETE FROM braid.chunks WHERE generation_id = $1 AND document_id < 4500",
        collection.generation.id,
    )  # fmt: skip
    await add_rows(database, collection.generation, ["word " * 9] * 600, after=5_000)
    found = await checks(client, "docs")
    # The server's counters lag behind a moment, the time of an ANALYZE does not.
    assert found["statistics"]["facts"]["analyzed_at"] is not None
    assert found["packed_postings"]["facts"]["dead"] == 4_499
    assert found["packed_postings"]["severity"] == "warning"
    assert found["average_length"]["facts"]["in_use"] == 3
    assert found["average_length"]["severity"] == "warning"


async def test_a_generation_before_and_a_re_index_that_rests_are_told(
    app: Litestar, client: httpx.AsyncClient
) -> None:
    await filled(client, "docs", [document("d", chunk("a", "a text", [1, 0, 0]))])
    started = await client.post("/v1/collections/docs/reindex", json={"language": "english"})
    job_id = started.json()["job_id"]

    async def swapped() -> bool:
        job = await client.get(f"/v1/collections/docs/jobs/{job_id}")
        return bool(job.json()["status"] == "done")

    await eventually(swapped)
    found = await checks(client, "docs")
    assert found["generations"]["severity"] == "info"
    (before,) = found["generations"]["facts"]["others"]
    assert (before["state"], before["failures"]) == ("retired", 0)

    await execute(
        app,
        "WITH g AS (UPDATE braid.generations SET state = 'building' WHERE state = 'retired'"
        " RETURNING id), j AS (UPDATE braid.jobs SET status = 'error' WHERE id = $1),"
        " b AS (UPDATE braid.builds SET job_id = $1, retired_at = NULL, expires_at = NULL)"
        " INSERT INTO braid.build_failures (generation_id, document_id, team_id, reason)"
        " SELECT g.id, d.id, 1, 'why' FROM g, braid.documents d",
        job_id,
    )
    found = await checks(client, "docs")
    assert found["generations"]["severity"] == "warning"
    assert found["generations"]["facts"]["others"][0]["failures"] == 1
    assert found["generations"]["fix"] == f"POST /v1/collections/docs/jobs/{job_id}/resume"


@pytest.mark.parametrize("path", ["/v1/collections/none/health", "/v1/collections/a%20b/health"])
async def test_only_what_exists_is_audited(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code in (400, 404)
