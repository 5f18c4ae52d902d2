from collections.abc import AsyncIterator

import pytest
from litestar import Litestar
from support.api import serving


@pytest.fixture
async def app(dsn: str) -> AsyncIterator[Litestar]:
    async with serving(dsn) as app:
        yield app
