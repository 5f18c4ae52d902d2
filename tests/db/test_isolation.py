"""The second wall: a session sees its team's rows and no others, whatever it asks."""

import asyncpg
import pytest
from support.rows import stored_collection

from service.db.pool import Database
from service.errors import UnavailableError

TABLES = ["collections", "generations", "documents", "jobs"]


async def other_team(database: Database) -> int:
    async with database.administer() as connection:
        team: int = await connection.fetchval(
            "INSERT INTO braid.teams (name) VALUES ('other') RETURNING id"
        )
    return team


async def test_a_reader_sees_only_its_team(database: Database) -> None:
    collection = await stored_collection(database, ["one text", "another text"])
    other = await other_team(database)
    count = "SELECT count(*) FROM braid.searchable WHERE generation_id = $1"
    for team, expected in ((1, 2), (other, 0), (1, 2)):
        async with database.read(team) as connection:
            assert await connection.fetchval(count, collection.generation.id) == expected
            rows = await connection.fetchval("SELECT count(*) FROM braid.collections")
            assert rows == (1 if expected else 0)


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT * FROM braid.chunks",
        "SELECT * FROM braid.api_keys",
        "SELECT * FROM braid.provider_credentials",
        "SELECT * FROM braid.ingests",
        "SELECT * FROM braid.teams",
        "DELETE FROM braid.documents",
        "UPDATE braid.searchable SET text = ''",
        "INSERT INTO braid.jobs (team_id, collection_id, kind) VALUES (1, 1, 'ingest')",
        "SELECT braid.create_partition(1)",
        "CREATE TABLE braid.mine (a int)",
    ],
)
async def test_a_reader_may_read_nothing_else_and_write_nothing(
    database: Database, statement: str
) -> None:
    async with database.read(1) as connection:
        with pytest.raises(
            (asyncpg.InsufficientPrivilegeError, asyncpg.ReadOnlySQLTransactionError)
        ):
            await connection.execute(statement)


async def test_a_writer_touches_only_its_team(database: Database) -> None:
    collection = await stored_collection(database, ["one text"])
    other = await other_team(database)
    async with database.write(other) as connection:
        for table in ("chunks", *TABLES):
            assert await connection.fetchval(f"SELECT count(*) FROM braid.{table}") == 0
        deleted = await connection.execute(
            "DELETE FROM braid.chunks WHERE generation_id = $1", collection.generation.id
        )
        assert deleted == "DELETE 0"
    with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security"):
        async with database.write(other) as connection:
            await connection.execute(
                "INSERT INTO braid.jobs (team_id, collection_id, kind) VALUES (1, $1, 'ingest')",
                collection.id,
            )


async def test_a_failed_statement_leaves_a_reader_as_it_was(database: Database) -> None:
    await stored_collection(database, ["one text"])
    for _ in range(10):
        with pytest.raises(UnavailableError, match="refused"):
            async with database.read(1) as connection:
                await connection.execute("SELECT 1/0")
        async with database.read(1) as connection:
            assert await connection.fetchval("SELECT count(*) FROM braid.searchable") == 1
