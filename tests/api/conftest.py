from collections.abc import AsyncIterator

import httpx
import pytest
from litestar import Litestar
from support.api import client_of, serving


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[Litestar]:
    async with serving(dsn) as app:
        yield app


@pytest.fixture
async def client(app: Litestar) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(app) as client:
        yield client
