"""The vector index over HTTP: on demand, shown, measured again, dropped."""

import asyncio
from typing import Any

import httpx
import numpy as np
import pytest
from support.api import client_of, new_collection, new_key, pointers, problem
from support.searching import chunk, document, filled, search

DIM = 16
VECTORS = np.random.default_rng(3).normal(size=(120, DIM)).round(3)


async def ended(client: httpx.AsyncClient, job_id: int) -> dict[str, Any]:
    while True:
        job: dict[str, Any] = (await client.get(f"/v1/collections/docs/jobs/{job_id}")).json()
        if job["status"] in ("done", "error"):
            return job
        await asyncio.sleep(0.02)


async def info(client: httpx.AsyncClient) -> dict[str, Any]:
    found: dict[str, Any] = (await client.get("/v1/collections/docs")).json()
    return found


@pytest.fixture
async def docs(client: httpx.AsyncClient) -> None:
    documents = [
        document(f"d{row}", chunk(f"c{row}", f"text {row}", vector.tolist()), metadata={"n": row})
        for row, vector in enumerate(VECTORS)
    ]
    await filled(client, "docs", documents, embedding={"provider": "none", "dim": DIM})


@pytest.mark.usefixtures("docs")
async def test_an_index_is_built_on_demand_shown_and_used(client: httpx.AsyncClient) -> None:
    assert (await info(client))["index"] == "exact"
    accepted = await client.post("/v1/collections/docs/index")
    assert accepted.status_code == 202
    job = await ended(client, accepted.json()["job_id"])
    assert (job["status"], job["kind"], job["error"]) == ("done", "index", None)
    assert job["progress"] == {"phase": "measuring recall", "percent": None}
    shown = await info(client)
    assert shown["index"] == "hnsw"
    figures = shown["vector_index"]
    assert figures.pop("measured_at") > shown["created_at"]
    assert figures.pop("recall") >= 0.99
    assert figures == {
        "policy": "hnsw",
        "built": True,
        "quantization": "none",
        "ef_search": 40,
        "rows": 120,
        "note": None,
    }
    vector = VECTORS[7].tolist()
    answer = await search(client, "docs", query={"vector": vector}, mode="vector")
    assert answer["stages"]["dense"]["method"] == "hnsw"
    assert answer["stages"]["dense"]["ef_search"] == 40
    assert [hit["id"] for hit in answer["hits"]][:1] == ["c7"]
    assert len(answer["hits"]) == 10
    wide = await search(client, "docs", query={"vector": vector}, mode="vector", ef_search=1000)
    assert wide["stages"]["dense"]["ef_search"] == 1000
    filtered = await search(
        client, "docs", query={"vector": vector}, mode="vector", filter={"n": {"lt": 3}}
    )
    assert filtered["stages"]["dense"]["method"] == "exact"
    assert {hit["id"] for hit in filtered["hits"]} == {"c0", "c1", "c2"}


@pytest.mark.usefixtures("docs")
async def test_a_dropped_index_is_gone_and_searches_go_on(client: httpx.AsyncClient) -> None:
    await ended(client, (await client.post("/v1/collections/docs/index")).json()["job_id"])
    dropped = await client.delete("/v1/collections/docs/index")
    assert dropped.status_code == 202
    assert (await ended(client, dropped.json()["job_id"]))["status"] == "done"
    shown = await info(client)
    assert shown["index"] == "exact"
    assert (shown["vector_index"]["policy"], shown["vector_index"]["built"]) == ("exact", False)
    answer = await search(
        client, "docs", query={"vector": VECTORS[7].tolist()}, mode="vector", ef_search=100
    )
    assert answer["stages"]["dense"]["method"] == "exact"
    assert len(answer["hits"]) == 10


@pytest.mark.usefixtures("docs")
async def test_a_new_target_or_quantization_is_measured_in_the_background(
    client: httpx.AsyncClient,
) -> None:
    await ended(client, (await client.post("/v1/collections/docs/index")).json()["job_id"])
    patched = await client.patch(
        "/v1/collections/docs", json={"search": {"target_recall": 1, "quantization": "binary"}}
    )
    assert patched.status_code == 200
    assert patched.json()["search"]["target_recall"] == 1.0
    jobs = (await client.get("/v1/collections/docs/jobs")).json()["jobs"]
    assert jobs[0]["kind"] == "index"
    await ended(client, jobs[0]["job_id"])
    assert (await info(client))["vector_index"]["quantization"] == "binary"
    before = (await client.get("/v1/collections/docs/jobs")).json()["total"]
    await client.patch("/v1/collections/docs", json={"search": {"rrf_k": 7}})
    assert (await client.get("/v1/collections/docs/jobs")).json()["total"] == before


async def test_a_collection_that_can_have_no_index_says_why(client: httpx.AsyncClient) -> None:
    await new_collection(client, "texts", embedding={"provider": "none"})
    refused = problem(await client.post("/v1/collections/texts/index"), 409)
    assert refused["detail"] == "the collection holds no vectors"
    await new_collection(client, "wide", embedding={"provider": "none", "dim": 5000})
    refused = problem(await client.post("/v1/collections/wide/index"), 409)
    assert "4000 dimensions" in refused["detail"]
    binary = {"search": {"quantization": "binary"}}
    assert (await client.patch("/v1/collections/wide", json=binary)).status_code == 200
    assert (await client.post("/v1/collections/wide/index")).status_code == 202


@pytest.mark.parametrize(
    ("field", "value"),
    [("target_recall", 0.49), ("target_recall", 1.01), ("quantization", "scalar")],
)
async def test_bounds_of_the_index_settings(
    client: httpx.AsyncClient, field: str, value: object
) -> None:
    body = {"name": "docs", "search": {field: value}}
    assert pointers(await client.post("/v1/collections", json=body)) == [f"/search/{field}"]


@pytest.mark.parametrize("ef_search", [0, 1001, "40"])
@pytest.mark.usefixtures("docs")
async def test_bounds_of_ef_search(client: httpx.AsyncClient, ef_search: object) -> None:
    body = {"query": {"text": "text"}, "ef_search": ef_search}
    response = await client.post("/v1/collections/docs/search", json=body)
    assert pointers(response) == ["/ef_search"]


@pytest.mark.usefixtures("docs")
async def test_the_index_needs_an_admin_key(client: httpx.AsyncClient, app: Any) -> None:
    headers = await new_key(client, "index", "search")
    async with client_of(app, headers) as other:
        problem(await other.post("/v1/collections/docs/index"), 403)
        problem(await other.delete("/v1/collections/docs/index"), 403)
