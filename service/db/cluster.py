"""A data directory: how it is made, which version made it, and its superuser's password."""

import os
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from service.db.guarded_process import GuardedProcess
from service.db.postgres_tree import PostgresTree
from service.db.server_account import LOCALE, EmbeddedError, ServerAccount

_BUILTIN_LOCALE = ("--locale-provider=builtin", "--builtin-locale=C.UTF-8")
_FIRST_WITH_BUILTIN_LOCALE = 17
_REMOVALS, _REMOVAL_SECONDS = 50, 0.02


class Cluster:
    """The data directory `data` and, beside it, the file with the superuser's password."""

    def __init__(self, data: Path, password_file: Path) -> None:
        self.data = data
        self._password_file = password_file

    def password(self) -> str:
        """The superuser's password."""
        return self._password_file.read_text()

    def ensure(
        self,
        tree: PostgresTree,
        version: int,
        account: ServerAccount,
        *,
        sync: bool,
        deadline: float,
    ) -> None:
        """Create the cluster unless it exists, made by the same major version."""
        self._remove_leftovers()
        if self.data.exists():
            self._check_version(version)
            return
        if not account.has_passwd_entry():
            raise EmbeddedError(
                f"initdb needs a passwd entry for {account.name}: add one, run as another user "
                "or set BRAID_DATABASE_URL"
            )
        self._write_password(account)
        locale = _BUILTIN_LOCALE if version >= _FIRST_WITH_BUILTIN_LOCALE else ()
        options = (*locale, *(() if sync else ("--no-sync",)))
        self._create(tree, account, options, deadline)

    def _remove_leftovers(self) -> None:
        # An initdb that is just ending removes its files too, or makes a last one.
        for _ in range(_REMOVALS):
            leftovers = list(self.data.parent.glob(f"{self.data.name}.new.*"))
            if not leftovers:
                return
            for leftover in leftovers:
                shutil.rmtree(leftover, ignore_errors=True)
            time.sleep(_REMOVAL_SECONDS)

    def _check_version(self, version: int) -> None:
        made_by = (self.data / "PG_VERSION").read_text().strip()
        if made_by != str(version):
            raise EmbeddedError(
                f"{self.data} was made by PostgreSQL {made_by} and {version} cannot read it: "
                "set BRAID_PG_BINDIR to that version or choose another BRAID_DATA_DIR"
            )

    def _write_password(self, account: ServerAccount) -> None:
        self._password_file.unlink(missing_ok=True)
        self._password_file.touch(mode=0o600, exist_ok=False)
        with self._password_file.open("w") as file:
            file.write(secrets.token_urlsafe(24))
            file.flush()
            os.fsync(file.fileno())
        account.take(self._password_file, 0o600)

    def _create(
        self, tree: PostgresTree, account: ServerAccount, options: tuple[str, ...], deadline: float
    ) -> None:
        fresh = Path(tempfile.mkdtemp(prefix=f"{self.data.name}.new.", dir=self.data.parent))
        command: list[str | Path] = [
            tree.bindir / "initdb",
            f"--pgdata={fresh}",
            "--username=postgres",
            f"--pwfile={self._password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            f"--locale={LOCALE}",
            "--set=dynamic_shared_memory_type=mmap",
            *options,
        ]
        try:
            account.take(fresh, 0o700)
            _run_guarded(command, account, deadline)
            fresh.rename(self.data)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        _sync_folder(self.data.parent)


def _run_guarded(command: Sequence[str | Path], account: ServerAccount, deadline: float) -> None:
    with tempfile.TemporaryFile() as output:
        process = GuardedProcess(command, account=account, output=output.fileno())
        try:
            status = process.wait(deadline - time.monotonic())
        except subprocess.TimeoutExpired as error:
            raise EmbeddedError("initdb did not end in time") from error
        finally:
            process.stop()
        output.seek(0)
        lines = output.read().decode(errors="replace").splitlines()
    if status != 0:
        raise EmbeddedError(f"initdb failed: {reason(lines)}")


def reason(lines: list[str]) -> str:
    """Why a program of the server gave up, from what it printed."""
    marked = (re.search(r"(?:FATAL|PANIC|error):\s*(.+)", line) for line in lines)
    first = next(filter(None, marked), None)
    said = [line.strip() for line in lines if line.strip()]
    return first[1] if first else said[-1] if said else "no message"


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
