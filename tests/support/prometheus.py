"""Debian's Prometheus: its checks, and a server that scrapes one address."""

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.embedded_processes import eventually

SECONDS = 60
CONFIG = """
global: {{scrape_interval: 250ms, scrape_timeout: 250ms, evaluation_interval: 250ms}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: braid
    static_configs: [{{targets: ["{target}"]}}]
"""


def program(name: str) -> str:
    """The program's path; without it the test is skipped."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed (Debian's package prometheus)")
    return found


def promtool(*words: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """A check, run in a folder."""
    return subprocess.run(
        [program("promtool"), *words], cwd=folder, capture_output=True, text=True, check=False
    )


class Prometheus:
    """A server that was asked to scrape something."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Every series of the answer."""
        answer = self._client.get("/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", (expression, answer)
        result: list[dict[str, Any]] = answer["data"]["result"]
        return result

    def scrapes(self) -> int:
        """How often the target was scraped."""
        found = self.query('count_over_time(up{job="braid"}[10m])')
        return int(found[0]["value"][1]) if found else 0

    def see_all(self) -> None:
        """Wait until two more scrapes have been taken in."""
        seen = self.scrapes()
        eventually(lambda: self.scrapes() >= seen + 3, SECONDS)


@contextlib.contextmanager
def scraping(url: str, rules: Path, folder: Path) -> Iterator[Prometheus]:
    """A Prometheus that scrapes `/metrics` below a URL and evaluates rules."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    target = url.removeprefix("http://")
    (folder / "prometheus.yml").write_text(CONFIG.format(rules=rules, target=target))
    command = [program("prometheus"), f"--config.file={folder}/prometheus.yml"]
    command += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        base = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=base, trust_env=False, timeout=SECONDS) as client:
            eventually(lambda: is_ready(client), SECONDS)
            yield Prometheus(client)
    finally:
        process.terminate()
        process.wait(SECONDS)


def is_ready(client: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return client.get("/-/ready").is_success
    return False
