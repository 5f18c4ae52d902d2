"""`braid migrate`: bring an external database to the schema of this version."""

import asyncio

from service.app import direct_url
from service.cli.console import err
from service.cli.parser import Arguments
from service.cli.serve import database_url
from service.db.migrate import newest_revision
from service.db.preflight import migrate_or_explain
from service.settings import load_settings


def run(_arguments: Arguments) -> int:
    """Migrate the database of BRAID_DATABASE_URL."""
    settings = load_settings()
    url = database_url(settings)
    asyncio.run(migrate_or_explain(direct_url(settings) or url))
    err.print(f"the schema is at revision {newest_revision()}")
    return 0
