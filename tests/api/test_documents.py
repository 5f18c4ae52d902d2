"""Documents over HTTP, from acceptance to the search that finds them and their end."""

import asyncio
from typing import Any

import httpx
import pytest
from litestar import Litestar
from support.api import client_of, new_collection, new_key, pointers, problem, serving

PATH = "/v1/collections/docs/documents"


@pytest.fixture
async def docs(client: httpx.AsyncClient) -> None:
    await new_collection(client, "docs", embedding={"provider": "local"})


async def indexed(client: httpx.AsyncClient, *documents: dict[str, Any]) -> dict[str, Any]:
    response = await client.post(f"{PATH}?wait=true", json={"documents": list(documents)})
    assert response.status_code == 202, response.text
    job: dict[str, Any] = response.json()
    assert job["status"] == "done", job
    return job


async def found(client: httpx.AsyncClient, text: str, **fields: Any) -> list[str]:
    body = {"query": {"text": text}, **fields}
    response = await client.post("/v1/collections/docs/search", json=body)
    assert response.status_code == 200, response.text
    return [hit["id"] for hit in response.json()["hits"]]


@pytest.mark.usefixtures("docs")
async def test_documents_are_accepted_indexed_and_found(client: httpx.AsyncClient) -> None:
    accepted = await client.post(
        PATH, json={"documents": [{"doc_id": "keys", "text": "How to rotate an API key"}]}
    )
    assert accepted.status_code == 202
    job_id = accepted.json()["job_id"]
    assert accepted.json() == {"job_id": job_id}
    job = await indexed(client, {"doc_id": "cats", "text": "Cats sleep all day"})
    first = (await client.get(f"/v1/collections/docs/jobs/{job_id}")).json()
    assert first["job_id"] == job_id
    listed = (await client.get("/v1/collections/docs/jobs")).json()
    assert [one["job_id"] for one in listed["jobs"]] == [job["job_id"], job_id]
    assert job["counts"] == {"documents": 1, "indexed": 1, "failed": 0, "superseded": 0}
    done = (await client.get("/v1/collections/docs/jobs?status=done&limit=1")).json()
    assert (len(done["jobs"]), done["total"]) == (1, 2)
    assert (await client.get("/v1/collections/docs/jobs?status=error")).json()["total"] == 0
    problem(await client.get("/v1/collections/docs/jobs?status=lost"), 400)
    assert await found(client, "sleeping cats", k=1) == ["cats::0"]
    info = (await client.get("/v1/collections/docs")).json()
    assert (info["documents"], info["chunks"], info["summaries"]) == (2, 2, 0)


@pytest.mark.usefixtures("docs")
async def test_waiting_ends_when_the_time_is_up(
    client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.api.documents.WAIT_SECONDS", 0.0)
    response = await client.post(
        f"{PATH}?wait=true", json={"documents": [{"doc_id": "a", "text": "b"}]}
    )
    assert response.status_code == 202
    assert response.json()["job_id"] >= 1


@pytest.mark.usefixtures("docs")
async def test_clients_chunks_and_vectors_are_taken(client: httpx.AsyncClient) -> None:
    await new_collection(client, "own")
    chunks = [
        {"id": "x", "text": "first", "vector": [1, 0, 0], "metadata": {"n": 1}, "position": 4},
        {"id": "y", "vector": [0, 1, 0]},
    ]
    body = {"documents": [{"doc_id": "d", "title": "T", "source": "s", "chunks": chunks}]}
    posted = await client.post("/v1/collections/own/documents?wait=true", json=body)
    assert posted.json()["status"] == "done"
    document = (await client.get("/v1/collections/own/documents/d")).json()
    assert [(one["id"], one["text"], one["position"]) for one in document["chunks"]] == [
        ("y", "", 1),
        ("x", "first", 4),
    ]
    search = await client.post(
        "/v1/collections/own/search", json={"query": {"vector": [0, 1, 0]}, "mode": "vector"}
    )
    assert [hit["id"] for hit in search.json()["hits"]] == ["y", "x"]


@pytest.mark.usefixtures("docs")
async def test_metadata_is_merged_and_searched_at_once(client: httpx.AsyncClient) -> None:
    await indexed(
        client, {"doc_id": "a/b", "text": "some words", "metadata": {"x": 1, "y": {"z": 1, "w": 2}}}
    )
    patched = await client.patch(
        f"{PATH}/a%2Fb", json={"metadata": {"x": None, "y": {"z": 3}, "new": [1]}}
    )
    assert patched.json() == {"patched_records": 1}
    document = (await client.get(f"{PATH}/a/b")).json()
    expected = {"y": {"z": 3, "w": 2}, "new": [1]}
    assert document["metadata"] == expected
    assert document["chunks"][0]["metadata"] == expected
    assert await found(client, "words", filter={"new": 1}) == ["a/b::0"]
    assert await found(client, "words", filter={"x": 1}) == []


@pytest.mark.usefixtures("docs")
async def test_metadata_of_chunks_can_be_left_alone(client: httpx.AsyncClient) -> None:
    await indexed(client, {"doc_id": "a", "text": "some words", "metadata": {"x": 1}})
    body = {"metadata": {"x": 2}, "apply_to_chunks": False}
    assert (await client.patch(f"{PATH}/a", json=body)).json() == {"patched_records": 0}
    document = (await client.get(f"{PATH}/a")).json()
    assert document["metadata"] == {"x": 2}
    assert document["chunks"][0]["metadata"] == {"x": 1}


@pytest.mark.usefixtures("docs")
async def test_a_deleted_document_is_not_found_again(client: httpx.AsyncClient) -> None:
    await indexed(
        client,
        {"doc_id": "a", "text": "some words", "summary": "about words"},
        {"doc_id": "b", "text": "other words"},
    )
    deleted = await client.delete(f"{PATH}/a")
    assert deleted.status_code == 200
    assert deleted.json() == {"deleted_records": 2}
    assert await found(client, "words", scope="both") == ["b::0"]
    problem(await client.get(f"{PATH}/a"), 404)
    problem(await client.delete(f"{PATH}/a"), 404)
    problem(await client.patch(f"{PATH}/a", json={"metadata": {}}), 404)


def posting(**fields: Any) -> dict[str, Any]:
    return {"documents": [{"doc_id": "a", "text": "t"} | fields]}


DEEP: dict[str, Any] = {}
for _ in range(40):
    DEEP = {"a": DEEP}


@pytest.mark.usefixtures("docs")
@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"documents": []}, "/documents"),
        ({"documents": [{"doc_id": str(n), "text": "t"} for n in range(1001)]}, "/documents"),
        ({"documents": [{"text": "t"}]}, "/documents/0/doc_id"),
        ({"documents": [{"doc_id": "a"}]}, "/documents/0"),
        (posting(doc_id=""), "/documents/0/doc_id"),
        (posting(doc_id="a\x00"), "/documents/0/doc_id"),
        (posting(doc_id="x" * 513), "/documents/0/doc_id"),
        (posting(doc_id=7), "/documents/0/doc_id"),
        (posting(titel="t"), "/documents/0/titel"),
        (posting(metadata=[]), "/documents/0/metadata"),
        (posting(metadata=DEEP), "/documents/0/metadata"),
        (posting(metadata={"a\x00": 1}), "/documents/0/metadata"),
        (posting(metadata={"a": "x" * 70_000}), "/documents/0/metadata"),
        (posting(language="klingon"), "/documents/0/language"),
        (posting(chunks=[{"id": "c"}]), "/documents/0/chunks/0"),
        (posting(chunks=[{"id": "c", "vector": [1, "2"]}]), "/documents/0/chunks/0/vector/1"),
        (posting(chunks=[{"id": "c", "vector": [1, 2]}]), "/documents/0/chunks/0/vector"),
        (posting(chunks=[{"id": "c", "text": "t", "position": -1}]),
         "/documents/0/chunks/0/position"),
        ({**posting(), "mode": "append"}, "/mode"),
    ],
)  # fmt: skip
async def test_a_bad_document_is_named(
    client: httpx.AsyncClient, body: dict[str, Any], pointer: str
) -> None:
    assert pointers(await client.post(PATH, json=body)) == [pointer]
    assert (await client.get("/v1/collections/docs/jobs")).json()["total"] == 0


@pytest.mark.usefixtures("docs")
@pytest.mark.parametrize(
    "value", ["123456789012345678901234567890", "1e308", "-0.0", '"\\u0001"', "[[], {}, null]"]
)
async def test_odd_metadata_is_kept_or_refused(client: httpx.AsyncClient, value: str) -> None:
    content = '{"documents": [{"doc_id": "a", "text": "t", "metadata": {"v": ' + value + "}}]}"
    response = await client.post(
        f"{PATH}?wait=true", content=content, headers={"content-type": "application/json"}
    )
    assert response.status_code in (202, 400)
    if response.status_code == 202:
        assert response.json()["status"] == "done"
        assert (await client.get(f"{PATH}/a")).json()["metadata"].keys() == {"v"}


@pytest.mark.usefixtures("docs")
async def test_content_that_cannot_be_stored_is_cleaned_with_a_warning(
    client: httpx.AsyncClient,
) -> None:
    content = b'{"documents": [{"doc_id": "a", "text": "one\\u0000 two\\ud800 three"}]}'
    response = await client.post(f"{PATH}?wait=true", content=content)
    job = response.json()
    assert job["status"] == "done"
    assert len(job["warnings"]) == 1
    assert (await client.get(f"{PATH}/a")).json()["chunks"][0]["text"] == "one two three"


@pytest.mark.usefixtures("docs")
async def test_ids_that_cannot_be_stored_are_refused(client: httpx.AsyncClient) -> None:
    content = b'{"documents": [{"doc_id": "a\\ud800", "text": "one"}]}'
    assert pointers(await client.post(PATH, content=content)) == ["/documents/0/doc_id"]
    search = b'{"query": {"text": "a\\ud800"}}'
    problem(await client.post("/v1/collections/docs/search", content=search), 400)


@pytest.mark.usefixtures("docs")
@pytest.mark.parametrize(
    "body",
    [{}, {"metadata": None}, {"metadata": [1]}, {"metadata": {}, "apply_to_chunks": "yes"},
     {"metadata": DEEP}, {"metadata": {"a\x00": 1}}],
)  # fmt: skip
async def test_a_bad_patch_is_refused(client: httpx.AsyncClient, body: dict[str, Any]) -> None:
    await indexed(client, {"doc_id": "a", "text": "t"})
    (pointer,) = pointers(await client.patch(f"{PATH}/a", json=body))
    assert pointer in ("/metadata", "/apply_to_chunks")


@pytest.mark.usefixtures("docs")
async def test_a_search_tells_its_timings(client: httpx.AsyncClient) -> None:
    await indexed(client, {"doc_id": "a", "text": "some words"})
    response = await client.post("/v1/collections/docs/search", json={"query": {"text": "words"}})
    timings = dict(part.split(";dur=") for part in response.headers["server-timing"].split(", "))
    stages = response.json()["stages"]
    assert set(timings) == {*stages, "total"}
    for name, stage in stages.items():
        assert abs(float(timings[name]) - stage["ms"]) <= 0.05 + 1e-9


@pytest.mark.usefixtures("docs")
async def test_a_collection_key_indexes_and_searches_its_collection(
    client: httpx.AsyncClient,
) -> None:
    await new_collection(client, "other", collection_key=True)
    key = await new_key(client, "index", "search", collections=["docs"])
    posted = await client.post(f"{PATH}?wait=true", json=posting(), headers=key)
    assert posted.json()["status"] == "done"
    problem(await client.post("/v1/collections/other/documents", json=posting(), headers=key), 404)


@pytest.mark.usefixtures("docs")
async def test_a_job_of_another_collection_is_unknown(client: httpx.AsyncClient) -> None:
    job = await indexed(client, {"doc_id": "a", "text": "t"})
    await new_collection(client, "other")
    problem(await client.get(f"/v1/collections/other/jobs/{job['job_id']}"), 404)


@pytest.mark.usefixtures("docs")
async def test_a_collection_is_deleted_while_documents_pour_in(
    app: Litestar, client: httpx.AsyncClient
) -> None:
    """Either a request is taken before the end or it is 404; none breaks."""

    async def pour(number: int) -> int:
        body = {"documents": [{"doc_id": f"{number}-{n}", "text": "words"} for n in range(20)]}
        return (await client.post(PATH, json=body)).status_code

    async def end() -> int:
        return (await client.delete("/v1/collections/docs")).status_code

    statuses = await asyncio.gather(*(pour(n) for n in range(10)), end(), *(pour(n) for n in "ab"))
    assert statuses.count(204) == 1
    assert set(statuses) <= {202, 204, 404}
    problem(await client.get("/v1/collections/docs"), 404)


async def test_the_search_app_reads_what_the_indexing_app_wrote(dsn: str) -> None:
    async with serving(dsn, "index") as indexing, serving(dsn, "search") as searching:
        async with client_of(indexing) as client:
            await new_collection(client, "docs")
            await indexed(client, {"doc_id": "a", "text": "some words"})
        async with client_of(searching) as client:
            assert await found(client, "words") == ["a::0"]
            assert (await client.get(f"{PATH}/a")).json()["status"] == "ready"
            problem(await client.post(PATH, json=posting()), 405)
            problem(await client.delete(f"{PATH}/a"), 405)


@pytest.mark.usefixtures("docs")
@pytest.mark.parametrize("odd", [r"\u0000", r"\ud800", r"\udc00\u0000"])
async def test_a_patch_is_cleaned_as_a_document_is(client: httpx.AsyncClient, odd: str) -> None:
    await indexed(client, {"doc_id": "a", "text": "some words"})
    body = '{"metadata": {"v": "x' + odd + 'y", "w": [{"u": "' + odd + '"}]}}'
    patched = await client.patch(f"{PATH}/a", content=body)
    assert patched.json() == {"patched_records": 1}
    document = (await client.get(f"{PATH}/a")).json()
    assert document["metadata"] == {"v": "xy", "w": [{"u": ""}]}
    assert document["chunks"][0]["metadata"] == document["metadata"]
    key = '{"metadata": {"v' + odd + '": 1}}'
    assert pointers(await client.patch(f"{PATH}/a", content=key)) == ["/metadata"]


@pytest.mark.parametrize("method", ["POST", "PATCH"])
@pytest.mark.usefixtures("docs")
async def test_an_unknown_field_with_a_lone_surrogate_is_refused(
    client: httpx.AsyncClient, method: str
) -> None:
    path = PATH if method == "POST" else f"{PATH}/a"
    problem(await client.request(method, path, content=rb'{"\ud800": 1}'), 400)


@pytest.mark.parametrize("name", ["documents", "jobs", "search", "collections", "v1"])
async def test_a_collection_may_be_called_like_a_part_of_a_path(
    client: httpx.AsyncClient, name: str
) -> None:
    await new_collection(client, name)
    path = f"/v1/collections/{name}/documents"
    ids = ["x", f"{name}/x", "documents/x", "documents/documents/x"]
    for doc_id in dict.fromkeys(ids):
        body = {"documents": [{"doc_id": doc_id, "text": "some words"}]}
        await client.post(f"{path}?wait=true", json=body)
    for doc_id in dict.fromkeys(ids):
        for spelled in (doc_id, doc_id.replace("/", "%2F")):
            assert (await client.get(f"{path}/{spelled}")).json()["doc_id"] == doc_id
    await client.patch(f"{path}/x", json={"metadata": {"a": 1}})
    assert (await client.get(f"{path}/documents/x")).json()["metadata"] == {}
    assert (await client.delete(f"{path}/x")).json() == {"deleted_records": 1}
    problem(await client.get(f"{path}/x"), 404)
    assert (await client.get(f"{path}/documents/x")).status_code == 200
    assert (await client.get(f"/v1/collections/{name}/jobs")).json()["total"] > 0


@pytest.mark.usefixtures("docs")
@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        ({"text": "a", "chunking": {"size": 8}}, "/documents/0/chunking/size"),
        (
            {"text": "a", "chunking": {"size": 32, "overlap": 32}},
            "/documents/0/chunking/overlap",
        ),
        (
            {"chunks": [{"id": "c", "text": "a"}], "chunking": {"size": 32}},
            "/documents/0/chunking",
        ),
    ],
)
async def test_a_chunking_that_cannot_be_is_named(
    client: httpx.AsyncClient, document: dict[str, Any], pointer: str
) -> None:
    response = await client.post(PATH, json={"documents": [{"doc_id": "a", **document}]})
    assert pointers(response) == [pointer]
