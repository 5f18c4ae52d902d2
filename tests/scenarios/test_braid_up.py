"""`braid up` as a user runs it: one command from nothing to an answer, and nothing left behind."""

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.embedded_processes import eventually, processes_of, reachable_folder

ROOT = Path(__file__).parents[2]
BRAID = [sys.executable, "-m", "service.cli"]
SECONDS = 90


class Up:
    """A running `braid up`: what it has printed, and where it listens."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self.printed: list[str] = []
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # Whoever runs the tests in the background has it ignored, for what they start too.
            signal.signal(signal.SIGINT, signal.default_int_handler)
        self.process = subprocess.Popen(
            [*BRAID, "up", "--port", "0", "--data-dir", str(folder), *flags],
            cwd=ROOT,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.printed.extend(self.process.stdout)

    def says(self, pattern: str) -> re.Match[str]:
        """Wait until it has printed something."""
        found: list[re.Match[str]] = []

        def look() -> bool:
            assert self.process.poll() is None or not self._reader.is_alive()
            found.extend(filter(None, (re.search(pattern, line) for line in self.printed)))
            return bool(found) or self.process.poll() is not None

        eventually(look, SECONDS)
        assert found, self.end()
        return found[0]

    @property
    def url(self) -> str:
        return self.says(r"is ready at (http://\S+)")[1]

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Wait for the end, after a signal if one is given: the exit status and stderr."""
        if number is not None:
            self.process.send_signal(number)
        status = self.process.wait(SECONDS)
        self._reader.join()
        assert self.process.stderr is not None
        return status, self.process.stderr.read()


def clean_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BRAID_")}
    return kept | {"PYTHONPATH": str(ROOT)} | more


@contextlib.contextmanager
def braid_up(folder: Path, *flags: str) -> Iterator[Up]:
    up = Up(folder, *flags)
    try:
        yield up
    finally:
        if up.process.poll() is None:
            up.process.kill()
        up.end()
        for stream in (up.process.stdout, up.process.stderr):
            assert stream is not None
            stream.close()


def braid(up: Up, *words: str) -> subprocess.CompletedProcess[str]:
    """Another command, told where the server and its data are."""
    return subprocess.run(
        [*BRAID, *words],
        cwd=ROOT,
        env=clean_environment(BRAID_URL=up.url, BRAID_DATA_DIR=str(up.folder)),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )


def hits(up: Up, query: str, collection: str) -> list[dict[str, Any]]:
    answered = braid(up, "search", query, "--collection", collection, "--json")
    assert answered.returncode == 0, answered.stderr
    found: list[dict[str, Any]] = json.loads(answered.stdout)["hits"]
    return found


def server_processes(up: Up) -> list[int]:
    """The processes that serve: the one that `braid up` started, and its children."""
    return [pid for pid in descendants(up.process.pid) if b"serve" in command(pid)]


def descendants(pid: int) -> list[int]:
    below = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            below += [int(child), *descendants(int(child))]
    return below


def command(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder whose name is not the simplest."""
    with reachable_folder() as folder:
        yield folder / "dätä of braid"


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    folder = tmp_path / "documents"
    (folder / "deep").mkdir(parents=True)
    (folder / "tea.md").write_text("# Tea\n\nSteep green tea at eighty degrees for two minutes.\n")
    (folder / "deep" / "error.md").write_text("# Errors\n\nE-7731: the kettle is empty.\n")
    (folder / "kettle.png").write_bytes(b"\x89PNG\0")
    return folder


def test_from_nothing_to_an_answer_and_the_same_after_a_restart(place, documents):
    with braid_up(place) as up:
        key = up.says(r"key +(braid_\S+)")[1]
        assert stat.S_IMODE((place / "root-key").stat().st_mode) == 0o600
        indexed = braid(up, "index", str(documents), "--collection", "kitchen")
        assert indexed.returncode == 0, indexed.stderr
        assert "indexed 2 documents into kitchen" in indexed.stderr
        assert "skipped binary: kettle.png" in indexed.stderr
        before = hits(up, "at how many degrees do I steep tea", "kitchen")
        assert [hit["doc_id"] for hit in before] == ["tea.md", "deep/error.md"]
        assert hits(up, "E-7731", "kitchen")[0]["doc_id"] == "deep/error.md"
        up.says(r"collection sample holds 15 documents")
        question = "my signature is refused although the key is fine"
        assert hits(up, question, "sample")[0]["doc_id"] == "errors/authentication.md"
        assert up.end(signal.SIGTERM) == (0, "")
    assert processes_of(place) == []

    with braid_up(place) as up:
        assert up.says(r"key +(braid_\S+)")[1] == key
        assert hits(up, "at how many degrees do I steep tea", "kitchen") == before
        refused = braid(up, "up", "--port", "0", "--data-dir", str(place))
        assert refused.returncode == 1
        assert refused.stderr == (
            f"braid: another `braid up` runs on {place}: choose another --data-dir\n"
        )
        assert up.end(signal.SIGINT) == (0, "")
    assert processes_of(place) == []


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_killing_it_leaves_no_server_and_no_database(place):
    with braid_up(place, "--no-sample") as up:
        assert up.url
        running = descendants(up.process.pid)
        assert len(server_processes(up)) >= 2
        assert processes_of(place)
        assert up.end(signal.SIGKILL)[0] == -signal.SIGKILL
        eventually(lambda: not any(map(is_running, running)))
        eventually(lambda: not processes_of(place))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads /proc")
def test_when_the_server_dies_it_says_so_and_stops_the_database(place):
    with braid_up(place, "--no-sample") as up:
        assert up.url
        running = descendants(up.process.pid)
        python = os.fsencode(sys.executable)
        main = next(pid for pid in server_processes(up) if command(pid)[0] == python)
        os.kill(main, signal.SIGKILL)
        status, said = up.end()
        assert status == 1
        assert said == f"braid: the server ended unexpectedly: see {place / 'server.log'}\n"
        eventually(lambda: not any(map(is_running, running)))
        assert processes_of(place) == []


def test_a_port_in_use_is_one_line(place):
    with braid_up(place, "--no-sample") as up:
        port = up.url.rpartition(":")[2]
        refused = braid(up, "up", "--port", port, "--data-dir", str(place.with_name("other")))
    assert refused.returncode == 1
    assert refused.stderr == (
        f"braid: port {port} is in use: choose another with --port, 0 takes a free one\n"
    )
    assert not place.with_name("other").exists()
