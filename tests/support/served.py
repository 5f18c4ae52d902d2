"""The app over real sockets: granian in a process of its own, with the tests' embedder."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
from litestar import Litestar
from support.api import ROOT_KEY, hashed_embedders

from service.app import create_app_for
from service.settings import load_settings
from service.telemetry import configure_telemetry

TESTS = Path(__file__).parent.parent
START_SECONDS = 60
STOP_SECONDS = 30


class Served(NamedTuple):
    """Where the server listens, its process, and the file that holds what it prints."""

    url: str
    process: "subprocess.Popen[bytes]"
    log: Path


def create_app() -> Litestar:
    """The factory that granian calls."""
    settings = load_settings()
    telemetry = configure_telemetry(settings)
    app = create_app_for("all", settings, hashed_embedders)
    app.on_shutdown.append(telemetry.shutdown)
    return app


def child_environment(dsn: str, **settings: str) -> dict[str, str]:
    """This process's environment with these settings and no others."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("BRAID_")},
        "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
        "BRAID_DATABASE_URL": dsn,
        "BRAID_ROOT_API_KEY": ROOT_KEY,
        **{f"BRAID_{name.upper()}": value for name, value in settings.items()},
    }


@contextlib.contextmanager
def served(
    dsn: str, factory: str = "support.served:create_app", **settings: str
) -> Iterator[Served]:
    """A server that has answered its first request, and is stopped at the end."""
    port = _free_port()
    environment = child_environment(dsn, **settings)
    command = [sys.executable, "-m", "granian", "--interface", "asgi", "--factory", "--no-ws"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--log-level", "error", factory]
    # Into a file: a pipe that nobody reads would stop the server when it is full.
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        running = Served(f"http://127.0.0.1:{port}", process, log)
        try:
            _await_answer(running)
            yield running
        finally:
            stop(running)


def stop(running: Served) -> str:
    """Ask the server to end; what it has printed."""
    running.process.terminate()
    try:
        running.process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        running.process.kill()
        raise
    return running.log.read_text()


def _await_answer(running: Served) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and running.process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(running.url + "/readyz").status_code == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"the server did not start: {running.log.read_text()}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
