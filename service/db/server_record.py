"""`postmaster.pid`: what a server writes about itself, and what is left of it after a kill."""

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from service.db.server_account import EmbeddedError

FILE_NAME = "postmaster.pid"
_POLL_SECONDS = 0.05
_EMPTY_FILE_SECONDS = 1.0
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """One run of a server: its process, and whether it takes connections.

    In a container that restarts, the next server may have the same number within the same
    second, the finest that the file's own text tells: `written` is the file's time in ns.
    """

    pid: int
    ready: bool
    written: int


def read_record(data: Path) -> ServerRecord | None:
    """The record in the data directory `data`; None if the last server ended properly."""
    try:
        with (data / FILE_NAME).open() as file:
            written = os.fstat(file.fileno()).st_mtime_ns
            lines = file.read().splitlines()
    except FileNotFoundError:
        return None
    if not lines:
        return None
    ready = len(lines) > 7 and lines[7].strip() == "ready"
    return ServerRecord(int(lines[0]), ready, written)


def await_no_server(data: Path, deadline: float) -> ServerRecord | None:
    """Wait until a dead owner's server is gone; the record that a killed one left."""
    _drop_empty_record(data / FILE_NAME)
    while (record := read_record(data)) and is_running(record.pid, data):
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"process {record.pid} is a server of {data} that was not started here: stop it"
            )
        time.sleep(_POLL_SECONDS)
    return record


def is_running(pid: int, data: Path) -> bool:
    """Whether `pid` is a live server of `data`: no zombie, no other process with its number."""
    state, program = _process(pid)
    if state in {"", "Z", "X"} or program != "postgres":
        return False
    if not _PROC.exists():
        return True
    try:
        return (_PROC / str(pid) / "cwd").samefile(data)
    except PermissionError:  # root of a container without CAP_SYS_PTRACE
        return True
    except FileNotFoundError:
        return False


def end_orphans(data: Path) -> None:
    """End what a killed server left working in `data`, with the signal that it sends on a crash."""
    for process in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            program = (process / "comm").read_text().strip()
            if program == "postgres" and (process / "cwd").samefile(data):
                os.kill(int(process.name), signal.SIGQUIT)


def _process(pid: int) -> tuple[str, str]:
    """State letter and program name; two empty strings if there is no such process."""
    if _PROC.exists():
        try:
            before, _, after = (_PROC / str(pid) / "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            return "", ""
        return after.split()[0], before.partition("(")[2]
    listed = subprocess.run(
        ["/bin/ps", "-o", "stat=,comm=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, program = listed.stdout.strip().partition(" ")
    return state[:1], Path(program.strip()).name


def _drop_empty_record(file: Path) -> None:
    # A server killed between creating and filling the file leaves one that no server accepts.
    until = time.monotonic() + _EMPTY_FILE_SECONDS
    while file.exists() and file.stat().st_size == 0:
        if time.monotonic() > until:
            file.unlink(missing_ok=True)
        time.sleep(_POLL_SECONDS)
