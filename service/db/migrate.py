"""Brings a database to the newest schema revision; safe from several processes at once."""

import asyncio
from pathlib import Path

from alembic import command, op
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from service.db.hosts import connect
from service.errors import ConfigurationError

LOCK_KEY = 7_205_759_403
POLL_SECONDS = 0.1
MINIMUM_POSTGRES = 160_000
MINIMUM_PGVECTOR = (0, 8)

SERVER_VERSION = "SELECT current_setting('server_version_num')::int"
PGVECTOR_VERSION = "SELECT default_version FROM pg_available_extensions WHERE name = 'vector'"


def migrations_folder() -> Path:
    """Where the revisions live: beside the package in a checkout, inside it in a wheel."""
    packaged = Path(__file__).parent.parent / "migrations"
    return packaged if packaged.exists() else packaged.parent.parent / "migrations"


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    return config


def newest_revision() -> str:
    """The revision that this code needs."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def execute_script(sql: str) -> None:
    """Run several statements inside the migration's transaction, with a bounded lock wait."""
    bind = op.get_bind()
    bind.execute(text("SET LOCAL lock_timeout = '5s'"))
    driver = bind.connection.dbapi_connection
    driver.run_async(lambda connection: connection.execute(sql))  # type: ignore[union-attr]


async def migrate(dsn: str) -> None:
    """Upgrade to the newest revision; raises `ConfigurationError` on an unfit server."""
    engine = create_async_engine("postgresql+asyncpg://", async_creator=lambda: connect(dsn))
    try:
        async with engine.connect() as connection:
            await _check_server(connection)
            await _acquire_lock(connection)
            try:
                await connection.execute(text("CREATE SCHEMA IF NOT EXISTS braid"))
                await connection.commit()
                await connection.run_sync(_upgrade)
                await connection.commit()
            finally:
                await connection.execute(text(f"SELECT pg_advisory_unlock({LOCK_KEY})"))
    finally:
        await engine.dispose()


async def _check_server(connection: AsyncConnection) -> None:
    version = (await connection.execute(text(SERVER_VERSION))).scalar_one()
    if version < MINIMUM_POSTGRES:
        raise ConfigurationError(
            f"the database is PostgreSQL {version // 10_000}, braid needs 16 or newer"
        )
    vector = (await connection.execute(text(PGVECTOR_VERSION))).scalar_one_or_none()
    if vector is None:
        raise ConfigurationError("the database server has no pgvector, braid needs 0.8 or newer")
    if tuple(int(part) for part in vector.split(".")[:2]) < MINIMUM_PGVECTOR:
        raise ConfigurationError(f"the database server has pgvector {vector}, braid needs 0.8")


async def _acquire_lock(connection: AsyncConnection) -> None:
    # Polled: a session that blocks in pg_advisory_lock holds a snapshot, which CREATE INDEX
    # CONCURRENTLY in the winner would wait for.
    while True:
        locked = await connection.execute(text(f"SELECT pg_try_advisory_lock({LOCK_KEY})"))
        await connection.commit()
        if locked.scalar_one():
            return
        await asyncio.sleep(POLL_SECONDS)


def _upgrade(connection: Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
