"""Fill a collection over the API and search it."""

from typing import Any

import httpx
from support.api import new_collection


async def fill(client: httpx.AsyncClient, name: str, documents: list[dict[str, Any]]) -> None:
    """Index documents and wait until they are searchable."""
    response = await client.post(
        f"/v1/collections/{name}/documents", json={"documents": documents}, params={"wait": "true"}
    )
    assert response.is_success, response.text
    job = await client.get(f"/v1/collections/{name}/jobs/{response.json()['job_id']}")
    assert job.json()["status"] == "done", job.text
    assert job.json()["counts"]["failed"] == 0, job.text


async def filled(
    client: httpx.AsyncClient, name: str, documents: list[dict[str, Any]], **fields: Any
) -> None:
    """A new collection, by default with client vectors of 3 dimensions, and its documents."""
    await new_collection(client, name, **fields)
    await fill(client, name, documents)


async def search(client: httpx.AsyncClient, name: str, **body: Any) -> dict[str, Any]:
    """The answer to a search that must succeed."""
    response = await client.post(f"/v1/collections/{name}/search", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def ids(answer: dict[str, Any]) -> list[str]:
    """Chunk ids of the hits, best first."""
    return [hit["id"] for hit in answer["hits"]]


def chunk(
    chunk_id: str, text: str, vector: list[float] | None = None, **fields: Any
) -> dict[str, Any]:
    """A chunk as a client posts it."""
    return {"id": chunk_id, "text": text, **({"vector": vector} if vector else {}), **fields}


def document(doc_id: str, *chunks: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A document of the client's own chunks."""
    return {"doc_id": doc_id, "chunks": list(chunks), **fields}
