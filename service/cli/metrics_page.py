"""`/metrics` of a process that serves nothing else."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from service.cli.console import CommandError
from service.metrics import TEXT_FORMAT, prometheus_text


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answer `/metrics`, and nothing else."""
        found = self.path == "/metrics"
        body = prometheus_text().encode() if found else b""
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", TEXT_FORMAT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing: scrapes are no news."""


@contextlib.contextmanager
def serving_metrics(host: str, port: int | None) -> Iterator[None]:
    """Serve the page from a thread; nothing without a port. Raises `CommandError`."""
    if port is None:
        yield
        return
    try:
        server = ThreadingHTTPServer((host, port), _Page)
    except OSError as error:
        raise CommandError(f"cannot serve metrics on port {port}") from error
    thread = threading.Thread(target=server.serve_forever, name="metrics page", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
