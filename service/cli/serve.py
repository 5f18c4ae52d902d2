"""`braid serve`: one server process of a role."""

import asyncio

from pydantic import SecretStr

from service.cli.parser import Arguments
from service.cli.server import free_port, run_server
from service.db.catalog import stored_revision
from service.db.migrate import newest_revision
from service.db.pool import open_database
from service.errors import ConfigurationError
from service.settings import Settings, load_settings

CHECK_CONNECTIONS = 1


def run(arguments: Arguments) -> int:
    """Serve until told to stop."""
    settings = load_settings()
    asyncio.run(check_schema(settings))
    host = arguments.host or settings.host
    port = free_port(host, settings.port if arguments.port is None else arguments.port)
    run_server(arguments.role, host, port)
    return 0


def database_url(settings: Settings) -> SecretStr:
    """The address of the external database; raises `ConfigurationError`."""
    if settings.database_url is None:
        raise ConfigurationError(
            "BRAID_DATABASE_URL is not set (`braid up` brings a database of its own)"
        )
    return settings.database_url


async def check_schema(settings: Settings) -> None:
    """Raise `ConfigurationError` unless the database holds the schema of this version."""
    database = await open_database(
        database_url(settings).get_secret_value(),
        size=CHECK_CONNECTIONS,
        pgbouncer=settings.db_pgbouncer,
    )
    try:
        found, needed = await stored_revision(database), newest_revision()
    finally:
        await database.close()
    if found != needed:
        state = f"at revision {found}" if found else "missing"
        raise ConfigurationError(
            f"the schema is {state}, {needed} is needed: run `braid migrate` first"
        )
