"""The `braid` command: parses the command line and runs one command of this package."""

import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import cast

from service.cli.console import CommandError, complain
from service.cli.parser import Arguments, build_parser
from service.errors import BraidError, ConfigurationError

Command = Callable[[Arguments], int]

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv`; the exit status (0 done, 1 failed, 2 wrong usage)."""
    arguments = build_parser().parse_args(argv)
    try:
        return _command(arguments.command)(arguments)
    except (CommandError, ConfigurationError, BraidError) as error:
        complain(str(error))
        return 1
    except BrokenPipeError:
        # The reader of a pipe has left; nothing may be written to it while Python shuts down.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _command(name: str) -> Command:
    """Each command is a module, imported when it is asked for: the others may be slow to load."""
    return cast(Command, import_module(f"service.cli.{name}").run)
