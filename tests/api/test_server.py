"""The same app over real sockets, where paths, bodies and endings are the server's."""

import asyncio
import json
import socket
import urllib.parse
from collections.abc import Iterator

import asyncpg
import httpx
import pytest
from support.api import ROOT, new_collection, problem
from support.served import Served, served, stop


@pytest.fixture
def server_of_app(dsn: str) -> Iterator[Served]:
    with served(dsn) as running:
        yield running


def raw(url: str, request: bytes) -> bytes:
    """What the server answers to bytes that no client would send."""
    address = urllib.parse.urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        connection.sendall(request)
        answer = b""
        while chunk := connection.recv(65536):
            answer += chunk
    return answer


async def test_the_app_serves_over_sockets(server_of_app: Served, dsn: str) -> None:
    async with httpx.AsyncClient(base_url=server_of_app.url, headers=ROOT) as client:
        await new_collection(client, "docs")
        await _exact_ids(client, dsn)
        await _limits(client)
        await _many_at_once(client)
    _odd_bytes(server_of_app.url)
    output = stop(server_of_app)
    assert server_of_app.process.returncode == 0
    _check_log(output)


async def _exact_ids(client: httpx.AsyncClient, dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    for doc_id in ("a//b/", "https://x.org/y?z#f", "日本 %2F"):
        await connection.execute(
            "INSERT INTO braid.documents (team_id, collection_id, doc_id)"
            " SELECT 1, id, $1 FROM braid.collections",
            doc_id,
        )
        path = f"/v1/collections/docs/documents/{urllib.parse.quote(doc_id, safe='')}"
        response = await client.get(path)
        assert response.status_code == 200, response.text
        assert response.json()["doc_id"] == doc_id
    await connection.close()
    problem(await client.get("/v1/collections/docs/documents/%FF"), 400)
    problem(await client.get("/v1/collections/%FF"), 400)
    problem(await client.get("/v1/collections/docs/documents?sort=%FF%00"), 400)


async def _limits(client: httpx.AsyncClient) -> None:
    async def chunks():  # type: ignore[no-untyped-def]
        for _ in range(11):
            yield b" " * 1_000_000

    problem(await client.post("/v1/teams", content=b" " * 10_000_001), 413)
    problem(await client.post("/v1/teams", content=chunks()), 413)
    problem(await client.get("/nothing"), 404)
    problem(await client.put("/v1/teams"), 405)


async def _many_at_once(client: httpx.AsyncClient) -> None:
    responses = await asyncio.gather(*(client.get("/v1/collections") for _ in range(50)))
    assert {response.status_code for response in responses} == {200}


def _odd_bytes(url: str) -> None:
    key = ROOT["X-API-Key"].encode()
    head = b" HTTP/1.1\r\nHost: braid\r\nConnection: close\r\nX-API-Key: " + key + b"\r\n"
    for path in (b"/v1/collections/\xff\xfe", b"/v1/collections?limit=\xff", b"//", b"/%"):
        assert b" 4" in raw(url, b"GET " + path + head + b"\r\n").split(b"\r\n")[0]
    body = head + b"Content-Length: 20\r\nContent-Type: \xff\xfe\r\n\r\n" + b'{"name": "abcdefgh"}'
    assert b" 400 " in raw(url, b"POST /v1/teams" + body).split(b"\r\n")[0]
    assert b" 401 " in raw(
        url, b"GET /v1/teams HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-API-Key: \xff\r\n\r\n"
    )


def _check_log(output: str) -> None:
    lines = [json.loads(line) for line in output.splitlines()]
    assert {line["event"] for line in lines} == {"started", "request"}
    assert all(line["status"] < 500 for line in lines if line["event"] == "request")
    assert all("trace_id" in line for line in lines if line["event"] == "request")
    assert "abcdefgh" not in output
    assert ROOT["X-API-Key"] not in output
