"""The manifests: rendered, and held against what the product really reads and serves."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.app import openapi
from service.cli.server import STOP_SECONDS
from service.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
OVERLAYS = ("dev", "prod")


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


def configured(objects: list[dict[str, Any]]) -> dict[str, str]:
    (config,) = of_kind(objects, "ConfigMap")
    data: dict[str, str] = config["data"]
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
