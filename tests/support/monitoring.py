"""What `deploy/` has for watching a service.

`python -m support.monitoring` writes the alert rules as the Prometheus operator wants them.
"""

import json
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy/monitoring"
RULES = yaml.safe_load((MONITORING / "alerts.yml").read_text())
ALERTS = {
    rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"] if "alert" in rule
}
DASHBOARDS = sorted((MONITORING / "dashboards").glob("*.json"))
OPERATOR_RULES = ROOT / "deploy/kustomize/components/monitoring/rules.yaml"
COLLECTOR = yaml.safe_load((ROOT / "deploy/otel-collector/config.yaml").read_text())


def panels(dashboard: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard.read_text())["panels"]
    return found


def operator_rules() -> dict[str, Any]:
    """The object that holds the alert rules in a cluster."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "braid"},
        "spec": RULES,
    }


if __name__ == "__main__":
    head = (
        "# deploy/monitoring/alerts.yml for the Prometheus operator: python -m support.monitoring\n"
    )
    OPERATOR_RULES.write_text(
        head + yaml.safe_dump(operator_rules(), sort_keys=False, width=100_000)
    )
