"""The reference pages name everything that exists, and nothing else."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.cli.parser import build_parser
from service.settings import Settings

ROOT = Path(__file__).parents[2]
SETTINGS_PAGE = (ROOT / "docs/reference/settings.md").read_text()
CLI_PAGE = (ROOT / "docs/reference/cli.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def commands(
    parser: argparse.ArgumentParser, name: str = "braid"
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    children = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not children:
        yield name, parser
    for action in children:
        for child, below in action.choices.items():
            yield from commands(below, f"{name} {child}")


COMMANDS = dict(commands(build_parser()))


def section(command: str) -> str:
    """The part of the page about a command; actions share the one of their parent."""
    heading = " ".join(command.split()[:2])
    match = re.search(rf"^## {heading}\b.*?(?=^## |\Z)", CLI_PAGE, re.MULTILINE | re.DOTALL)
    assert match, f"{heading} has no section"
    return match[0]


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_a_setting_is_documented_with_its_default_and_meaning(name):
    field = Settings.model_fields[name]
    default = field.default
    shown = str(default).lower() if isinstance(default, bool) else str(default)
    cell = "" if default in (None, "") else f"`{shown}`"
    assert f"| `BRAID_{name.upper()}` | {cell} | {field.description} |" in SETTINGS_PAGE


def test_no_documented_setting_is_unknown():
    named = set(re.findall(r"`BRAID_(\w+)`", SETTINGS_PAGE + CLI_PAGE))
    assert {name.lower() for name in named} <= set(Settings.model_fields)


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_command_and_its_flags_are_documented(command):
    part = section(command)
    assert command in part
    for action in COMMANDS[command]._actions:
        names = [name for name in action.option_strings if name not in ("-h", "--help")]
        for name in names:
            assert re.search(rf"`{name}[` ]", part), f"{command} {name} is not documented"


def test_no_documented_flag_is_unknown():
    for command in {" ".join(name.split()[:2]) for name in COMMANDS}:
        known = {
            name
            for other, parser in COMMANDS.items()
            if other.startswith(command)
            for action in parser._actions
            for name in action.option_strings
        }
        assert set(re.findall(r"^\| `(--?[\w-]+)", section(command), re.MULTILINE)) <= known


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_flag_has_a_help_text(command):
    for action in COMMANDS[command]._actions:
        assert action.help, f"{command} {action.dest}"


def test_make_explains_every_target():
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert phony
    for target in phony[1].split():
        assert re.search(rf"^{target}:.*  ## \w", MAKEFILE, re.MULTILINE), target
