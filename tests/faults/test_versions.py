"""A document that is replaced while it is searched is always seen whole and in one version."""

import asyncio
from typing import Any

import httpx
import pytest
from support.api import client_of, new_collection, serving

VERSIONS = 25
CHUNKS = 12


@pytest.fixture
async def client(dsn: str) -> Any:
    async with serving(dsn) as app, client_of(app) as opened:
        await new_collection(opened, "live", embedding={"provider": "none"})
        yield opened


async def replace(client: httpx.AsyncClient, version: int) -> None:
    chunks = [
        {"id": f"{version}-{n}", "text": f"apple part {n}", "metadata": {"version": version}}
        for n in range(CHUNKS)
    ]
    document = {"doc_id": "d", "metadata": {"version": version}, "chunks": chunks}
    body = {"mode": "replace", "documents": [document]}
    posted = await client.post("/v1/collections/live/documents?wait=true", json=body)
    assert posted.json()["status"] == "done", posted.text


async def test_grouped_and_expanded_answers_hold_one_version(client: httpx.AsyncClient) -> None:
    await replace(client, 0)
    done = asyncio.Event()

    async def write() -> None:
        for version in range(1, VERSIONS):
            await replace(client, version)
        done.set()

    async def read() -> int:
        body = {
            "query": {"text": "apple"},
            "mode": "text",
            "k": 5,
            "group_by": "document",
            "expand": {"siblings_all": True},
            "timeout_ms": 60_000,
        }
        answers = 0
        while not done.is_set():
            response = await client.post("/v1/collections/live/search", json=body)
            (found,) = response.json()["documents"]
            records = [found, *found["chunks"]]
            for hit in found["chunks"]:
                siblings = hit["expansion"]["siblings"]
                assert len(siblings) == CHUNKS - 1
                assert hit["id"] not in {one["id"] for one in siblings}
                records += siblings
            assert len({one["metadata"]["version"] for one in records}) == 1
            answers += 1
        return answers

    _, *answers = await asyncio.gather(write(), read(), read())
    assert min(answers) > VERSIONS
