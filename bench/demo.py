"""`make demo`: starts Braid from nothing, indexes this repository's documentation and asks it.

Everything lives in a temporary folder and ends with this program. The exit status is 1 when a
query does not find the document that answers it.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console

from service.cli.client import Api, open_api
from service.cli.jobs import collection_path
from service.cli.render import render
from service.search.response import SearchResponse

ROOT = Path(__file__).parents[1]
BRAID = [sys.executable, "-m", "service.cli"]
COLLECTION = "demo"
PATHS = ["service/sample", "docs", "README.md", "CONTRIBUTING.md"]
STOP_SECONDS = 60.0
console = Console(highlight=False, markup=False, emoji=False)


class Question(NamedTuple):
    """A query, the document that answers it, and the last rank at which that is good."""

    kind: str
    text: str
    answer: str
    within: int
    options: dict[str, Any]


# Braid's own documentation is indexed too: it speaks of rotating keys, and quotes the error code.
API_GUIDES = {"filter": {"doc_id": {"starts_with": "api/"}}}
QUESTIONS = [
    Question(
        "a paraphrase, asked of the API guides",
        "swap credentials while the service stays up",
        "api/key-rotation.md",
        3,
        API_GUIDES,
    ),
    Question("an error code", "E-4012", "errors/authentication.md", 3, {}),
    Question("a function name", "compute_part_checksum", "api/uploads.md", 1, {}),
    Question(
        "a question in another language",
        "quem pode entrar em produção",
        "policies/access.md",
        3,
        {},
    ),
    Question(
        "a question grouped by document",
        "what to do when a laptop is stolen",
        "de/verlorene-geraete.md",
        3,
        {"group_by": "document"},
    ),
]


def main() -> int:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="braid-demo-", ignore_cleanup_errors=True) as folder:
        try:
            with running(Path(folder)) as server:
                console.print(f"ready after {time.monotonic() - started:.1f} s")
                for path in PATHS:
                    index(path)
                missed = asyncio.run(ask_all())
        except subprocess.CalledProcessError as error:
            console.print(f"failed: {error}")
            return 1
        stopped_well = server.returncode == 0
    console.print(f"\nstopped; {time.monotonic() - started:.1f} s in all")
    for question in missed:
        console.print(f"NOT FOUND: {question.answer} for {question.kind}")
    return 0 if stopped_well and not missed else 1


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """`braid up` on a free port; the environment leads the other commands to it."""
    for name in [name for name in os.environ if name.startswith("BRAID_")]:
        del os.environ[name]
    command = [*BRAID, "up", "--port", "0", "--data-dir", str(folder), "--no-sample"]
    server = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        os.environ["BRAID_URL"] = await_address(server)
        os.environ["BRAID_DATA_DIR"] = str(folder)
        yield server
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=STOP_SECONDS)


def await_address(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"is ready at (http://\S+)", line):
            return found[1]
    raise subprocess.CalledProcessError(server.wait(), "braid up")


def index(path: str) -> None:
    command = [*BRAID, "index", path, "--collection", COLLECTION]
    console.print(f"\n$ braid index {path} --collection {COLLECTION}", style="bold")
    subprocess.run(command, cwd=ROOT, check=True)


async def ask_all() -> list[Question]:
    """Ask every question and show the answers; those that did not find their document."""
    async with open_api() as api:
        return [question for question in QUESTIONS if not await ask(api, question)]


async def ask(api: Api, question: Question) -> bool:
    console.print(f"\n{question.kind}: {question.text}", style="bold")
    body = {"query": {"text": question.text}, "k": 3, "explain": True, **question.options}
    answer = await api.post(collection_path(COLLECTION) + "/search", body)
    found = msgspec.convert(answer, SearchResponse)
    for part in render(found, question.text):
        console.print(part)
    ranked = found.documents if isinstance(found.documents, list) else found.hits
    assert isinstance(ranked, list)
    documents = [one.doc_id for one in ranked[: question.within]]
    return question.answer in documents and not found.degraded


if __name__ == "__main__":
    sys.exit(main())
