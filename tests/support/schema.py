"""Describes a migrated schema in lines that differ when it does.

`python -m support.schema` (from tests/) writes migrations/schema.txt anew.
"""

import asyncio
import tempfile
from pathlib import Path

import asyncpg

from service.db.embedded import EmbeddedPostgres
from service.db.migrate import migrate

SNAPSHOT = Path(__file__).parents[2] / "migrations" / "schema.txt"

COLUMNS = """
SELECT format('column %s.%s %s%s%s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
              CASE WHEN a.attnotnull THEN ' not null' ELSE '' END,
              coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), ''))
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE c.relnamespace = 'braid'::regnamespace AND c.relkind IN ('r', 'p', 'v')
  AND a.attnum > 0 AND NOT a.attisdropped AND c.relname NOT LIKE 'pgqueuer%'
"""
CONSTRAINTS = """
SELECT format('constraint %s %s', conrelid::regclass, pg_get_constraintdef(oid))
FROM pg_constraint WHERE connamespace = 'braid'::regnamespace AND contype <> 'n'
"""
INDEXES = """
SELECT format('index %s', indexdef) FROM pg_indexes
WHERE schemaname = 'braid' AND tablename NOT LIKE 'pgqueuer%'
"""
POLICIES = """
SELECT format('policy %s on %s to %s using %s', policyname, tablename, roles, qual)
FROM pg_policies WHERE schemaname = 'braid'
"""
FUNCTIONS = """
SELECT format('function %s(%s) %s', proname, pg_get_function_identity_arguments(oid), md5(prosrc))
FROM pg_proc WHERE pronamespace = 'braid'::regnamespace AND proname NOT LIKE '%pgqueuer%'
"""
TRIGGERS = """
SELECT format('trigger %s', pg_get_triggerdef(oid)) FROM pg_trigger
WHERE NOT tgisinternal AND tgrelid::regclass::text LIKE 'braid.%'
  AND tgrelid::regclass::text NOT LIKE '%pgqueuer%'
"""
VIEWS = """
SELECT format('view %s %s', viewname, regexp_replace(definition, '\\s+', ' ', 'g'))
FROM pg_views WHERE schemaname = 'braid'
"""
GRANTS = """
SELECT format('grant %s on %s to %s', privilege_type, table_name, grantee)
FROM information_schema.role_table_grants
WHERE table_schema = 'braid' AND grantee LIKE 'braid%' AND table_name NOT LIKE 'pgqueuer%'
"""


async def describe(dsn: str) -> str:
    """Every column, constraint, index, policy, function, trigger, view and grant, sorted."""
    connection = await asyncpg.connect(dsn)
    try:
        lines = []
        for query in (COLUMNS, CONSTRAINTS, INDEXES, POLICIES, FUNCTIONS, TRIGGERS, VIEWS, GRANTS):
            lines += sorted(line for (line,) in await connection.fetch(query))
    finally:
        await connection.close()
    return "\n".join(lines) + "\n"


async def _write() -> None:
    with tempfile.TemporaryDirectory(prefix="braid-schema-", ignore_cleanup_errors=True) as folder:
        postgres = EmbeddedPostgres(Path(folder))
        dsn = postgres.start()
        try:
            await migrate(dsn)
            SNAPSHOT.write_text(await describe(dsn))
        finally:
            postgres.stop()


if __name__ == "__main__":
    asyncio.run(_write())
