"""The compose file against what the product reads, serves and needs."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from service.cli.parser import build_parser
from service.cli.server import STOP_SECONDS
from service.settings import Settings, load_settings

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OWN = {name: one for name, one in SERVICES.items() if "build" in one}


@pytest.mark.parametrize("name", OWN)
def test_variables_and_secrets_are_settings_and_the_command_is_one(
    name: str, tmp_path: Path
) -> None:
    service = OWN[name]
    for secret in service["secrets"]:
        assert secret in COMPOSE["secrets"]
        (tmp_path / secret).write_text("postgresql://braid:secret@postgres/braid")
    assert service["environment"]["BRAID_SECRETS_DIR"] == "/run/secrets"
    given = {**service["environment"], "BRAID_SECRETS_DIR": str(tmp_path)}
    settings = load_settings({key: str(value) for key, value in given.items()})
    assert settings.host == "0.0.0.0"
    assert build_parser().parse_args(service["command"]).command in {"serve", "migrate"}
    seconds = int(service["stop_grace_period"].removesuffix("s"))
    assert seconds > settings.drain_seconds + STOP_SECONDS


@pytest.mark.parametrize("name", OWN)
def test_a_container_may_write_to_its_temporary_folder_only(name: str) -> None:
    service = OWN[name]
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert set(service["secrets"]) <= set(Settings.model_fields)


def test_apis_begin_after_the_schema_and_only_this_machine_reaches_them() -> None:
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    after_schema = {"migrate": {"condition": "service_completed_successfully"}}
    port = Settings.model_fields["port"].default
    for name in ("search", "indexing"):
        assert SERVICES[name]["depends_on"] == after_schema
        (published,) = SERVICES[name]["ports"]
        assert published.startswith("127.0.0.1:")
        assert published.endswith(f":{port}")
    assert "ports" not in SERVICES["postgres"]


def test_context_and_dockerfile_are_where_the_file_says() -> None:
    for service in OWN.values():
        context = ROOT / "deploy" / service["build"]["context"]
        assert (context / service["build"]["dockerfile"]).is_file()
