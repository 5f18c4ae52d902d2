import asyncpg
import pytest
from support.api import client_of, serving

from service.db.preflight import check_schema
from service.errors import ConfigurationError


async def test_the_old_version_stays_ready_while_an_upgrade_is_under_way(dsn):
    async with serving(dsn) as app, client_of(app) as client:
        connection = await asyncpg.connect(dsn)
        await connection.execute("UPDATE braid.schema_revision SET version_num = '9999'")
        await connection.close()
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["revision"]) == (200, "9999")


async def test_a_process_starts_on_a_newer_schema_and_not_on_an_older_one(dsn):
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("UPDATE braid.schema_revision SET version_num = '9999'")
        await check_schema(dsn)
        await connection.execute("UPDATE braid.schema_revision SET version_num = '0001'")
        with pytest.raises(ConfigurationError, match="at revision 0001"):
            await check_schema(dsn)
    finally:
        await connection.close()
