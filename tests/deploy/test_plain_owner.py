"""The database that the manifests ask for is enough: its owner is no superuser."""

import re
import tempfile
from pathlib import Path
from typing import Any

import asyncpg
import yaml
from support.api import client_of, serving
from support.searching import filled, ids, search

from service.db.embedded import EmbeddedPostgres
from service.db.migrate import migrate

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "deploy/kustomize/components/cloudnative-pg/cluster.yaml"
WHALE = {"id": "whale", "text": "the white whale", "vector": [1, 0, 0]}
QUESTION = {"query": {"text": "white whale", "vector": [1, 0, 0]}}


async def prepared(postgres: EmbeddedPostgres, wanted: dict[str, Any]) -> str:
    """What the operator does with `bootstrap.initdb`; the owner's address."""
    owner, name = wanted["owner"], wanted["database"]
    connection = await asyncpg.connect(postgres.dsn())
    await connection.execute(f"CREATE ROLE {owner} LOGIN PASSWORD 'secret'")
    await connection.execute(f"CREATE DATABASE {name} OWNER {owner} TEMPLATE template0")
    await connection.close()
    connection = await asyncpg.connect(postgres.dsn(name))
    for statement in wanted["postInitApplicationSQL"]:
        await connection.execute(statement)
    await connection.close()
    return re.sub(r"//postgres:[^@]*@", f"//{owner}:secret@", postgres.dsn(name))


async def test_the_owner_migrates_indexes_searches_and_deletes() -> None:
    wanted = yaml.safe_load(CLUSTER.read_text())["spec"]["bootstrap"]["initdb"]
    with tempfile.TemporaryDirectory(prefix="braid-tests-", ignore_cleanup_errors=True) as folder:
        postgres = EmbeddedPostgres(Path(folder), settings={"fsync": "off"})
        postgres.start()
        try:
            dsn = await prepared(postgres, wanted)
            await migrate(dsn)
            async with serving(dsn) as app, client_of(app) as client:
                await filled(client, "books", [{"doc_id": "moby", "chunks": [WHALE]}])
                answer = await search(client, "books", **QUESTION)
                assert (ids(answer), answer["degraded"]) == (["whale"], [])
                assert (await client.delete("/v1/collections/books")).status_code == 204
        finally:
            postgres.stop()
