"""Reads what a refused client is still sending: it would not see the refusal otherwise."""

import asyncio
import contextlib
from typing import Any

from litestar.types import ASGIApp, Message, Receive, Scope, Send

DRAIN_BYTES = 50_000_000
DRAIN_SECONDS = 5.0


class Drained:
    """Before an error is answered, takes the rest of the body off the wire, within bounds.

    A server that answers and closes while the client writes resets the connection, and most
    clients then report the reset and not the answer.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        body = _Body(receive)

        async def send_after_body(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                await body.drain()
            await send(message)

        await self._app(scope, body.receive, send_after_body)


class _Body:
    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._complete = False

    async def receive(self) -> Any:
        message = await self._receive()
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def drain(self) -> None:
        left = DRAIN_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while not self._complete and left > 0:
                    body = (await self.receive()).get("body")
                    left -= len(body) if isinstance(body, bytes) else 0
