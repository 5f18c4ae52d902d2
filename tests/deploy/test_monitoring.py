"""Alerts, dashboards, runbooks and collector agree with each other and with what is measured."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.monitoring import ALERTS, COLLECTOR, DASHBOARDS, MONITORING, ROOT, RULES, panels
from support.prometheus import promtool

from service import instruments
from service.metrics import Instrument

OWN = re.compile(r"\b((?:braid|http|process)_\w+|up)\b(?:\{([^}]*)\})?")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
ADDED_BY_PROMETHEUS = {"job", "instance", "le"}


def measured() -> dict[str, set[str]]:
    """Series that the program emits, and their labels."""
    series: dict[str, set[str]] = {"up": set()}
    for one in vars(instruments).values():
        if isinstance(one, Instrument):
            labels = {label.replace(".", "_") for label in one.labels}
            endings = ("_bucket", "_sum", "_count") if one.kind == "histogram" else ("",)
            series.update({one.prometheus_name + ending: labels for ending in endings})
    return series


MEASURED = measured()
LABELS = set().union(*MEASURED.values())


def expressions() -> Iterator[tuple[str, str]]:
    """Where an expression stands, and the expression."""
    for group in RULES["groups"]:
        for rule in group["rules"]:
            yield rule.get("alert") or rule["record"], rule["expr"]
    for dashboard in DASHBOARDS:
        for panel in panels(dashboard):
            for target in panel["targets"]:
                yield f"{dashboard.stem}: {panel['title']}", target["expr"]


@pytest.mark.parametrize(("place", "expression"), list(expressions()))
def test_an_expression_names_only_what_is_measured(place: str, expression: str) -> None:
    plain = re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)
    used = OWN.findall(plain)
    grouped = {label.strip() for by in GROUPING.findall(plain) for label in by.split(",")}
    assert used or "braid:" in plain, place
    known = set(ADDED_BY_PROMETHEUS)
    for name, matchers in used:
        if name in LABELS:
            continue
        assert name in MEASURED, f"{place} names {name}"
        labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        assert labels <= MEASURED[name] | ADDED_BY_PROMETHEUS, f"{place}: {name}{{{matchers}}}"
        known |= MEASURED[name]
    assert grouped <= known, f"{place} groups by {grouped - known}"


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_a_legend_names_only_labels_that_are_there(dashboard: Path) -> None:
    for panel in panels(dashboard):
        for target in panel["targets"]:
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = {one.strip() for by in GROUPING.findall(target["expr"]) for one in by.split(",")}
            assert wanted <= kept | {"instance"}, panel["title"]


def test_dashboards_are_told_apart_and_ask_one_data_source() -> None:
    uids = [json.loads(one.read_text())["uid"] for one in DASHBOARDS]
    assert len(uids) == len(set(uids)) == 3
    for dashboard in DASHBOARDS:
        shown = panels(dashboard)
        assert len({one["id"] for one in shown}) == len({one["title"] for one in shown})
        assert {one["datasource"]["uid"] for one in shown} == {"${datasource}"}


def test_everything_that_is_measured_is_on_a_dashboard() -> None:
    shown = "\n".join(one.read_text() for one in DASHBOARDS)
    for one in vars(instruments).values():
        if isinstance(one, Instrument) and one is not instruments.REPLICAS:
            assert one.prometheus_name in shown, one.prometheus_name


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_an_alert_has_a_runbook_and_a_test(alert: str) -> None:
    runbook = ROOT / ALERTS[alert]["annotations"]["runbook"]
    assert runbook.name == f"{alert}.md"
    text = runbook.read_text()
    assert "## Look at" in text
    assert "## Do" in text
    assert f"({alert}.md)" in (ROOT / "docs/runbooks/README.md").read_text()
    cases = yaml.safe_load((MONITORING / "alerts_test.yml").read_text())["tests"]
    outcomes = {
        bool(asked["exp_alerts"])
        for case in cases
        for asked in case["alert_rule_test"]
        if asked["alertname"] == alert
    }
    assert outcomes == {True, False}


def test_every_runbook_and_objective_belongs_to_an_alert() -> None:
    pages = {page.stem for page in (ROOT / "docs/runbooks").glob("*.md")} - {"README"}
    assert pages == set(ALERTS)
    named = set(re.findall(r"`(Braid\w+)`", (ROOT / "docs/slo.md").read_text()))
    assert named <= set(ALERTS)


def test_panels_that_runbooks_name_exist() -> None:
    titles = {panel["title"] for dashboard in DASHBOARDS for panel in panels(dashboard)}
    for page in (ROOT / "docs/runbooks").glob("*.md"):
        named = re.findall(r"(?<!\*)\*([^*\n]+)\*(?!\*)", page.read_text())
        for title in named:
            assert any(one.startswith(title) for one in titles), f"{page.name}: {title}"


def test_promtool_accepts_the_rules_and_their_tests(tmp_path: Path) -> None:
    for words in (("check", "rules", "alerts.yml"), ("test", "rules", "alerts_test.yml")):
        ended = promtool(*words, folder=MONITORING)
        assert ended.returncode == 0, ended.stdout + ended.stderr
    ended = promtool("check", "config", "prometheus.yml", folder=MONITORING)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_promtool_accepts_every_expression_of_the_dashboards(tmp_path: Path) -> None:
    asked = [
        target["expr"].replace("$__rate_interval", "1m")
        for dashboard in DASHBOARDS
        for panel in panels(dashboard)
        for target in panel["targets"]
    ]
    rules = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(asked)]
    written = {"groups": [{"name": "panels", "rules": rules}]}
    (tmp_path / "panels.yml").write_text(yaml.safe_dump(written))
    ended = promtool("check", "rules", "panels.yml", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_the_collector_uses_what_it_defines_and_defines_what_it_uses() -> None:
    service = COLLECTOR["service"]
    for kind in ("receivers", "processors", "exporters"):
        used = {name for pipeline in service["pipelines"].values() for name in pipeline[kind]}
        assert used == set(COLLECTOR[kind]), kind
    assert set(service["extensions"]) == set(COLLECTOR["extensions"])
    assert set(service["pipelines"]) == {"traces", "metrics"}
    for pipeline in service["pipelines"].values():
        assert pipeline["processors"][0] == "memory_limiter"
        assert pipeline["processors"][-1] == "batch"
    ports = [
        COLLECTOR["receivers"]["otlp"]["protocols"]["http"]["endpoint"],
        COLLECTOR["exporters"]["prometheus"]["endpoint"],
        COLLECTOR["extensions"]["health_check"]["endpoint"],
    ]
    assert len(set(ports)) == 3
    assert ports[0].endswith(":4318")
    assert ":4318" in (ROOT / "docs/how-to/observe.md").read_text()
