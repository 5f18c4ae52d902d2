"""The account that the server runs as: PostgreSQL refuses to run as root."""

import contextlib
import errno
import os
import pwd
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.errors import ConfigurationError

LOCALE = "en_US.UTF-8" if sys.platform == "darwin" else "C.UTF-8"
_KEPT_VARIABLES = ("PATH", "LD_LIBRARY_PATH")


class EmbeddedError(ConfigurationError):
    """The embedded server cannot run here; one clear line says why and what to do."""


@dataclass(frozen=True, slots=True)
class ServerAccount:
    """An account; `switch` when this process is root and has to step down to it."""

    name: str
    uid: int
    gid: int
    switch: bool

    def popen_options(self) -> dict[str, Any]:
        """Arguments of `subprocess.Popen`: identity, a bare environment, a neutral folder."""
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        identity = {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switch else {}
        return {"env": kept | {"LC_ALL": LOCALE, "TZ": "UTC"}, "cwd": "/", **identity}

    def run(self, command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
        """Run a short command as this account."""
        words = [str(word) for word in command]
        try:
            return subprocess.run(
                words,
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                **self.popen_options(),
            )
        except PermissionError as error:
            if self.switch and error.errno == errno.EPERM:
                raise EmbeddedError(
                    f"root runs postgres as {self.name}, which needs CAP_SETUID and CAP_SETGID"
                ) from error
            raise

    def can_enter(self, folder: Path) -> bool:
        """Whether this account may pass through `folder` and all above it."""
        return self.run(["/bin/sh", "-c", 'cd -- "$1"', "sh", folder]).returncode == 0

    def take(self, path: Path, mode: int) -> None:
        """Give `path` to this account, closed to the others."""
        path.chmod(mode)
        if self.switch:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def has_passwd_entry(self) -> bool:
        """Whether the system knows the uid; `initdb` insists on it."""
        try:
            pwd.getpwuid(self.uid)
        except KeyError:
            return False
        return True


def server_account(data: Path) -> ServerAccount:
    """The account of this process; for root the owner of `data`, else `postgres` or `nobody`."""
    if os.geteuid() != 0:
        return ServerAccount(_name(os.geteuid()), os.geteuid(), os.getegid(), switch=False)
    if data.exists() and data.stat().st_uid != 0:
        owner = data.stat()
        return ServerAccount(_name(owner.st_uid), owner.st_uid, owner.st_gid, switch=True)
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return ServerAccount(name, entry.pw_uid, entry.pw_gid, switch=True)
    raise EmbeddedError("root may not run postgres, and no account postgres or nobody exists")


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
