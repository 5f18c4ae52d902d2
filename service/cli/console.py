"""What commands print with: results on stdout, everything else on stderr."""

import sys

from rich.console import Console
from rich.text import Text

# Names and texts of users are printed as they are: no markup, no emoji codes.
out = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)

COMPLAINT = "braid: "


class CommandError(Exception):
    """A command cannot go on; one clear line for the user."""


def complain(message: str) -> None:
    """One line on stderr that says what is wrong."""
    line = " ".join(message.split())
    err.print(Text.assemble((COMPLAINT, "bold red"), line))


def write(text: str) -> None:
    """Text for another program: as it is, one line break at the end."""
    sys.stdout.write(text.rstrip("\n") + "\n")
    sys.stdout.flush()
