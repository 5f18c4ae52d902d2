"""Who owns a server: a lock file held for the owner's life that tells others the port."""

import fcntl
import os
from pathlib import Path

from service.db.guarded_process import hold, let_go

_CLOSED = -1


class OwnerLock:
    """Released by the kernel when its process dies; forked children never have it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = _CLOSED
        self._process = 0

    @property
    def held(self) -> bool:
        """Whether this very process holds the lock."""
        return self._descriptor != _CLOSED and self._process == os.getpid()

    def take(self) -> bool:
        """Take the lock unless somebody has it."""
        descriptor = hold(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            let_go(descriptor)
            return False
        os.ftruncate(descriptor, 0)
        self._descriptor, self._process = descriptor, os.getpid()
        return True

    def publish(self, port: int) -> None:
        """Tell the others that the server is ready on `port`; for the holder."""
        os.pwrite(self._descriptor, str(port).encode(), 0)

    def withdraw(self) -> None:
        """Tell the others that the server is not ready any more; for the holder."""
        os.ftruncate(self._descriptor, 0)

    def published(self) -> int | None:
        """The port that the holder published, None while it is not ready."""
        text = self._path.read_text()
        return int(text) if text else None

    def release(self) -> None:
        """Let the next process have it; for the holder."""
        let_go(self._descriptor)
        self._descriptor = _CLOSED
