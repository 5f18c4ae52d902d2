"""How to type the command that runs now, so that a printed line works as pasted."""

import shlex
import shutil
import sys
from pathlib import Path


def own_command() -> str:
    """`braid` where the shell finds this very program under its name, else the way to it."""
    program = Path(sys.argv[0])
    if program.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m service.cli"
    found = shutil.which(program.name)
    if found is not None and Path(found).resolve() == program.resolve():
        return program.name
    return shlex.quote(sys.argv[0])
