import asyncpg
from support.api import client_of, serving


async def test_the_old_version_stays_ready_while_an_upgrade_is_under_way(dsn):
    async with serving(dsn) as app, client_of(app) as client:
        connection = await asyncpg.connect(dsn)
        await connection.execute("UPDATE braid.schema_revision SET version_num = '9999'")
        await connection.close()
        answer = await client.get("/readyz")
        assert (answer.status_code, answer.json()["revision"]) == (200, "9999")
