"""What `braid up` prints to be pasted into a shell."""

import subprocess
import sys
from pathlib import Path

import pytest

from service.cli.invocation import own_command
from service.cli.up import Place, _curl


@pytest.fixture
def program(tmp_path: Path) -> Path:
    program = tmp_path / "a bin" / "braid"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho ran\n")
    program.chmod(0o755)
    return program


def test_a_program_on_the_path_is_called_by_its_name(program, monkeypatch):
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setattr(sys, "argv", [str(program), "up"])
    assert own_command() == "braid"


@pytest.mark.parametrize("other", [False, True])
def test_a_program_off_the_path_is_called_as_it_was(program, tmp_path, monkeypatch, other):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["a bin/braid", "up"])
    monkeypatch.setenv("PATH", str(tmp_path))
    if other:
        (tmp_path / "braid").write_text("#!/bin/sh\necho another\n")
        (tmp_path / "braid").chmod(0o755)
    assert own_command() == "'a bin/braid'"
    ran = subprocess.run(own_command(), shell=True, capture_output=True, check=True)
    assert ran.stdout == b"ran\n"


def test_a_module_is_called_through_its_python(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/somewhere/service/cli/__main__.py", "up"])
    assert own_command().endswith(" -m service.cli")


@pytest.mark.parametrize("made", [True, False])
def test_the_curl_line_sends_the_key(tmp_path, made):
    place = Place(tmp_path, "127.0.0.1", 8000, "the-root-key", made_key=made, secret_key="s" * 32)
    command = _curl(place).removeprefix("curl")
    ran = subprocess.run(
        "printf '%s\\n'" + command,
        shell=True,
        capture_output=True,
        check=True,
        text=True,
        env={"BRAID_ROOT_API_KEY": "the-root-key"},
    )
    assert "X-API-Key: the-root-key" in ran.stdout.splitlines()
    assert ran.stdout.splitlines()[-1].startswith('{"query": {"text": "')
