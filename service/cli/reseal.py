"""`braid reseal`: seal provider secrets anew with the newest key."""

import asyncio

from service.cli.console import CommandError, err
from service.cli.parser import Arguments
from service.cli.serve import database_url
from service.db.credentials import reseal
from service.db.pool import open_database
from service.db.preflight import check_schema
from service.sealing import Sealer, parse_keys
from service.settings import Settings, load_settings


def run(_arguments: Arguments) -> int:
    """Seal every secret with the newest key; fails when one cannot be opened."""
    settings = load_settings()
    keys = parse_keys(settings.secret_key.get_secret_value() if settings.secret_key else "")
    if not keys:
        raise CommandError("BRAID_SECRET_KEY is not set")
    resealed, closed = asyncio.run(_reseal(settings, Sealer(keys)))
    err.print(f"{resealed} secrets sealed with the newest key")
    if closed:
        listed = ", ".join(map(str, closed))
        raise CommandError(f"no key of BRAID_SECRET_KEY opens the secrets of providers {listed}")
    return 0


async def _reseal(settings: Settings, sealer: Sealer) -> tuple[int, list[int]]:
    dsn = database_url(settings)
    await check_schema(dsn)
    database = await open_database(dsn, size=3, pgbouncer=settings.db_pgbouncer)
    try:
        async with database.administer() as connection:
            return await reseal(connection, sealer)
    finally:
        await database.close()
