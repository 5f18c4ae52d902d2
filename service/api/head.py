"""HEAD for the pages that probes and load balancers ask for without a body."""

from litestar.types import ASGIApp, Message, Receive, Scope, Send

PATHS = frozenset({"/livez", "/healthz", "/readyz", "/metrics", "/schema", "/schema/openapi.json"})


class Headed:
    """Answers HEAD as GET would be answered, without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def send_without_body(message: Message) -> None:
            if message["type"] == "http.response.body":
                message["body"] = b""
            await send(message)

        if scope.get("method") == "HEAD" and scope["path"] in PATHS:
            scope["method"] = "GET"  # type: ignore[typeddict-unknown-key]
            await self._app(scope, receive, send_without_body)
        else:
            await self._app(scope, receive, send)
