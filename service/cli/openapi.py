"""`braid openapi`: the description of the API, for people and for code generators."""

import json
from pathlib import Path

from service.app import openapi
from service.cli.console import CommandError, err, write
from service.cli.parser import Arguments

FILE = Path("openapi/openapi.json")


def run(arguments: Arguments) -> int:
    """Print the description, write it down, or compare it with what was written down."""
    document = json.dumps(openapi(), indent=2, ensure_ascii=False) + "\n"
    if arguments.write:
        _write(document)
    elif arguments.check:
        _check(document)
    else:
        write(document)
    return 0


def _write(document: str) -> None:
    try:
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(document)
    except OSError as error:
        raise CommandError(f"cannot write {FILE}: {error.strerror}") from error
    err.print(f"wrote {FILE}")


def _check(document: str) -> None:
    if not FILE.exists() or FILE.read_text() != document:
        raise CommandError(f"{FILE} is not up to date: run `braid openapi --write`")
