"""The manifests: rendered, and held against what the product really reads and serves."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.monitoring import ALERTS, DASHBOARDS, OPERATOR_RULES, operator_rules

from service.app import openapi
from service.cli.server import STOP_SECONDS
from service.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
OVERLAYS = ("dev", "prod")
DIRECT_CONNECTIONS = 3
"""Of a process past the pooler, at most: what it hears of changes by, and its worker's."""
SPARE_CONNECTIONS = 20
"""Migrations, monitoring, replication and people."""


@pytest.fixture(params=OVERLAYS, scope="module")
def rendered(request) -> list[dict[str, Any]]:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    folder = ROOT / "deploy" / "kustomize" / "overlays" / request.param
    command = ["kubectl", "kustomize", str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return list(yaml.safe_load_all(ended.stdout))


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [item for item in objects if item["kind"] == kind]


def pods(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    owners = of_kind(objects, "Deployment") + of_kind(objects, "Job")
    assert len(owners) == 3
    return [owner["spec"]["template"]["spec"] for owner in owners]


def settings_map(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = [
        item for item in of_kind(objects, "ConfigMap") if "BRAID_PORT" in item.get("data", {})
    ]
    return found


def configured(objects: list[dict[str, Any]]) -> dict[str, str]:
    data: dict[str, str] = settings_map(objects)["data"]
    return data


def test_every_variable_is_a_setting_and_its_value_is_taken(rendered):
    values = configured(rendered)
    for pod in pods(rendered):
        for variable in pod["containers"][0]["env"]:
            values[variable["name"]] = variable["value"]
    given = {name.removeprefix(PREFIX).lower(): value for name, value in values.items()}
    assert set(given) <= set(Settings.model_fields)
    assert Settings(**given).host == "0.0.0.0"  # type: ignore[arg-type]


def test_probes_ask_for_paths_that_are_served_on_the_port_that_is_listened_on(rendered):
    port = int(configured(rendered)["BRAID_PORT"])
    paths = openapi()["paths"]
    for deployment in of_kind(rendered, "Deployment"):
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["ports"] == [{"name": "http", "containerPort": port}]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            asked = container[probe]["httpGet"]
            assert asked["port"] == "http"
            assert asked["path"] in paths


def test_a_pod_has_time_to_drain_and_to_finish(rendered):
    drain = float(configured(rendered)["BRAID_DRAIN_SECONDS"])
    for deployment in of_kind(rendered, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        probe = pod["containers"][0]["readinessProbe"]
        assert drain > probe["periodSeconds"] * probe["failureThreshold"]
        assert pod["terminationGracePeriodSeconds"] > drain + STOP_SECONDS


def test_pods_have_no_rights_that_they_do_not_need(rendered):
    for pod in pods(rendered):
        (container,) = pod["containers"]
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "memory" in container["resources"]["limits"]


def test_selectors_find_the_pods_of_their_own_deployment_only(rendered):
    labels = {
        item["metadata"]["name"]: item["spec"]["template"]["metadata"]["labels"]
        for item in of_kind(rendered, "Deployment")
    }
    assert set(labels) == {"search", "indexing"}
    for service in of_kind(rendered, "Service"):
        selector = service["spec"]["selector"].items()
        found = [name for name, given in labels.items() if selector <= given.items()]
        assert found == [service["metadata"]["name"]]


def test_every_object_that_is_named_is_there(rendered):
    made = {(item["kind"], item["metadata"]["name"]) for item in rendered}
    for pod in pods(rendered):
        (container,) = pod["containers"]
        assert ("ServiceAccount", pod["serviceAccountName"]) in made
        assert ("ConfigMap", container["envFrom"][0]["configMapRef"]["name"]) in made
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        (secrets,) = [mount for mount in container["volumeMounts"] if mount["name"] == "secrets"]
        assert secrets["mountPath"] == container["env"][0]["value"]
    for scaler in of_kind(rendered, "HorizontalPodAutoscaler"):
        assert ("Deployment", scaler["spec"]["scaleTargetRef"]["name"]) in made
    for pooler in of_kind(rendered, "Pooler"):
        assert ("Cluster", pooler["spec"]["cluster"]["name"]) in made


def test_connections_of_the_largest_deployment_fit_the_database(rendered):
    clusters = of_kind(rendered, "Cluster")
    if not clusters:
        pytest.skip("the overlay brings no database")
    limit = int(clusters[0]["spec"]["postgresql"]["parameters"]["max_connections"])
    (pooler,) = of_kind(rendered, "Pooler")
    pooled = pooler["spec"]["pgbouncer"]["parameters"]
    scalers = of_kind(rendered, "HorizontalPodAutoscaler")
    processes = sum(item["spec"]["maxReplicas"] + 1 for item in scalers)
    size = int(configured(rendered)["BRAID_DB_POOL_SIZE"])
    servers = int(pooled["default_pool_size"]) * pooler["spec"]["instances"]
    assert processes * DIRECT_CONNECTIONS + servers + SPARE_CONNECTIONS <= limit
    assert processes * (size + size // 2) <= int(pooled["max_client_conn"])


def test_the_component_watches_with_the_rules_and_dashboards_of_the_project(rendered):
    if not of_kind(rendered, "PodMonitor"):
        pytest.skip("the overlay is not watched")
    assert yaml.safe_load(OPERATOR_RULES.read_text()) == operator_rules()
    (rules,) = of_kind(rendered, "PrometheusRule")
    assert rules["spec"] == operator_rules()["spec"]
    (dashboards,) = [
        item
        for item in of_kind(rendered, "ConfigMap")
        if "labels" in item["metadata"] and "grafana_dashboard" in item["metadata"]["labels"]
    ]
    assert dashboards["data"] == {one.name: one.read_text() for one in DASHBOARDS}
    (monitor,) = of_kind(rendered, "PodMonitor")
    label = monitor["spec"]["jobLabel"]
    for deployment in of_kind(rendered, "Deployment"):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert f'job="{labels[label]}"' in ALERTS["BraidDown"]["expr"]
        (wanted,) = monitor["spec"]["selector"]["matchExpressions"]
        assert labels[wanted["key"]] in wanted["values"]
