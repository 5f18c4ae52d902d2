"""An app over a test's own database, and a client that speaks to it in process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
from litestar import Litestar
from support.hashed_embedder import HashedEmbedder

from service.app import Role, create_app_for
from service.providers.base import Embedder
from service.providers.embedders import Embedders
from service.providers.outbound import Accounts
from service.providers.registry import EmbedderOptions, create_embedder
from service.settings import Settings

ROOT_KEY = "root-key-of-the-tests"
ROOT = {"X-API-Key": ROOT_KEY}


def hashed_embedder(
    provider: str, model: str, dim: int | None, options: EmbedderOptions | None
) -> Embedder:
    if options is not None and options.account is not None:
        return create_embedder(provider, model, dim, options)
    return HashedEmbedder()


def hashed_embedders(settings: Settings, accounts: Accounts) -> Embedders:
    """Hashed n-grams instead of the bundled model; registered providers are real."""
    return Embedders(EmbedderOptions(), hashed_embedder, accounts)


@contextlib.asynccontextmanager
async def serving(dsn: str, role: Role = "all", **settings: Any) -> AsyncIterator[Litestar]:
    """An app with its lifespan entered."""
    given = {"database_url": dsn, "root_api_key": ROOT_KEY, "db_pool_size": 6, **settings}
    app = create_app_for(role, Settings(**given), hashed_embedders)
    async with _lifespan(app):
        yield app


@contextlib.asynccontextmanager
async def _lifespan(app: Litestar) -> AsyncIterator[None]:
    # In a task of its own, as under a server: fixtures begin and end in different tasks.
    started, stop = asyncio.Event(), asyncio.Event()

    async def run() -> None:
        async with app.lifespan():
            started.set()
            await stop.wait()

    task = asyncio.create_task(run())
    starting = asyncio.create_task(started.wait())
    await asyncio.wait([task, starting], return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        starting.cancel()
        await task
    try:
        yield
    finally:
        stop.set()
        await task


def client_of(app: Litestar, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
    """A client that acts as the root key unless told otherwise."""
    transport = httpx.ASGITransport(app)  # type: ignore[arg-type]
    return httpx.AsyncClient(
        transport=transport, base_url="http://braid", headers=ROOT if headers is None else headers
    )


def problem(response: httpx.Response, status: int) -> dict[str, Any]:
    """The problem in an answer, after checking that it is one."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    assert body["status"] == status
    assert body["type"].startswith("urn:braid:problem:")
    assert body["title"]
    assert body["detail"][0] != ":"
    return body


def pointers(response: httpx.Response) -> list[str]:
    """Where a 400 says the input is wrong."""
    return [error["pointer"] for error in problem(response, 400).get("errors", [])]


async def new_key(client: httpx.AsyncClient, *scopes: str, **fields: Any) -> dict[str, str]:
    """Headers of a fresh key with the scopes."""
    body = {"name": "a key", "scopes": list(scopes), **fields}
    response = await client.post("/v1/keys", json=body)
    assert response.status_code == 201, response.text
    return {"X-API-Key": response.json()["key"]}


async def new_collection(client: httpx.AsyncClient, name: str, **fields: Any) -> dict[str, Any]:
    """A collection without an embedder, unless told otherwise."""
    body = {"name": name, "embedding": {"provider": "none", "dim": 3}, **fields}
    response = await client.post("/v1/collections", json=body)
    assert response.status_code == 201, response.text
    created: dict[str, Any] = response.json()
    return created


@contextlib.asynccontextmanager
async def serving_with_local_model(dsn: str) -> AsyncIterator[Litestar]:
    """An app with the embedders that are installed."""
    settings = Settings(database_url=dsn, root_api_key=ROOT_KEY, db_pool_size=6)
    app = create_app_for("all", settings)
    async with _lifespan(app):
        yield app
