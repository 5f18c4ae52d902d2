"""A deadline for every request: a server does not notice that a client has left."""

import asyncio

from litestar.types import ASGIApp, Receive, Scope, Send

REQUEST_SECONDS = 60.0


class Deadline:
    """Cancels what takes too long, and with it the statement that the database works on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; raises `TimeoutError`."""
        async with asyncio.timeout(REQUEST_SECONDS):
            await self._app(scope, receive, send)
