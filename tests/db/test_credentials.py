"""Sealed credentials in the database: opened for their team, sealed anew with a newer key."""

import asyncio

import asyncpg
import pytest
from pydantic import SecretStr

from service.cli import main
from service.db.credentials import (
    Credentials,
    NewCredential,
    insert_credential,
    open_credential,
    reseal,
)
from service.db.pool import Database
from service.errors import NotFoundError, ProviderError
from service.sealing import Sealer

OLD, NEW = "o" * 32, "n" * 32
SECRET = "the-secret"


async def insert(database: Database, name: str, sealer: Sealer, secret: str | None = SECRET) -> int:
    hidden = None if secret is None else SecretStr(secret)
    new = NewCredential(name, "voyage", None, hidden)
    async with database.administer() as connection:
        return (await insert_credential(connection, 1, new, sealer)).id


async def test_a_credential_is_found_by_team_and_name(database: Database) -> None:
    sealer = Sealer([NEW])
    await insert(database, "mine", sealer)
    await insert(database, "open", sealer, None)
    credentials = Credentials(database, sealer)
    found = await credentials.find(1, "mine")
    assert found is not None
    assert found.secret is not None
    assert found.secret.get_secret_value() == SECRET
    assert SECRET not in repr(found)
    without = await credentials.find(1, "open")
    assert without is not None
    assert without.secret is None
    assert await credentials.find(1, "other") is None
    assert await credentials.find(2, "mine") is None


@pytest.mark.parametrize(
    "change",
    ["base_url = 'http://elsewhere'", "kind = 'openai'", "team_id = 2", "sealed_secret = '\\x01'"],
)
async def test_a_row_that_was_changed_does_not_open(database: Database, change: str) -> None:
    sealer = Sealer([NEW])
    row = await insert(database, "mine", sealer)
    async with database.administer() as connection:
        await connection.execute("INSERT INTO braid.teams (name) VALUES ('two')")
        await connection.execute(f"UPDATE braid.provider_credentials SET {change}")
    team = 2 if "team" in change else 1
    with pytest.raises(ProviderError, match="cannot be opened"):
        await Credentials(database, sealer).find(team, "mine")
    async with database.administer() as connection:
        with pytest.raises(ProviderError, match="cannot be opened"):
            await open_credential(connection, team, row, sealer)
        with pytest.raises(NotFoundError):
            await open_credential(connection, 3, row, sealer)


async def test_a_secret_of_one_row_does_not_open_in_another(database: Database) -> None:
    sealer = Sealer([NEW])
    await insert(database, "mine", sealer)
    await insert(database, "other", sealer, "another-secret")
    async with database.administer() as connection:
        await connection.execute(
            "UPDATE braid.provider_credentials SET sealed_secret = (SELECT sealed_secret"
            " FROM braid.provider_credentials WHERE name = 'mine') WHERE name = 'other'"
        )
    with pytest.raises(ProviderError):
        await Credentials(database, sealer).find(1, "other")


async def test_secrets_are_sealed_anew_once(database: Database) -> None:
    await insert(database, "one", Sealer([OLD]))
    await insert(database, "two", Sealer([OLD]), "second")
    await insert(database, "open", Sealer([OLD]), None)
    lost = await insert(database, "lost", Sealer(["x" * 32]))
    both, newest = Sealer([NEW, OLD]), Sealer([NEW])
    for expected in ((2, [lost]), (0, [lost])):
        async with database.administer() as connection:
            assert await reseal(connection, both) == expected
    credentials = Credentials(database, newest)
    for name, secret in (("one", SECRET), ("two", "second")):
        found = await credentials.find(1, name)
        assert found is not None
        assert found.secret is not None
        assert found.secret.get_secret_value() == secret


async def test_braid_reseal_does_it_and_names_what_it_cannot(
    database: Database,
    dsn: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await insert(database, "one", Sealer([OLD]))
    monkeypatch.setenv("BRAID_DATABASE_URL", dsn)
    monkeypatch.setenv("BRAID_SECRET_KEY", f"{NEW},{OLD}")
    assert await asyncio.to_thread(main, ["reseal"]) == 0
    assert "1 secrets" in capsys.readouterr().err
    found = await Credentials(database, Sealer([NEW])).find(1, "one")
    assert found is not None
    monkeypatch.setenv("BRAID_SECRET_KEY", "y" * 32)
    assert await asyncio.to_thread(main, ["reseal"]) == 1
    assert "opens the secrets of providers" in capsys.readouterr().err
    monkeypatch.delenv("BRAID_SECRET_KEY")
    assert await asyncio.to_thread(main, ["reseal"]) == 1


async def test_no_role_of_searches_reads_credentials(database: Database) -> None:
    await insert(database, "mine", Sealer([NEW]))
    async with database.read(1) as connection:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute("SELECT sealed_secret FROM braid.provider_credentials")
    async with database.write(2) as connection:
        assert await connection.fetchval("SELECT count(*) FROM braid.provider_credentials") == 0
