"""Streaming replicas of an embedded server: copied with pg_basebackup, run as it is."""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from service.db.embedded import EmbeddedPostgres
from service.db.guarded_process import GuardedProcess
from service.db.postgres_tree import find_tree, runnable
from service.db.server_account import server_account

REPLICATED = {
    "wal_level": "replica",
    "max_wal_senders": "8",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
}
START_SECONDS = 60


class ReplicaServer:
    """A hot standby in `root`, on a socket of its own."""

    def __init__(self, primary: EmbeddedPostgres, root: Path) -> None:
        self._primary = primary
        self._root = root
        self._data = root / "postgres"
        self._sockets = root / "sockets"
        self._process: GuardedProcess | None = None
        self._account = server_account(primary.root / "postgres")
        tree, _ = runnable(find_tree(None), self._account, primary.root / "postgres.programs")
        self._bindir = tree.bindir
        for folder in (root, self._sockets):
            folder.mkdir(exist_ok=True)
            self._account.take(folder, 0o700)

    def copy(self) -> None:
        """Take a base backup of the primary, with all that a standby needs."""
        command = [self._bindir / "pg_basebackup", "--pgdata", self._data, "--checkpoint=fast"]
        command += ["--write-recovery-conf", "--no-sync", "--dbname", self._primary.dsn()]
        done = self._account.run(command)
        assert done.returncode == 0, done.stderr

    def start(self) -> None:
        """Run it; it answers queries when this returns."""
        settings = REPLICATED | {
            "listen_addresses": "",
            "unix_socket_directories": str(self._sockets),
            "dynamic_shared_memory_type": "mmap",
            "max_connections": "100",
        }
        command = [str(self._bindir / "postgres"), "-D", str(self._data)]
        command += [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        with (self._root / "log").open("ab") as log:
            self._process = GuardedProcess(command, account=self._account, output=log.fileno())
        deadline = time.monotonic() + START_SECONDS
        while self._state() not in ("ready", "standby"):
            assert self._process.poll() is None, (self._root / "log").read_text()
            assert time.monotonic() < deadline, "the replica did not start"
            time.sleep(0.01)

    def dsn(self, database: str) -> str:
        login = self._primary.dsn(database).partition("?")[0]
        return f"{login}?host={self._sockets}&port=5432"

    def socket_folder(self) -> Path:
        return self._sockets

    def kill(self) -> None:
        """End it as a power cut does."""
        os.kill(self._pid(), signal.SIGKILL)
        assert self._process is not None
        self._process.wait(START_SECONDS)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop()

    def freeze(self) -> None:
        """Let every one of its processes stand still: it takes connections and never answers."""
        for pid in self._pids():
            os.kill(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        for pid in self._pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _pids(self) -> list[int]:
        pid = self._pid()
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [pid, *map(int, children)]

    def _pid(self) -> int:
        return int((self._data / "postmaster.pid").read_text().splitlines()[0])

    def _state(self) -> str:
        with contextlib.suppress(FileNotFoundError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            return lines[7].strip() if len(lines) > 7 else ""
        return ""


@contextlib.contextmanager
def replicated_primary() -> Iterator[EmbeddedPostgres]:
    """A server of its own that replicas may follow."""
    with tempfile.TemporaryDirectory(prefix="braid-primary-", ignore_cleanup_errors=True) as folder:
        primary = EmbeddedPostgres(Path(folder), settings=REPLICATED)
        primary.start()
        try:
            yield primary
        finally:
            primary.stop()


@contextlib.contextmanager
def replica_of(primary: EmbeddedPostgres) -> Iterator[ReplicaServer]:
    """A running replica of it."""
    with tempfile.TemporaryDirectory(prefix="braid-replica-", ignore_cleanup_errors=True) as folder:
        replica = ReplicaServer(primary, Path(folder))
        try:
            replica.copy()
            replica.start()
            yield replica
        finally:
            replica.stop()
