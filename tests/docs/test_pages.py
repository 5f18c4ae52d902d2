"""Links lead somewhere, commands exist, versions agree."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from service import __version__
from service.cli.parser import build_parser

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
USER_PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def links(page: Path) -> list[str]:
    text = BLOCK.sub("", page.read_text())
    found = [one or other for one, other in LINK.findall(text)]
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]
    return set(plain)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_resolves(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        if anchor:
            assert anchor in anchors(target), f"{link} names no heading"


def shell_lines(page: Path) -> list[str]:
    blocks = [text for kind, text in BLOCK.findall(page.read_text()) if kind == "sh"]
    joined = "\n".join(blocks).replace("\\\n", " ")
    return [line for line in joined.splitlines() if line and not line.startswith("#")]


def words(line: str) -> list[str]:
    found = shlex.split(line, comments=True)
    while found and re.match(r"[A-Z_]+=", found[0]):
        del found[0]
    return found


@pytest.mark.parametrize("page", USER_PAGES, ids=lambda page: page.name)
def test_commands_in_code_blocks_exist(page):
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in shell_lines(page):
        command = words(line)
        if command[:1] == ["make"]:
            assert set(command[1:]) <= targets, line
        elif command and command[0].endswith("braid"):
            build_parser().parse_args(command[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_curl_that_sends_json_says_so(page):
    for language, block in BLOCK.findall(page.read_text()):
        if language in ("sh", "console"):
            for command in re.split(r"(?:^|(?<=[\s(|]))curl ", block)[1:]:
                sends = re.search(r"\s(?:-d|--data)\s", command)
                assert not sends or "content-type: application/json" in command.lower()


def test_the_readme_shows_commands():
    assert any(line.startswith("make up") for line in shell_lines(ROOT / "README.md"))


def test_versions_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__


def locked(file: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==([\w.!+-]+)", file.read_text(), re.MULTILINE))


def test_both_lock_files_pin_the_same_versions():
    everything, running = (
        locked(ROOT / "requirements.lock"),
        locked(ROOT / "deploy/requirements.lock"),
    )
    assert running.items() <= everything.items()
    assert {"pytest", "mypy", "ruff"}.isdisjoint(running)


def test_lock_files_name_no_index():
    for file in ("requirements.lock", "deploy/requirements.lock"):
        assert "://" not in (ROOT / file).read_text()
