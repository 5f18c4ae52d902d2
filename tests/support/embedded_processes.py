"""Owners of embedded servers as processes of their own, and what the system says about them."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg

OWNER = Path(__file__).with_name("embedded_owner.py")


class Owner:
    """The process of `embedded_owner.py` and the line it printed."""

    def __init__(self, root: Path, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, OWNER, json.dumps({"root": str(root), **options})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def report(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return dict(json.loads(line)) if line else {}

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def leave(self) -> int:
        """Let the process end in its own way; its exit status."""
        self.process.communicate()
        return self.process.returncode


@contextlib.contextmanager
def owner(root: Path, **options: Any) -> Iterator[Owner]:
    started = Owner(root, **options)
    try:
        yield started
    finally:
        started.kill()


@contextlib.contextmanager
def reachable_folder() -> Iterator[Path]:
    """A temporary folder that other accounts may enter, unlike pytest's own under root."""
    folder = Path(tempfile.mkdtemp(prefix="braid-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def eventually(condition: Callable[[], object], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.002)


def postmaster(root: Path) -> int:
    return int((root / "postgres/postmaster.pid").read_text().splitlines()[0])


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def processes_of(root: Path) -> list[int]:
    """Every process that was started with a path below `root` on its command line."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if any(word.startswith(os.fsencode(root) + b"/") for word in words):
                found.append(int(folder.name))
    return found


async def fetch(dsn: str, *statements: str) -> Any:
    """Run the statements; the first value of the last one."""
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements[:-1]:
            await connection.execute(statement)
        return await connection.fetchval(statements[-1])
    finally:
        await connection.close()
