"""The app over real sockets: granian in a process of its own, with the tests' embedder."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
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
    """Where the server listens, and its process."""

    url: str
    process: "subprocess.Popen[str]"


def create_app() -> Litestar:
    """The factory that granian calls."""
    settings = load_settings()
    configure_telemetry(settings)
    return create_app_for("all", settings, hashed_embedders)


@contextlib.contextmanager
def served(dsn: str, factory: str = "support.served:create_app") -> Iterator[Served]:
    """A server that has answered its first request, and is stopped at the end."""
    port = _free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("BRAID_")},
        "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
        "BRAID_DATABASE_URL": dsn,
        "BRAID_ROOT_API_KEY": ROOT_KEY,
    }
    command = [sys.executable, "-m", "granian", "--interface", "asgi", "--factory", "--no-ws"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--log-level", "error", factory]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _await_answer(url, process)
        yield Served(url, process)
    finally:
        stop(process)


def stop(process: "subprocess.Popen[str]") -> str:
    """Ask the server to end, and what it printed."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        output, _ = process.communicate(timeout=STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    except ValueError:  # its output has been read before
        return ""
    return output


def _await_answer(url: str, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(url + "/readyz").status_code == 200:
                return
        time.sleep(0.05)
    process.kill()
    raise AssertionError(f"the server did not start: {process.communicate()[0]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
