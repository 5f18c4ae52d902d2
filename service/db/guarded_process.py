"""A child process that ends when its owner does, however the owner dies.

A small shell is the child's parent and holds the reading end of a pipe whose writing end only
the owner has: when the owner is gone, the kernel closes it. The guard is running before the
owner could have lost sight of the child, so no moment exists in which the child is on its own.
"""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from service.db.server_account import ServerAccount

# One a second: fast shutdown, immediate shutdown, last resort. The first may come before the
# child has installed its handlers, so it is repeated.
_SIGNALS = " ".join(["INT"] * 60 + ["QUIT"] * 5 + ["KILL"] * 5)
_GUARD = f"""
trap '' HUP INT QUIT TERM
exec 3<&0 </dev/null
"$@" 3<&- &
child=$!
(
    read -r line <&3
    for signal in {_SIGNALS}; do
        kill -s "$signal" "$child" || exit
        sleep 1
    done
) 2>/dev/null &
guard=$!
exec 3<&-
wait "$child"
status=$?
kill -KILL "$guard"
wait "$guard" 2>/dev/null
exit "$status"
"""
_STOP_SECONDS = 75.0

_held: set[int] = set()


def hold(descriptor: int) -> int:
    """Keep an open descriptor to this very process: a forked child closes it at once."""
    _held.add(descriptor)
    return descriptor


def let_go(descriptor: int) -> None:
    """Close a descriptor that was held."""
    if descriptor in _held:
        _held.remove(descriptor)
        os.close(descriptor)


def _close_held_by_parent() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_close_held_by_parent)


class GuardedProcess:
    """A command run as `account`, its output appended to the open file `output`."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        account: ServerAccount,
        output: int,
        environment: dict[str, str] | None = None,
    ) -> None:
        options = account.popen_options()
        options["env"] |= environment or {}
        reading_end, writing_end = os.pipe()
        self._pipe = hold(writing_end)
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "guard", *map(str, command)],
                stdin=reading_end,
                stdout=output,
                stderr=output,
                start_new_session=True,
                **options,
            )
        except BaseException:
            let_go(self._pipe)
            raise
        finally:
            os.close(reading_end)

    def poll(self) -> int | None:
        """Exit status, None while the command runs."""
        return self._process.poll()

    def wait(self, timeout: float) -> int:
        """Exit status; raises `subprocess.TimeoutExpired`."""
        return self._process.wait(timeout)

    def stop(self) -> None:
        """End the command the same way as the owner's death would, and wait for it."""
        let_go(self._pipe)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
