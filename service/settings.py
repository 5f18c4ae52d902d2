"""Settings: every one is a `BRAID_` variable, read once, never changed."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.errors import ConfigurationError

PREFIX = "BRAID_"


class Settings(BaseSettings):
    """The operator's choices; `docs/reference/settings.md` lists them all."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True
    )

    secrets_dir: Path | None = Field(
        None, description="folder with a file for each secret setting, named like `database_url`"
    )
    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8000, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    data_dir: Path | None = Field(
        None, description="folder of the embedded database and the root key"
    )
    database_url: SecretStr | None = Field(
        None, description="external PostgreSQL (16 or newer, pgvector 0.8 or newer)"
    )
    database_direct_url: SecretStr | None = Field(
        None,
        description="the same database past a pooler: for listening, migrations and the worker",
    )
    database_read_urls: SecretStr | None = Field(
        None, description="streaming replicas that answer searches, separated by spaces or commas"
    )
    replica_max_lag_seconds: float = Field(
        5.0, gt=0, le=3600, description="how far behind a replica may be and still answer searches"
    )
    pg_bindir: str | None = Field(
        None, description="folder with the server's programs, instead of the bundled ones"
    )
    db_pgbouncer: bool = Field(
        False, description="the database URL leads to PgBouncer in transaction mode"
    )
    db_pool_size: int = Field(10, ge=3, le=500, description="connections a process")
    root_api_key: SecretStr | None = Field(
        None, min_length=16, max_length=256, description="key that may do everything, for any team"
    )
    allowed_base_urls: str = Field(
        "", description="comma-separated provider addresses that teams may use"
    )
    secret_key: SecretStr | None = Field(
        None,
        description="comma-separated keys that provider secrets are sealed with, newest first",
    )
    provider_calls_per_team: int = Field(
        8,
        ge=1,
        le=1000,
        description="calls to providers in flight for a team, by searches and by indexing each",
    )
    token_prices: str = Field(
        "",
        description="comma-separated prices in USD for a million tokens, for the cost metric",
    )
    embedding_threads: int = Field(
        1, ge=1, le=64, description="documents that the local model embeds at the same time"
    )
    reranker_dir: Path | None = Field(
        None,
        description="folder with a folder for each cross-encoder of the provider `local`",
    )
    file_seconds: int = Field(
        60, ge=1, le=3600, description="processor time that turning one file into text may take"
    )
    file_memory_mb: int = Field(
        1_000, ge=100, le=100_000, description="memory that turning one file into text may take"
    )
    file_pages: int = Field(2_000, ge=1, le=1_000_000, description="pages that a PDF may have")
    worker_concurrency: int = Field(
        2, ge=1, le=64, description="indexing jobs that a process works on at once"
    )
    index_memory_mb: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        description="memory for building a vector index, instead of maintenance_work_mem",
    )
    rollback_hours: float = Field(
        24.0, ge=0, le=8760, description="hours for which a re-index can be undone"
    )
    job_retention_days: float = Field(
        30.0, gt=0, le=3650, description="days for which jobs that ended can be looked at"
    )
    max_concurrent_searches: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="searches at the same time, instead of as many as connections",
    )
    team_concurrent_searches: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="searches of a team at once while others search, instead of half the cores",
    )
    team_requests_per_second: float | None = Field(
        None, gt=0, le=1_000_000, description="requests a second of a team in each process"
    )
    drain_seconds: float = Field(
        0.0,
        ge=0,
        le=300,
        description="seconds to go on serving, not ready, after being told to stop",
    )
    audit_days: int = Field(
        365, ge=1, le=36_500, description="days for which administrative actions are kept"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="least severe log lines to print"
    )
    otlp_endpoint: str | None = Field(
        None, description="OpenTelemetry collector (OTLP over HTTP); nothing is exported without"
    )
    metrics_port: int | None = Field(
        None, ge=1, le=65535, description="port on which `braid worker` serves `/metrics`, if any"
    )
    url: str = Field(
        "http://127.0.0.1:8000", description="server that `braid index` and `braid search` talk to"
    )
    api_key: SecretStr | None = Field(
        None, description="key that `braid index` and `braid search` send"
    )


def load_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Read the settings; an unknown `BRAID_` variable or a bad value is one clear line."""
    environment = os.environ if environment is None else environment
    given = {
        name.removeprefix(PREFIX).lower(): value
        for name, value in environment.items()
        if name.startswith(PREFIX)
    }
    given = {name: value for name, value in given.items() if value != ""}
    if folder := given.get("secrets_dir"):
        given = _secrets(Path(folder)) | given
    unknown = sorted(set(given) - set(Settings.model_fields))
    if unknown:
        raise ConfigurationError(f"unknown setting {PREFIX}{unknown[0].upper()}")
    try:
        return Settings(**given)  # type: ignore[arg-type]
    except ValidationError as error:
        first = error.errors()[0]
        name = PREFIX + str(first["loc"][0]).upper()
        raise ConfigurationError(f"{name}: {first['msg'].lower()}") from error


def _secrets(folder: Path) -> dict[str, str]:
    """Each file's text under its name; a variable of the same name goes before it."""
    try:
        files = [file for file in folder.iterdir() if not file.name.startswith(".")]
        read = {file.name: file.read_text().strip() for file in files}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{PREFIX}SECRETS_DIR cannot be read") from error
    return {name: text for name, text in read.items() if text != ""}
