import asyncio
from typing import Any

import asyncpg
import httpx
import pytest
from litestar import Litestar
from support.api import (
    ROOT_KEY,
    client_of,
    new_collection,
    new_key,
    pointers,
    problem,
    serving_with_local_model,
)

TEXT_ONLY = {"provider": "none"}


async def partitions(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        count: int = await connection.fetchval(
            "SELECT count(*) FROM pg_inherits WHERE inhparent = 'braid.chunks'::regclass"
        )
    finally:
        await connection.close()
    return count


async def test_only_a_name_is_required(client: httpx.AsyncClient) -> None:
    created = await client.post("/v1/collections", json={"name": "docs"})
    assert created.status_code == 201
    body = created.json()
    assert body.pop("created_at") == body.pop("updated_at")
    assert body.pop("generation") >= 1
    dim = body["embedding"].pop("dim")
    assert dim >= 1  # asked of the embedder
    assert body == {
        "name": "docs",
        "language": "simple",
        "analyzer": "language",
        "embedding": {"provider": "local", "model": "multilingual-e5-small"},
        "search": {
            "mode": "hybrid",
            "method": None,
            "weights": None,
            "rrf_k": None,
            "fetch_k": 40,
            "target_recall": 0.99,
            "quantization": "none",
            "row_budget": 8000,
        },
        "chunking": {"size": 512, "overlap": 64},
        "bm25": {"k1": 1.2, "b": 0.75},
        "rerank": {
            "enabled": False,
            "provider": None,
            "model": None,
            "top_n": 50,
            "timeout_ms": 800,
        },
        "contextual": {
            "enabled": False,
            "mode": "model",
            "provider": None,
            "model": None,
            "batch": "never",
            "embed": False,
            "concurrency": 4,
            "version": 0,
        },
        "building": None,
        "previous": None,
        "index": "exact",
        "vector_index": {
            "policy": "auto",
            "built": False,
            "quantization": None,
            "ef_search": None,
            "recall": None,
            "rows": None,
            "measured_at": None,
            "note": None,
        },
        "documents": 0,
        "chunks": 0,
        "summaries": 0,
        "pending_jobs": 0,
        "stale_chunks": 0,
    }


async def test_what_was_set_is_what_is_shown(client: httpx.AsyncClient) -> None:
    asked: dict[str, Any] = {
        "name": "Docs-1_a",
        "language": "german",
        "analyzer": "trigram",
        "embedding": {"provider": "none", "model": None, "dim": 16_000},
        "search": {
            "mode": "text",
            "method": "dbsf",
            "weights": {"dense": 0.0, "lexical": 1.0},
            "rrf_k": 1,
            "fetch_k": 1000,
            "target_recall": 0.5,
            "quantization": "binary",
            "row_budget": 100,
        },
        "chunking": {"size": 16, "overlap": 15},
    }
    created = (await client.post("/v1/collections", json=asked)).json()
    assert {field: created[field] for field in asked} == asked
    assert (await client.get("/v1/collections/Docs-1_a")).json() == created


@pytest.mark.parametrize(
    ("fields", "pointer"),
    [
        ({"name": ""}, "/name"),
        ({"name": "a b"}, "/name"),
        ({"name": "docs\n"}, "/name"),
        ({"name": "é"}, "/name"),
        ({"name": "n" * 65}, "/name"),
        ({"language": "klingon"}, "/language"),
        ({"language": ""}, "/language"),
        ({"language": "simple\x00"}, "/language"),
        ({"analyzer": "fuzzy"}, "/analyzer"),
        ({"embedding": {"provider": "voyager"}}, "/embedding/provider"),
        ({"embedding": {"provider": "none", "dim": 0}}, "/embedding/dim"),
        ({"embedding": {"provider": "none", "dim": 16_001}}, "/embedding/dim"),
        ({"embedding": {"provider": "none", "model": "m"}}, "/embedding/model"),
        ({"embedding": {"provider": "none", "base_url": "http://x"}}, "/embedding/base_url"),
        ({"search": {"mode": "fast"}}, "/search/mode"),
        ({"search": {"method": "max"}}, "/search/method"),
        ({"search": {"weights": {"dense": 0, "lexical": 0}}}, "/search/weights"),
        ({"search": {"weights": {"dense": 1.1, "lexical": 0}}}, "/search/weights/dense"),
        ({"search": {"weights": {"dense": -0.1, "lexical": 0}}}, "/search/weights/dense"),
        ({"search": {"weights": {"dense": 1}}}, "/search/weights/lexical"),
        ({"search": {"rrf_k": 0}}, "/search/rrf_k"),
        ({"search": {"rrf_k": 1001}}, "/search/rrf_k"),
        ({"search": {"fetch_k": 0}}, "/search/fetch_k"),
        ({"search": {"fetch_k": None}}, "/search/fetch_k"),
        ({"search": {"row_budget": 99}}, "/search/row_budget"),
        ({"search": {"row_budget": 1_000_001}}, "/search/row_budget"),
        ({"chunking": {"size": 15}}, "/chunking/size"),
        ({"chunking": {"size": 8193}}, "/chunking/size"),
        ({"chunking": {"size": 100, "overlap": 100}}, "/chunking/overlap"),
        ({"chunking": {"overlap": -1}}, "/chunking/overlap"),
        ({"collection_key": "short"}, "/collection_key"),
        ({"collection_key": "k" * 129}, "/collection_key"),
        ({"collection_key": "with a space in it"}, "/collection_key"),
        ({"rerank": {"enabled": 1}}, "/rerank/enabled"),
    ],
)
async def test_a_bad_setting_is_named(
    client: httpx.AsyncClient, dsn: str, fields: dict[str, Any], pointer: str
) -> None:
    body = {"name": "docs", "embedding": TEXT_ONLY, **fields}
    assert pointers(await client.post("/v1/collections", json=body)) == [pointer]
    assert await partitions(dsn) == 0


async def test_an_unknown_provider_is_told_what_there_is(client: httpx.AsyncClient) -> None:
    body = {"name": "docs", "embedding": {"provider": "voyage"}}
    response = await client.post("/v1/collections", json=body)
    assert "local, none" in problem(response, 400)["detail"]


async def test_a_dimension_that_the_model_has_not_is_400(dsn: str) -> None:
    async with serving_with_local_model(dsn) as app, client_of(app) as client:
        body = {"name": "docs", "embedding": {"provider": "local", "dim": 7}}
        assert pointers(await client.post("/v1/collections", json=body)) == ["/embedding"]
        body = {"name": "docs", "embedding": {"provider": "local", "model": "other"}}
        assert pointers(await client.post("/v1/collections", json=body)) == ["/embedding"]


async def test_a_small_chunk_gets_a_small_overlap(client: httpx.AsyncClient) -> None:
    created = await new_collection(client, "docs", chunking={"size": 64})
    assert created["chunking"] == {"size": 64, "overlap": 8}


async def test_a_name_is_taken_once_a_team(client: httpx.AsyncClient, dsn: str) -> None:
    await client.post("/v1/teams", json={"name": "other"})
    body = {"name": "docs", "embedding": TEXT_ONLY}
    statuses = [
        response.status_code
        for response in await asyncio.gather(
            *(client.post("/v1/collections", json=body) for _ in range(4))
        )
    ]
    assert sorted(statuses) == [201, 409, 409, 409]
    theirs = await client.post("/v1/collections", json=body, headers={"X-Team": "other"})
    assert theirs.status_code == 201
    assert await partitions(dsn) == 2


async def test_a_collection_key_is_for_this_collection_alone(client: httpx.AsyncClient) -> None:
    await new_collection(client, "other")
    created = await new_collection(client, "docs", collection_key=True)
    key = {"X-API-Key": created["collection_key"]}
    assert (await client.get("/v1/collections/docs", headers=key)).status_code == 200
    problem(await client.get("/v1/collections/other", headers=key), 404)
    (listed,) = (await client.get("/v1/keys")).json()["keys"]
    assert listed["scopes"] == ["index", "search"]
    assert listed["collections"] == ["docs"]
    assert "collection_key" not in (await client.get("/v1/collections/docs")).json()


async def test_a_collection_key_of_the_clients_own_is_taken_as_given(
    client: httpx.AsyncClient, dsn: str
) -> None:
    own = "sixteen-or-more!"
    created = await new_collection(client, "docs", collection_key=own)
    assert created["collection_key"] == own
    assert (await client.get("/v1/collections", headers={"X-API-Key": own})).json()["total"] == 1
    for taken in (own, ROOT_KEY):
        body = {"name": "more", "embedding": TEXT_ONLY, "collection_key": taken}
        problem(await client.post("/v1/collections", json=body), 409)
    assert await partitions(dsn) == 1


async def test_a_key_of_the_clients_own_is_free_again_with_its_collection(
    client: httpx.AsyncClient,
) -> None:
    own = "sixteen-or-more!"
    for _ in range(2):
        await new_collection(client, "docs", collection_key=own)
        (key,) = (await client.get("/v1/keys")).json()["keys"]
        await client.delete(f"/v1/keys/{key['id']}")
        await client.delete("/v1/collections/docs")
        problem(await client.get("/v1/collections", headers={"X-API-Key": own}), 401)


async def test_collections_are_listed_by_name_in_pages(client: httpx.AsyncClient) -> None:
    for name in ("c", "a", "b"):
        await new_collection(client, name)
    page = (await client.get("/v1/collections?limit=2&offset=1")).json()
    assert [one["name"] for one in page["collections"]] == ["b", "c"]
    assert page["total"] == 3
    assert (await client.get("/v1/collections?offset=3")).json() == {"collections": [], "total": 3}


async def test_search_settings_change_one_by_one(client: httpx.AsyncClient) -> None:
    await new_collection(client, "docs", search={"rrf_k": 5, "method": "rrf"})
    patched = await client.patch(
        "/v1/collections/docs",
        json={"search": {"weights": {"dense": 0.7, "lexical": 0.3}, "method": None}},
    )
    assert patched.status_code == 200
    assert patched.json()["search"] == {
        "mode": "hybrid",
        "method": None,
        "weights": {"dense": 0.7, "lexical": 0.3},
        "rrf_k": 5,
        "fetch_k": 40,
        "target_recall": 0.99,
        "quantization": "none",
        "row_budget": 8000,
    }
    assert (await client.get("/v1/collections/docs")).json() == patched.json()
    again = await client.patch("/v1/collections/docs", json={"search": {"weights": None}})
    assert again.json()["search"]["weights"] is None
    budget = await client.patch("/v1/collections/docs", json={"search": {"row_budget": 500}})
    assert budget.json()["search"] == {**again.json()["search"], "row_budget": 500}


async def test_concurrent_changes_of_different_settings_all_stay(
    client: httpx.AsyncClient,
) -> None:
    await new_collection(client, "docs")
    changes = [
        {"mode": "text"}, {"rrf_k": 7}, {"fetch_k": 70}, {"method": "dbsf"}, {"row_budget": 700}
    ]  # fmt: skip
    await asyncio.gather(
        *(client.patch("/v1/collections/docs", json={"search": change}) for change in changes)
    )
    search = (await client.get("/v1/collections/docs")).json()["search"]
    assert search == {
        "mode": "text", "rrf_k": 7, "fetch_k": 70, "method": "dbsf", "weights": None,
        "target_recall": 0.99, "quantization": "none", "row_budget": 700,
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"language": "german"},
        {"analyzer": "simple"},
        {"embedding": {"provider": "local"}},
        {"chunking": {"size": 100}},
    ],
)
async def test_what_the_index_is_built_with_cannot_be_patched(
    client: httpx.AsyncClient, change: dict[str, Any]
) -> None:
    await new_collection(client, "docs")
    response = await client.patch("/v1/collections/docs", json=change)
    assert "re-index" in problem(response, 409)["detail"]


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"name": "new"}, "/name"),
        ({"search": {"weights": {"dense": 0, "lexical": 0}}}, "/search/weights"),
        ({"search": {"fetch_k": 1001}}, "/search/fetch_k"),
        ({"search": None}, "/search"),
    ],
)
async def test_a_bad_change_is_named(
    client: httpx.AsyncClient, change: dict[str, Any], pointer: str
) -> None:
    await new_collection(client, "docs")
    assert pointers(await client.patch("/v1/collections/docs", json=change)) == [pointer]


async def test_deleting_a_collection_frees_its_name_and_its_table(
    client: httpx.AsyncClient, dsn: str
) -> None:
    await new_collection(client, "docs")
    await new_collection(client, "stays")
    response = await client.delete("/v1/collections/docs")
    assert response.status_code == 204
    assert response.content == b""
    assert await partitions(dsn) == 1
    problem(await client.get("/v1/collections/docs"), 404)
    problem(await client.delete("/v1/collections/docs"), 404)
    await new_collection(client, "docs")


async def test_a_collection_is_deleted_while_a_long_search_reads_it(
    app: Litestar, client: httpx.AsyncClient, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is free at once; the table goes when nobody reads any more."""
    monkeypatch.setattr("service.db.partitions.PATIENCE_SECONDS", 0.2)
    await new_collection(client, "docs")
    async with app.state.services.database.read(1) as reading, reading.transaction():
        await reading.fetchval("SELECT count(*) FROM braid.searchable")
        assert (await client.delete("/v1/collections/docs")).status_code == 204
        problem(await client.get("/v1/collections/docs"), 404)
        # Others are served while the table waits.
        await new_collection(client, "docs")
        assert await partitions(dsn) == 2
    await new_collection(client, "more")
    await client.delete("/v1/collections/more")
    assert await partitions(dsn) == 1


async def test_two_deletions_at_once_answer_once(client: httpx.AsyncClient, dsn: str) -> None:
    await new_collection(client, "docs")
    responses = await asyncio.gather(*(client.delete("/v1/collections/docs") for _ in range(4)))
    assert sorted(response.status_code for response in responses) == [204, 404, 404, 404]
    assert await partitions(dsn) == 0


async def test_an_admin_key_of_the_team_manages_collections(client: httpx.AsyncClient) -> None:
    key = await new_key(client, "admin")
    body = {"name": "docs", "embedding": TEXT_ONLY}
    assert (await client.post("/v1/collections", json=body, headers=key)).status_code == 201
    assert (await client.delete("/v1/collections/docs", headers=key)).status_code == 204
