"""What `deploy/` has for watching a service."""

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
COLLECTOR = yaml.safe_load((ROOT / "deploy/otel-collector/config.yaml").read_text())


def panels(dashboard: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(dashboard.read_text())["panels"]
    return found
