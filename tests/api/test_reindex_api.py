"""Re-indexing over HTTP: plans, the swap as a client sees it, and what is refused."""

import asyncio
from typing import Any

import httpx
import pytest
from support.api import new_collection, new_key, pointers, problem
from support.searching import chunk, document, fill, filled, ids, search

LANGUAGE = {"language": "spanish"}


async def ended(client: httpx.AsyncClient, job_id: int, name: str = "docs") -> dict[str, Any]:
    """The job once it is over."""
    async with asyncio.timeout(30):
        while True:
            job: dict[str, Any] = (await client.get(f"/v1/collections/{name}/jobs/{job_id}")).json()
            if job["status"] not in ("pending", "processing"):
                return job
            await asyncio.sleep(0.02)


async def begun(client: httpx.AsyncClient, **body: Any) -> int:
    response = await client.post("/v1/collections/docs/reindex", json=body)
    assert response.status_code == 202, response.text
    job_id: int = response.json()["job_id"]
    return job_id


async def spanish(client: httpx.AsyncClient) -> None:
    await filled(
        client,
        "docs",
        [
            {"doc_id": "bill", "text": "la factura pendiente de la flor"},
            {"doc_id": "other", "text": "nada que ver"},
        ],
        language="english",
        embedding={"provider": "local"},
        search={"mode": "text"},
    )


async def test_a_search_finds_more_after_the_language_was_changed(
    client: httpx.AsyncClient,
) -> None:
    await spanish(client)
    assert ids(await search(client, "docs", query={"text": "flores"})) == []
    before = (await client.get("/v1/collections/docs")).json()
    job = await ended(client, await begun(client, **LANGUAGE))
    assert (job["kind"], job["status"]) == ("reindex", "done")
    assert job["usage"]["embedding_tokens"] == 0
    for query in ("flores", "facturas pendientes"):
        assert ids(await search(client, "docs", query={"text": query})) == ["bill::0"]
    after = (await client.get("/v1/collections/docs")).json()
    assert after["language"] == "spanish"
    assert after["generation"] > before["generation"]
    assert after["building"] is None
    assert after["previous"]["generation"] == before["generation"]
    assert before["previous"] is None
    assert {name: after[name] for name in ("documents", "chunks", "embedding", "chunking")} == {
        name: before[name] for name in ("documents", "chunks", "embedding", "chunking")
    }
    response = await client.post("/v1/collections/docs/rollback")
    assert response.status_code == 202, response.text
    assert (await ended(client, response.json()["job_id"]))["status"] == "done"
    assert ids(await search(client, "docs", query={"text": "flores"})) == []
    info = (await client.get("/v1/collections/docs")).json()
    assert (info["language"], info["generation"]) == ("english", before["generation"])


async def test_a_plan_alone_begins_nothing(client: httpx.AsyncClient) -> None:
    await spanish(client)
    plans = {}
    for name, change in {
        "language": LANGUAGE,
        "nothing": {},
        "chunking": {"chunking": {"size": 64}},
    }.items():
        response = await client.post(
            "/v1/collections/docs/reindex", json={**change, "plan_only": True}
        )
        assert response.status_code == 200, response.text
        assert "job_id" not in response.json()
        plans[name] = response.json()["plan"]
    assert plans["language"] == {
        "changes": ["language"], "documents": 2, "chunks": 2, "reused_vectors": 2,
        "embedded_chunks": 0, "model_headers": 0, "embedding_tokens": 0, "cost_usd": 0.0,
    }  # fmt: skip
    assert plans["nothing"] == {**plans["language"], "changes": []}
    assert plans["chunking"]["changes"] == ["chunking"]
    assert plans["chunking"]["embedded_chunks"] == 2
    # The hashed embedder counts words: six and three.
    assert plans["chunking"]["embedding_tokens"] == 9
    info = (await client.get("/v1/collections/docs")).json()
    assert (info["building"], info["previous"]) == (None, None)


async def test_a_patch_that_needs_a_reindex_answers_its_plan(client: httpx.AsyncClient) -> None:
    await spanish(client)
    response = await client.patch(
        "/v1/collections/docs", json={**LANGUAGE, "search": {"mode": "hybrid"}}
    )
    body = problem(response, 409)
    assert body["type"] == "urn:braid:problem:reindex-required"
    assert body["detail"].startswith("language: ")
    assert (body["plan"]["changes"], body["plan"]["documents"]) == (["language"], 2)
    info = (await client.get("/v1/collections/docs")).json()
    assert (info["language"], info["search"]["mode"]) == ("english", "text")
    # What is so already needs nothing.
    same = {"language": "english", "analyzer": "language", "search": {"mode": "hybrid"}}
    response = await client.patch("/v1/collections/docs", json=same)
    assert response.json()["search"]["mode"] == "hybrid"


async def test_the_collection_shows_the_generation_that_is_built(
    client: httpx.AsyncClient,
) -> None:
    await spanish(client)
    job_id = await begun(client, language="spanish", bm25={"k1": 2, "b": 0.5})
    await client.post(f"/v1/collections/docs/jobs/{job_id}/pause")
    (info,) = (await client.get("/v1/collections")).json()["collections"]
    if info["building"] is not None:  # the worker may have been faster
        building = info["building"]
        assert (building["job_id"], building["language"]) == (job_id, "spanish")
        assert building["bm25"] == {"k1": 2.0, "b": 0.5}
        assert building["status"] == "paused"
        assert building["documents"] == 2
        url = f"/v1/collections/docs/jobs/{job_id}/cancel"
        problem(await client.post(url, headers=await new_key(client, "index")), 403)
        response = await client.post(url)
        assert response.json()["status"] == "cancelled"
        info = (await client.get("/v1/collections/docs")).json()
        assert (info["building"], info["language"]) == (None, "english")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"language": "klingon"}, "/language"),
        ({"language": None}, "/language"),
        ({"analyzer": "other"}, "/analyzer"),
        ({"embedding": {"dim": 3}}, "/embedding"),
        ({"embedding": {"provider": "nobody"}}, "/embedding/provider"),
        ({"chunking": {"size": 16, "overlap": 16}}, "/chunking/overlap"),
        ({"bm25": {"k1": 11}}, "/bm25/k1"),
        ({"plan_only": 1}, "/plan_only"),
        ({"search": {}}, "/search"),
    ],
)
async def test_bad_changes_are_named(
    client: httpx.AsyncClient, body: dict[str, Any], pointer: str
) -> None:
    await new_collection(client, "docs")
    response = await client.post("/v1/collections/docs/reindex", json=body)
    assert pointers(response) in ([pointer], [pointer + "/provider"])


async def test_what_cannot_be_done_is_a_conflict(client: httpx.AsyncClient) -> None:
    await filled(client, "docs", [document("d", chunk("c", "text", [1, 0, 0]))])
    body = {"embedding": {"provider": "local"}}
    for plan_only in (True, False):
        response = await client.post(
            "/v1/collections/docs/reindex", json={**body, "plan_only": plan_only}
        )
        assert "clients'" in problem(response, 409)["detail"]
    assert (
        "clients'" in problem(await client.patch("/v1/collections/docs", json=body), 409)["detail"]
    )
    problem(await client.post("/v1/collections/docs/rollback"), 409)
    jobs = (await client.get("/v1/collections/docs/jobs")).json()["jobs"]
    for action in ("pause", "resume"):
        url = f"/v1/collections/docs/jobs/{jobs[0]['job_id']}/{action}"
        assert "only a re-index" in problem(await client.post(url), 409)["detail"]
        problem(await client.post(f"/v1/collections/docs/jobs/999/{action}"), 404)
    url = f"/v1/collections/docs/jobs/{jobs[0]['job_id']}/cancel"
    assert "over" in problem(await client.post(url), 409)["detail"]
    problem(await client.post("/v1/collections/docs/jobs/999/cancel"), 404)


async def test_only_an_admin_key_may_reindex(client: httpx.AsyncClient) -> None:
    await new_collection(client, "docs")
    key = await new_key(client, "search", "index")
    for path in ("reindex", "rollback", "jobs/1/pause", "jobs/1/resume"):
        response = await client.post(f"/v1/collections/docs/{path}", json={}, headers=key)
        problem(response, 403)


async def test_a_collection_may_be_deleted_while_it_is_built_anew(
    client: httpx.AsyncClient,
) -> None:
    await spanish(client)
    await begun(client, **LANGUAGE)
    assert (await client.delete("/v1/collections/docs")).status_code == 204
    await spanish(client)
    await fill(client, "docs", [{"doc_id": "new", "text": "las flores"}])
    assert ids(await search(client, "docs", query={"text": "flores"})) == ["new::0"]


async def chunk_counts(client: httpx.AsyncClient) -> dict[str, int]:
    records = (await client.get("/v1/collections/docs/documents", params={"limit": 1000})).json()[
        "records"
    ]
    return {
        doc_id: sum(record["doc_id"] == doc_id for record in records)
        for doc_id in sorted({record["doc_id"] for record in records})
    }


async def test_a_document_is_split_its_own_way_also_after_a_re_index(
    client: httpx.AsyncClient,
) -> None:
    await new_collection(client, "docs", embedding={"provider": "none"}, chunking={"size": 64})
    text = " ".join(f"word{number}" for number in range(240))
    own = {"size": 16, "overlap": 0}
    documents = [
        {"doc_id": "own", "text": text, "chunking": own},
        {"doc_id": "usual", "text": text},
    ]
    path = "/v1/collections/docs/documents?wait=true"
    assert (await client.post(path, json={"documents": documents})).json()["status"] == "done"
    before = await chunk_counts(client)
    assert before["own"] > 3 * before["usual"]
    job = await ended(client, await begun(client, chunking={"size": 32}))
    assert job["status"] == "done", job
    after = await chunk_counts(client)
    assert after["own"] == before["own"]
    assert after["usual"] > before["usual"]
