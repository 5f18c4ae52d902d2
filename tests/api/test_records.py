"""Listing and reading what is stored, over rows written as the worker writes them."""

import base64
import json
from typing import Any

import httpx
import msgspec
import pytest
from litestar import Litestar
from support.api import new_collection, new_key, pointers, problem

PATH = "/v1/collections/docs/documents"

INSERT_DOCUMENT = """
INSERT INTO braid.documents (team_id, collection_id, doc_id, status, title, metadata)
VALUES (1, (SELECT id FROM braid.collections WHERE name = 'docs'), $1, 'ready', $2, $3)
RETURNING id
"""
INSERT_RECORD = """
INSERT INTO braid.chunks (generation_id, team_id, document_id, type, chunk_id, doc_id, position,
    title, metadata, text, content_hash, embedding)
VALUES ((SELECT active_generation_id FROM braid.collections WHERE name = 'docs'), 1, $1, $2, $3,
    $4, $5, $6, $7, $8, decode(md5($8), 'hex'), $9::text::halfvec)
"""


async def store(app: Litestar, doc_id: str, *chunks: dict[str, Any], summary: str = "") -> None:
    async with app.state.services.database.administer() as connection:
        title = f"title of {doc_id}"
        document = await connection.fetchval(INSERT_DOCUMENT, doc_id, title, '{"a": 1}')
        for position, chunk in enumerate(chunks):
            await connection.execute(
                INSERT_RECORD,
                document,
                "chunk",
                f"{doc_id}::{position}",
                doc_id,
                position,
                title,
                json.dumps(chunk),
                f"text {position} of {doc_id}",
                "[1,0,0.5]",
            )
        if summary:
            arguments = (document, "summary", doc_id, doc_id, 0, title, "{}", summary, None)
            await connection.execute(INSERT_RECORD, *arguments)


@pytest.fixture
async def docs(app: Litestar, client: httpx.AsyncClient) -> None:
    await new_collection(client, "docs")
    await store(app, "b", {"n": 3}, {"n": 1}, summary="what b is about")
    await store(app, "a", {"n": 2, "src": "wiki"}, {"src": "web"})
    await store(app, "c/d", {"n": True})


def ids(page: dict[str, Any]) -> list[str]:
    return [record["id"] for record in page["records"]]


async def listed(client: httpx.AsyncClient, **parameters: Any) -> dict[str, Any]:
    response = await client.get(PATH, params=parameters)
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    return page


@pytest.mark.usefixtures("docs")
async def test_records_come_by_document_as_they_were_accepted(client: httpx.AsyncClient) -> None:
    page = await listed(client)
    assert ids(page) == ["b::0", "b", "b::1", "a::0", "a::1", "c/d::0"]
    assert page["total"] == 6
    assert page["next_cursor"] is None
    assert page["records"][3] == {
        "id": "a::0",
        "doc_id": "a",
        "type": "chunk",
        "position": 0,
        "text": "text 0 of a",
        "context": None,
        "title": "title of a",
        "source": None,
        "metadata": {"n": 2, "src": "wiki"},
        "start": None,
        "end": None,
        "headings": [],
    }


@pytest.mark.usefixtures("docs")
async def test_scope_and_filter_choose_records(client: httpx.AsyncClient) -> None:
    assert ids(await listed(client, scope="summaries")) == ["b"]
    assert (await listed(client, scope="chunks"))["total"] == 5
    page = await listed(client, filter=json.dumps({"n": {"gte": 2}}))
    assert ids(page) == ["b::0", "a::0"]
    assert page["total"] == 2
    assert ids(await listed(client, filter=json.dumps({"doc_id": ["a", "c/d"]}))) == [
        "a::0", "a::1", "c/d::0",
    ]  # fmt: skip


@pytest.mark.usefixtures("docs")
@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("doc_id", ["a::0", "a::1", "b::0", "b", "b::1", "c/d::0"]),
        ("-doc_id", ["c/d::0", "b::1", "b", "b::0", "a::1", "a::0"]),
        ("-title", ["c/d::0", "b::1", "b", "b::0", "a::1", "a::0"]),
        # Without the key first, then numbers, then booleans: the order of jsonb.
        ("n", ["b", "a::1", "b::1", "a::0", "b::0", "c/d::0"]),
        ("-n", ["c/d::0", "b::0", "a::0", "b::1", "a::1", "b"]),
        ("src", ["b::0", "b", "b::1", "c/d::0", "a::1", "a::0"]),
        ("position", ["b::0", "b", "a::0", "c/d::0", "b::1", "a::1"]),
        ("no such key", ["b::0", "b", "b::1", "a::0", "a::1", "c/d::0"]),
    ],
)
async def test_pages_follow_each_other_in_any_order(
    client: httpx.AsyncClient, sort: str, expected: list[str]
) -> None:
    assert ids(await listed(client, sort=sort)) == expected
    assert ids(await listed(client, sort=sort, limit=2, offset=1)) == expected[1:3]
    seen: list[str] = []
    parameters: dict[str, Any] = {}
    for _ in range(6):
        page = await listed(client, sort=sort, limit=1, **parameters)
        seen += ids(page)
        parameters = {"cursor": page["next_cursor"]}
    assert page["next_cursor"] is None
    assert seen == expected


@pytest.mark.usefixtures("docs")
async def test_the_default_order_has_cursors_too(client: httpx.AsyncClient) -> None:
    first = await listed(client, limit=4)
    second = await listed(client, limit=4, cursor=first["next_cursor"])
    assert ids(first) + ids(second) == ids(await listed(client))


KINDS: list[Any] = ["x" * 600 + "b", "x" * 600 + "a", "é", 3, 1.5, True, None, [1], {"a": 1}, ""]


@pytest.mark.parametrize("sort", [None, "n", "-n", "title", "-doc_id", "position"])
async def test_no_record_is_missed_or_seen_twice_while_others_come_and_go(
    app: Litestar, client: httpx.AsyncClient, sort: str | None
) -> None:
    await new_collection(client, "docs")
    for number, kind in enumerate(KINDS * 2):
        await store(app, f"stays-{number:02}", {"n": kind})
        await store(app, f"goes-{number:02}", {"n": kind})
    parameters = {"limit": 3, **({"sort": sort} if sort else {})}
    seen: list[str] = []
    for turn in range(30):
        page = await listed(client, **parameters)
        seen += ids(page)
        if page["next_cursor"] is None:
            break
        parameters["cursor"] = page["next_cursor"]
        # The very record that the cursor stands on goes too.
        gone = [page["records"][-1]["doc_id"], f"goes-{turn:02}"]
        await forget(app, [one for one in gone if one.startswith("goes")])
        await store(app, f"comes-{turn:02}", {"n": KINDS[turn % len(KINDS)]})
    assert page["next_cursor"] is None
    assert len(seen) == len(set(seen))
    assert {f"stays-{number:02}::0" for number in range(2 * len(KINDS))} <= set(seen)


async def forget(app: Litestar, doc_ids: list[str]) -> None:
    async with app.state.services.database.administer() as connection:
        await connection.execute("DELETE FROM braid.chunks WHERE doc_id = ANY($1)", doc_ids)
        await connection.execute("DELETE FROM braid.documents WHERE doc_id = ANY($1)", doc_ids)


@pytest.mark.parametrize(
    "values", [["\U0001f600" * 3000, "\x01" * 3000, 1e308, -1e308, [1] * 9000]]
)
async def test_a_cursor_past_a_huge_value_fits_into_a_url(
    app: Litestar, client: httpx.AsyncClient, values: list[Any]
) -> None:
    await new_collection(client, "docs")
    for number, value in enumerate(values):
        await store(app, f"{number}", {"n": value})
    parameters: dict[str, Any] = {"limit": 1, "sort": "n"}
    seen: list[str] = []
    for _ in values:
        page = await listed(client, **parameters)
        seen += ids(page)
        parameters["cursor"] = page["next_cursor"]
    # Strings, then numbers, then lists: by what they are before what they hold.
    assert seen == ["1::0", "0::0", "3::0", "2::0", "4::0"]


@pytest.mark.usefixtures("docs")
async def test_vectors_come_when_asked_for(client: httpx.AsyncClient) -> None:
    records = (await listed(client, include_vector="true", limit=2))["records"]
    assert [record["vector"] for record in records] == [[1.0, 0.0, 0.5], None]
    assert "vector" not in (await listed(client))["records"][0]


def cursor_of(*values: object) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(values)).decode()


@pytest.mark.usefixtures("docs")
@pytest.mark.parametrize(
    ("parameters", "pointer"),
    [
        ({"scope": "all"}, "/scope"),
        ({"filter": "{"}, "/filter"),
        ({"filter": "3"}, "/filter"),
        ({"filter": '{"a": {"like": 1}}'}, "/filter/a/like"),
        ({"filter": '{"a": "\\u0000"}'}, "/filter/a"),
        ({"filter": '{"a": "\\ud800"}'}, "/filter"),
        ({"filter": "[" * 10_000}, "/filter"),
        ({"sort": ""}, "/sort"),
        ({"sort": "-"}, "/sort"),
        ({"sort": "a\x00"}, "/sort"),
        ({"sort": "s" * 257}, "/sort"),
        ({"limit": 1001}, "/limit"),
        ({"include_vector": "yes"}, "/include_vector"),
        ({"cursor": "AAAA", "offset": 1}, "/offset"),
        ({"cursor": "not base64!"}, "/cursor"),
        ({"cursor": "é"}, "/cursor"),
        ({"cursor": ""}, "/cursor"),
        ({"cursor": cursor_of([None, False], None, -1, 0, 1)}, "/cursor"),
        ({"cursor": cursor_of([None, False], None, 2**63, 0, 1)}, "/cursor"),
        ({"cursor": cursor_of([None, False], '"x"', 1, 0, 1)}, "/cursor"),
        ({"cursor": cursor_of(["n", False], "1", 1, 0, 1)}, "/cursor"),
        ({"cursor": cursor_of(["n", False], None, 1, 0, 1), "sort": "n"}, "/cursor"),
        ({"cursor": cursor_of(["n", False], "no json", 1, 0, 1), "sort": "n"}, "/cursor"),
        ({"cursor": cursor_of(["n", False], '"\\u0000"', 1, 0, 1), "sort": "n"}, "/cursor"),
        ({"cursor": cursor_of(["n", False], '"\0"', 1, 0, 1), "sort": "n"}, "/cursor"),
        ({"cursor": cursor_of(["n", False], "1e999999", 1, 0, 1), "sort": "n"}, "/cursor"),
        ({"cursor": cursor_of(["n", False], "[" * 9999, 1, 0, 1), "sort": "n"}, "/cursor"),
    ],
)
async def test_a_bad_parameter_is_named(
    client: httpx.AsyncClient, parameters: dict[str, Any], pointer: str
) -> None:
    assert pointers(await client.get(PATH, params=parameters)) == [pointer]


@pytest.mark.usefixtures("docs")
async def test_a_document_is_read_with_its_chunks_and_summary(client: httpx.AsyncClient) -> None:
    document = (await client.get(f"{PATH}/b")).json()
    assert {key: document[key] for key in ("doc_id", "status", "title", "source", "metadata")} == {
        "doc_id": "b",
        "status": "ready",
        "title": "title of b",
        "source": None,
        "metadata": {"a": 1},
    }
    assert [chunk["id"] for chunk in document["chunks"]] == ["b::0", "b::1"]
    assert document["summary"]["text"] == "what b is about"
    assert "failure_reason" not in document
    assert (await client.get(f"{PATH}/a")).json()["summary"] is None
    problem(await client.get(f"{PATH}/none"), 404)


async def test_a_failed_document_says_why(app: Litestar, client: httpx.AsyncClient) -> None:
    await new_collection(client, "docs")
    await store(app, "bad")
    async with app.state.services.database.administer() as connection:
        await connection.execute(
            "UPDATE braid.documents SET status = 'error', failure_reason = 'nothing to index'"
        )
    document = (await client.get(f"{PATH}/bad")).json()
    assert document["status"] == "error"
    assert document["failure_reason"] == "nothing to index"
    assert document["chunks"] == []


@pytest.mark.parametrize(
    "doc_id",
    ["a/b", "a//b", "/a", "a/", "https://x.org/y?z=1#f", "a b", "a%2Fb", "ü", "日本", "..",
     "documents/x", "a;b", "a&b=c", "+", "a:b", "{x}"],
)  # fmt: skip
async def test_any_id_is_found_as_it_was_given(
    app: Litestar, client: httpx.AsyncClient, doc_id: str
) -> None:
    await new_collection(client, "docs")
    await store(app, doc_id, {})
    encoded = "".join(f"%{byte:02X}" for byte in doc_id.encode())
    response = await client.get(f"{PATH}/{encoded}")
    assert response.status_code == 200, response.text
    assert response.json()["doc_id"] == doc_id


@pytest.mark.usefixtures("docs")
async def test_a_slash_in_an_id_may_be_sent_as_it_is(client: httpx.AsyncClient) -> None:
    assert (await client.get(f"{PATH}/c/d")).json()["doc_id"] == "c/d"


@pytest.mark.usefixtures("docs")
@pytest.mark.parametrize("doc_id", ["a%00", "%FF", "x" * 513])
async def test_an_id_that_can_be_none_is_refused(client: httpx.AsyncClient, doc_id: str) -> None:
    assert pointers(await client.get(f"{PATH}/{doc_id}")) == ["/doc_id"]


@pytest.mark.usefixtures("docs")
async def test_records_of_another_team_or_collection_stay_hidden(
    client: httpx.AsyncClient,
) -> None:
    await new_collection(client, "other")
    await client.post("/v1/teams", json={"name": "rivals"})
    assert (await client.get("/v1/collections/other/documents")).json()["total"] == 0
    problem(await client.get("/v1/collections/other/documents/a"), 404)
    problem(await client.get(PATH, headers={"X-Team": "rivals"}), 404)
    key = await new_key(client, "search", collections=["other"])
    problem(await client.get(PATH, headers=key), 404)


@pytest.mark.usefixtures("docs")
async def test_an_unknown_job_is_404(client: httpx.AsyncClient) -> None:
    problem(await client.get("/v1/collections/docs/jobs/1"), 404)
    assert pointers(await client.get("/v1/collections/docs/jobs/x")) == ["/job_id"]
    assert (await client.get("/v1/collections/docs/jobs")).json() == {"jobs": [], "total": 0}
