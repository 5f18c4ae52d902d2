"""The HTTP server: granian with one worker process that never outlives its owner."""

import errno
import multiprocessing
import os
import signal
import socket
import sys
import threading
from importlib import import_module
from typing import Any, Literal

from granian.constants import HTTPModes, Interfaces
from granian.log import LogLevels
from granian.server.mp import MPServer

from service.cli.console import CommandError, complain
from service.errors import ConfigurationError
from service.telemetry import JsonLines

Role = Literal["search", "index", "all"]

FACTORIES: dict[Role, str] = {
    "search": "create_search_app",
    "index": "create_indexing_app",
    "all": "create_app",
}
STOP_SECONDS = 15
LEAVE = signal.SIGUSR1


LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": JsonLines}},
    "handlers": {
        "out": {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stdout"}
    },
    "loggers": {"_granian": {"handlers": ["out"], "propagate": False}},
}


def free_port(host: str, port: int) -> int:
    """`port` if nothing listens on it, a free one for 0; raises `CommandError`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            # Without SO_REUSEPORT, which the server sets: a second server would share the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return int(probe.getsockname()[1])
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CommandError(
                f"port {port} is in use: choose another with --port, 0 takes a free one"
            ) from error
        why = (error.strerror or str(error)).lower()
        raise CommandError(f"cannot listen on {host}, port {port}: {why}") from error


class Draining(MPServer):
    """Told to stop, it goes on serving for a while in which everybody learns of it."""

    def __init__(self, *arguments: Any, drain_seconds: float, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._drain_seconds = drain_seconds
        self._leaving = False

    def signal_handler_interrupt(self, *_signal: Any, **_options: Any) -> None:
        """Tell the workers and stop later; at the second time stop at once."""
        if self._leaving or not self._drain_seconds:
            super().signal_handler_interrupt()  # type: ignore[no-untyped-call]
            return
        self._leaving = True
        for worker in self.wrks:
            os.kill(worker.inner.pid, LEAVE)
        timer = threading.Timer(self._drain_seconds, super().signal_handler_interrupt)
        timer.daemon = True
        timer.start()


def run_server(role: Role, host: str, port: int, *, drain_seconds: float = 0.0) -> None:
    """Serve until SIGINT or SIGTERM and a while after; the settings come from the environment."""
    Draining(
        FACTORIES[role],
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        http=HTTPModes.auto,
        websockets=False,
        log_level=LogLevels.error,
        log_dictconfig=LOGGING,
        workers_kill_timeout=STOP_SECONDS,
        drain_seconds=drain_seconds,
    ).serve(target_loader=load_app)


def load_app(factory: str) -> Any:
    """The app, in the worker process."""
    threading.Thread(target=_end_with_owner, daemon=True).start()
    try:
        app = getattr(import_module("service.app"), factory)()
    except (ConfigurationError, ImportError) as error:
        complain(str(error))
        sys.exit(1)
    signal.signal(LEAVE, lambda _number, _frame: app.state.leaving.set())
    return app


def _end_with_owner() -> None:
    """Stop this process when the one that started it is gone: nobody else would."""
    if owner := multiprocessing.parent_process():
        owner.join()
        os.kill(os.getpid(), signal.SIGTERM)
