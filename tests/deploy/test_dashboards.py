"""Every panel shows something when a real Prometheus scrapes a service that was put through all."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.exercised import exercised
from support.monitoring import ALERTS, DASHBOARDS, MONITORING, RULES, panels
from support.prometheus import Prometheus, scraping

from service.db.embedded import EmbeddedPostgres

RATE_INTERVAL = "5m"


@pytest.fixture(scope="module")
async def prometheus(
    server: EmbeddedPostgres, template: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    async with exercised(server, template, "dashboards") as used:
        with scraping(used.service.url, MONITORING / "alerts.yml", folder) as found:
            await asyncio.to_thread(found.see_all)
            yield found


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_every_panel_shows_something(dashboard: Path, prometheus: Prometheus) -> None:
    for panel in panels(dashboard):
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", RATE_INTERVAL)
            found = prometheus.query(expression)
            assert found, f"{panel['title']}: {expression}"


def test_alerts_are_evaluated_and_the_right_ones_begin(prometheus: Prometheus) -> None:
    for group in RULES["groups"]:
        for rule in group["rules"]:
            prometheus.query(rule["expr"])
    pending = {one["metric"]["alertname"] for one in prometheus.query("ALERTS")}
    assert "BraidCircuitOpen" in pending
    assert pending <= set(ALERTS) - {"BraidDown", "BraidInternalError", "BraidPoolExhausted"}
