"""A process that is about to stop: it still serves, but asks for no more."""

import threading

from litestar.types import ASGIApp, Message, Receive, Scope, Send


class Leaving:
    """Once `leaving` is set, ends each HTTP/1 connection with the answer that it carries.

    A connection that is kept alive would be closed while its client sends the next request.
    """

    def __init__(self, app: ASGIApp, leaving: threading.Event) -> None:
        self._app = app
        self._leaving = leaving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def send_and_close(message: Message) -> None:
            if message["type"] == "http.response.start" and self._leaving.is_set():
                message["headers"] = [*message["headers"], (b"connection", b"close")]
            await send(message)

        one = scope["http_version"].startswith("1")
        await self._app(scope, receive, send_and_close if one else send)
