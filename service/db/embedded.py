"""The embedded server: PostgreSQL as a child of this process, with its rows in one folder."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from service.db.cluster import Cluster, reason
from service.db.guarded_process import GuardedProcess
from service.db.machine_memory import maintenance_mb, memory_bytes
from service.db.owner_lock import OwnerLock
from service.db.postgres_tree import PostgresTree, find_tree, runnable
from service.db.server_account import EmbeddedError, ServerAccount, server_account
from service.db.server_record import (
    ServerRecord,
    await_no_server,
    end_orphans,
    is_running,
    read_record,
)

__all__ = ["EmbeddedError", "EmbeddedPostgres", "PostgresTree", "default_data_dir", "find_tree"]

SETTINGS = {
    # Containers have 64 MB of /dev/shm, too little for a parallel HNSW build.
    "dynamic_shared_memory_type": "mmap",
    "shared_buffers": "256MB",
    "max_connections": "100",
    "random_page_cost": "1.1",
    # Nothing replicates from this server: its log only has to survive a crash.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "wal_compression": "on",
    # An error goes to the client that caused it; statements and rows stay out of the log.
    "log_min_messages": "log",
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_checkpoints": "off",
}
LOG_BYTES = 1_000_000
SOCKET_PORT = 5432
# sun_path holds 104 bytes on macOS and 108 on Linux, with the closing NUL.
SOCKET_DIR_BYTES = 104 - len("/.s.PGSQL.65535\0")
_POLL_SECONDS = 0.01
_RETRY_SECONDS = 0.1
# Both pass: sessions outlive a killed server for a moment, another process took the free port.
_PASSING = ("pre-existing shared memory block", "could not create any TCP/IP sockets")


def default_data_dir() -> Path:
    """Where data lives if nobody chose: `/var/lib/braid` for root, else the user's data folder.

    Root's own home is closed to the account that the server steps down to.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/braid")
    chosen = Path(os.environ.get("XDG_DATA_HOME", ""))
    if chosen.is_absolute():
        return chosen / "braid"
    try:
        return Path.home() / ".local/share/braid"
    except RuntimeError as error:
        raise EmbeddedError("this account has no home folder: set BRAID_DATA_DIR") from error


class EmbeddedPostgres:
    """A PostgreSQL server that starts and ends with this process and keeps its rows in `root`.

    A second process with the same `root` attaches to the running server and never stops it.
    """

    def __init__(
        self,
        root: Path,
        *,
        tree: PostgresTree | None = None,
        port: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        # The folder may hold other things: all that is the server's is called postgres.
        self.root = root.expanduser().resolve()
        self.log = self.root / "postgres.log"
        self._cluster = Cluster(self.root / "postgres", self.root / "postgres.password")
        self._socket_dir = self.root / "postgres.socket"
        self._programs = self.root / "postgres.programs"
        self._lock = OwnerLock(self.root / "postgres.lock")
        self._tree = tree
        self._wanted_port = port
        self._settings = dict(settings or {})
        self._port = 0
        self._server: GuardedProcess | None = None

    @property
    def attached(self) -> bool:
        """Whether another process owns the server that `dsn` leads to."""
        return self._port != 0 and not self._lock.held

    def start(self, timeout: float = 60.0) -> str:
        """Start the server, again if it died, or attach to it; the DSN of database `postgres`.

        Blocks, about a second the first time and 0.1 s later; raises `EmbeddedError`.
        """
        if not self._runs():
            self.stop()
            try:
                self._start(time.monotonic() + timeout)
            except OSError as error:
                why = f"{error.filename or self.root}: {(error.strerror or str(error)).lower()}"
                raise EmbeddedError(
                    f"cannot keep data in {self.root} ({why}): set BRAID_DATA_DIR"
                ) from error
        return self.dsn()

    def _runs(self) -> bool:
        # A server just killed is gone a moment before its guard notices.
        if self._server is None or self._server.poll() is not None:
            return False
        record = read_record(self._cluster.data)
        return record is not None and is_running(record.pid, self._cluster.data)

    def stop(self) -> None:
        """Stop the server; an attached one, or one inherited by a fork, is only forgotten."""
        if self._lock.held:
            self._lock.withdraw()
            if self._server is not None:
                self._server.stop()
            self._lock.release()
        self._server = None
        self._port = 0

    def dsn(self, database: str = "postgres") -> str:
        """Connection string, by unix socket where its path is short enough, else 127.0.0.1."""
        if self._port == 0:
            raise EmbeddedError("the embedded server is not running")
        login = f"postgresql://postgres:{quote(self._cluster.password(), safe='')}"
        name = quote(database, safe="")
        if not self._has_socket():
            return f"{login}@127.0.0.1:{self._port}/{name}"
        folder = quote(os.fsencode(self._socket_dir), safe="")
        return f"{login}@/{name}?host={folder}&port={self._port}"

    def _by_socket_only(self) -> bool:
        return self._has_socket() and self._wanted_port == 0

    def _has_socket(self) -> bool:
        path = os.fsencode(self._socket_dir)
        # Clients take a comma for the end of the path, the server a double quote.
        return len(path) <= SOCKET_DIR_BYTES and not set(b',"') & set(path)

    def _start(self, deadline: float) -> None:
        account = server_account(self._cluster.data)
        self._open_root(account)
        while not self._lock.take():
            if (port := self._lock.published()) is not None:
                self._port = port
                return
            if time.monotonic() > deadline:
                raise EmbeddedError(f"another process is starting the server of {self.root}")
            time.sleep(_POLL_SECONDS)
        try:
            self._start_owned(account, deadline)
        except BaseException:
            self.stop()
            raise

    def _open_root(self, account: ServerAccount) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not account.switch or account.can_enter(self.root):
            return
        os.chown(self.root, -1, account.gid)
        self.root.chmod(self.root.stat().st_mode & 0o777 | 0o010)
        if not account.can_enter(self.root):
            above = reversed(self.root.parents)
            closed = next(folder for folder in above if not account.can_enter(folder))
            raise EmbeddedError(
                f"root runs postgres as {account.name}, which may not enter {closed}: set "
                f"BRAID_DATA_DIR to a folder elsewhere, such as {default_data_dir()}"
            )

    def _start_owned(self, account: ServerAccount, deadline: float) -> None:
        tree = self._tree or find_tree(None)
        tree, version = runnable(tree, account, self._programs)
        sync = self._settings.get("fsync", "on") != "off"
        self._cluster.ensure(tree, version, account, sync=sync, deadline=deadline)
        self._socket_dir.mkdir(exist_ok=True)
        account.take(self._socket_dir, 0o700)
        while True:
            port = self._choose_port()
            command = [str(tree.bindir / "postgres"), *self._arguments(tree, port)]
            failure = self._launch(command, account, deadline)
            if failure is None:
                break
            if time.monotonic() > deadline or not failure.startswith(_PASSING):
                raise EmbeddedError(f"postgres did not start: {failure} (see {self.log})")
            end_orphans(self._cluster.data)
            time.sleep(_RETRY_SECONDS)
        self._lock.publish(port)
        self._port = port

    def _choose_port(self) -> int:
        if self._by_socket_only():
            return SOCKET_PORT
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self._wanted_port))
            except OSError as error:
                why = (error.strerror or str(error)).lower()
                raise EmbeddedError(f"cannot listen on port {self._wanted_port}: {why}") from error
            return int(probe.getsockname()[1])

    def _arguments(self, tree: PostgresTree, port: int) -> list[str]:
        settings = SETTINGS | {
            "maintenance_work_mem": f"{maintenance_mb(memory_bytes())}MB",
            "listen_addresses": "" if self._by_socket_only() else "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": f'"{self._socket_dir}"' if self._has_socket() else "",
            "unix_socket_permissions": "0700",
        }
        if tree.has_library("pg_stat_statements"):
            settings["shared_preload_libraries"] = "pg_stat_statements"
        settings |= self._settings
        pairs = [("-c", f"{name}={value}") for name, value in settings.items()]
        return ["-D", str(self._cluster.data), *(word for pair in pairs for word in pair)]

    def _launch(self, command: list[str], account: ServerAccount, deadline: float) -> str | None:
        """Run the server until it is ready; the reason if it gave up."""
        killed = await_no_server(self._cluster.data, deadline)
        for left in self._socket_dir.glob(".s.PGSQL.*"):
            left.unlink()
        log = self._open_log()
        try:
            said_before = os.fstat(log).st_size
            self._server = GuardedProcess(
                command, account=account, output=log, environment=_skip_pid_check(killed)
            )
        finally:
            os.close(log)
        while self._server.poll() is None:
            record = read_record(self._cluster.data)
            if record and record.ready and (killed is None or record.written != killed.written):
                return None
            if time.monotonic() > deadline:
                raise EmbeddedError(f"postgres was not ready in time (see {self.log})")
            time.sleep(_POLL_SECONDS)
        self._server.stop()
        with self.log.open("rb") as file:
            file.seek(said_before)
            return reason(file.read().decode(errors="replace").splitlines())

    def _open_log(self) -> int:
        if self.log.exists() and self.log.stat().st_size > LOG_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        return os.open(self.log, flags, 0o600)


def _skip_pid_check(killed: ServerRecord | None) -> dict[str, str]:
    # The server refuses to start while the recorded pid exists, even as a zombie or as another
    # program. This variable makes it skip that one check; the one of shared memory stays.
    return {} if killed is None else {"PG_GRANDPARENT_PID": str(killed.pid)}
