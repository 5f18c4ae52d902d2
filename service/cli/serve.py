"""`braid serve`: one server process of a role."""

import asyncio

from service.cli.parser import Arguments
from service.cli.server import free_port, run_server
from service.db.preflight import check_schema
from service.errors import ConfigurationError
from service.settings import Settings, load_settings


def run(arguments: Arguments) -> int:
    """Serve until told to stop."""
    settings = load_settings()
    asyncio.run(check_schema(database_url(settings)))
    host = arguments.host or settings.host
    port = free_port(host, settings.port if arguments.port is None else arguments.port)
    run_server(arguments.role, host, port, drain_seconds=settings.drain_seconds)
    return 0


def database_url(settings: Settings) -> str:
    """The address of the external database; raises `ConfigurationError`."""
    if settings.database_url is None:
        raise ConfigurationError(
            "BRAID_DATABASE_URL is not set (`braid up` brings a database of its own)"
        )
    return settings.database_url.get_secret_value()
