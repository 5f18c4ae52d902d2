"""A worker without an API serves its metrics, and nothing else."""

import socket

import httpx
import pytest

from service.cli.console import CommandError
from service.cli.metrics_page import serving_metrics
from service.instruments import JOB_RUNS
from service.metrics import TEXT_FORMAT


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def test_the_page_is_what_prometheus_reads() -> None:
    port = free_port()
    JOB_RUNS.record(1.0, "ingest", "finished")
    with serving_metrics("127.0.0.1", port):
        url = f"http://127.0.0.1:{port}"
        page = httpx.get(url + "/metrics")
        assert page.headers["content-type"] == TEXT_FORMAT
        assert (
            'braid_jobs_run_duration_seconds_count{kind="ingest",outcome="finished"}' in page.text
        )
        assert httpx.get(url + "/").status_code == 404
    with pytest.raises(httpx.TransportError):
        httpx.get(url + "/metrics")


def test_no_port_is_no_page_and_a_taken_one_is_told() -> None:
    with serving_metrics("127.0.0.1", None), socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CommandError), serving_metrics("127.0.0.1", taken.getsockname()[1]):
            pass
