"""Stops the work on a search whose client has left, as far as the server tells."""

import asyncio
from typing import Any

from litestar.types import ASGIApp, Message, Receive, Scope, Send

PATIENCE_SECONDS = 0.1
"""Most searches are over before: they are not watched at all."""
CLIENT_LEFT = 499
"""What proxies write down for it; nobody receives it."""
WATCHED = ("/search", "/search/diagnose")


class Attended:
    """Cancels a search when its client is gone, and with it the statements it runs."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope.get("method") != "POST" or not scope["path"].endswith(WATCHED):
            await self._app(scope, receive, send)
            return
        watch = _Watch(receive, send)
        try:
            await self._app(scope, watch.receive, watch.send)
        except asyncio.CancelledError:
            if not watch.left:
                raise
            watch.task.uncancel()
            await send({"type": "http.response.start", "status": CLIENT_LEFT, "headers": []})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watch.end()


class _Watch:
    def __init__(self, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.left = False
        self._receive = receive
        self._send = send
        self._complete = False
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(PATIENCE_SECONDS, self._begin)
        self._watcher: asyncio.Task[None] | None = None

    async def receive(self) -> Any:
        message = await self._receive()
        self._complete = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        self.end()
        await self._send(message)

    def end(self) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()

    def _begin(self) -> None:
        if self._complete:
            self._watcher = self._loop.create_task(self._await_departure())
        else:  # whoever reads the body hears of it
            self._timer = self._loop.call_later(PATIENCE_SECONDS, self._begin)

    async def _await_departure(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.left = True
            self.task.cancel()
