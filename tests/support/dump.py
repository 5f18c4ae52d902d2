"""Everything that a dump of the database holds."""

import asyncpg


async def dump(dsn: str) -> str:
    """Every row of every table as text, secrets in hexadecimal and as they are."""
    connection = await asyncpg.connect(dsn)
    tables = await connection.fetch(
        "SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname = 'braid'"
    )
    rows = [
        row[0]
        for table in tables
        for row in await connection.fetch(f"SELECT t::text FROM {table[0]} t")
    ]
    await connection.close()
    return "\n".join(rows)
