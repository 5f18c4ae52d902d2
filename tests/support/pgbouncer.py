"""PgBouncer in transaction mode in front of the tests' server; Debian's package brings it."""

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.db.embedded import EmbeddedPostgres
from service.db.server_account import server_account

SERVER_SESSIONS = 3
START_SECONDS = 30
CONFIG = """
[databases]
* = host={socket} port={port} user=postgres password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {listen}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {sessions}
min_pool_size = {sessions}
max_client_conn = 200
"""


def program() -> str:
    """Where PgBouncer is installed; the test is skipped where it is not."""
    found = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if found is None:
        pytest.skip("pgbouncer is not installed (on Debian: apt install pgbouncer)")
    return found


@contextlib.contextmanager
def pgbouncer(server: EmbeddedPostgres) -> Iterator[int]:
    """The port that it listens on."""
    account = server_account(server.root / "postgres")
    with (
        tempfile.TemporaryDirectory(prefix="braid-bouncer-") as folder,
        socket.socket() as probe,
    ):
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        probe.close()
        config = Path(folder) / "pgbouncer.ini"
        config.write_text(_config(server, port))
        account.take(Path(folder), 0o700)
        account.take(config, 0o600)
        process = subprocess.Popen([program(), "-q", str(config)], **account.popen_options())
        try:
            _await_port(port, process)
            yield port
        finally:
            process.terminate()
            process.wait()


def through(port: int, dsn: str) -> str:
    """The same database by way of PgBouncer."""
    name = urllib.parse.urlsplit(dsn).path
    return f"postgresql://postgres@127.0.0.1:{port}{name}"


def _config(server: EmbeddedPostgres, listen: int) -> str:
    url = urllib.parse.urlsplit(server.dsn())
    query = urllib.parse.parse_qs(url.query)
    password = urllib.parse.unquote(url.password or "")
    return CONFIG.format(
        socket=query["host"][0],
        port=query["port"][0],
        password=password,
        listen=listen,
        sessions=SERVER_SESSIONS,
    )


def _await_port(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, "pgbouncer ended"
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise AssertionError("pgbouncer does not listen")
