"""Do what the Dockerfile's lines say without a container runtime: for machines that have none.

The first stage is carried out with this machine's Python below a temporary folder, from what
`.dockerignore` lets through; then the entry point is started and asked with the line of the health
check. Not shown by it: the base image, its Python, the user, the read-only file system.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
START_SECONDS = 120
PORT = "8765"


def instructions(stage: int) -> Iterator[tuple[str, str]]:
    """Word and rest of each line of a stage."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    starts = [at for at, line in enumerate(lines) if line.startswith("FROM ")]
    for line in lines[starts[stage] : [*starts, len(lines)][stage + 1]]:
        word, _, rest = line.partition(" ")
        yield word, " ".join(rest.split())


def context(folder: Path) -> None:
    """Copy what a build is given."""
    patterns = (ROOT / ".dockerignore").read_text().split()
    assert patterns[0] == "*"
    for pattern in patterns[1:]:
        if pattern.startswith("!"):
            name = pattern[1:]
            source, target = ROOT / name, folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)


def build(root: Path, given: Path) -> None:
    """Carry out the first stage below a folder."""
    directory = root
    for word, rest in instructions(0):
        if word == "WORKDIR":
            directory = root / rest.lstrip("/")
            directory.mkdir(parents=True)
        elif word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                copied = given / source
                into = directory / (copied.name if target == "./" else target)
                shutil.copytree(copied, into) if copied.is_dir() else shutil.copy(copied, into)
        elif word == "RUN":
            subprocess.run(
                rest.replace("/opt/", f"{root}/opt/"), shell=True, cwd=directory, check=True
            )
        print(f"{word} {rest}", flush=True)


def start(root: Path) -> None:
    """Start what the image starts, until the health check's line succeeds."""
    last = dict(instructions(1))
    entry = json.loads(last["ENTRYPOINT"]) + json.loads(last["CMD"])
    check = json.loads(re.sub(r".* CMD ", "", last["HEALTHCHECK"]))
    programs = root / "opt/braid/bin"
    environment = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(root),
        "BRAID_PORT": PORT,
        "BRAID_DATA_DIR": str(root / "data"),
    }
    process = subprocess.Popen([programs / entry[0], *entry[1:]], env=environment, cwd=root)
    try:
        until = time.monotonic() + START_SECONDS
        while subprocess.run(
            [programs / check[0], *check[1:]],
            env=environment,
            check=False,
            stderr=subprocess.DEVNULL,
        ).returncode:
            assert process.poll() is None, "the entry point ended"
            assert time.monotonic() < until, "the health check does not succeed"
            time.sleep(1)
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(START_SECONDS)
    print(f"healthy, then ended with status {status} on SIGTERM")


def main() -> int:
    """Build and start; the size of what was installed."""
    with tempfile.TemporaryDirectory(prefix="braid-image-", ignore_cleanup_errors=True) as folder:
        root = Path(folder).resolve()
        root.chmod(0o755)  # the account that runs PostgreSQL has to enter it
        context(root / "context")
        build(root, root / "context")
        size = sum(one.stat().st_size for one in (root / "opt").rglob("*") if not one.is_symlink())
        print(f"{size / 1e6:.0f} MB below /opt/braid, with Python {sys.version.split()[0]}")
        start(root)
    return 0


if __name__ == "__main__":
    sys.exit(main())
