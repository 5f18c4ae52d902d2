"""A process that starts an embedded server and waits to be killed or told to stop.

Run as a script with one JSON argument; says in one JSON line what became of it.
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from service.db import embedded
from service.db.guarded_process import GuardedProcess


class _KillsItsOwner(GuardedProcess):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)


def main(options: dict[str, Any]) -> None:
    # Everything is imported by now: another account may not be able to read this interpreter.
    if "uid" in options:
        os.setgroups([])
        os.setgid(options["uid"])
        os.setuid(options["uid"])
    if options.get("die_after_launch"):
        embedded.GuardedProcess = _KillsItsOwner  # type: ignore[misc]
    try:
        bindir = options.get("bindir")
        server = embedded.EmbeddedPostgres(
            Path(options["root"]),
            tree=embedded.find_tree(bindir) if bindir else None,
            settings={"fsync": "off"},
        )
        dsn = server.start()
    except embedded.EmbeddedError as error:
        _say({"error": str(error)})
        return
    report = {"dsn": dsn, "attached": server.attached, "modules": sorted(sys.modules)}
    if options.get("fork"):
        report["forked"] = _fork_that_stops(server)
    _say(report)
    sys.stdin.read()
    if options.get("stop", True):
        server.stop()


def _say(report: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def _fork_that_stops(server: embedded.EmbeddedPostgres) -> int:
    done_reading, done_writing = os.pipe()
    forked = os.fork()
    if forked == 0:
        server.stop()
        os.write(done_writing, b"stopped")
        while True:
            signal.pause()
    os.read(done_reading, 16)
    return forked


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
