"""The rate of taking in client vectors, against the least that writing the same rows can cost.

In one run, on one server of its own (embedded PostgreSQL): documents with chunks and vectors go
through intake, queue and a worker until their jobs have ended; then the same rows, with lexemes
made beforehand, are written by a bare COPY into a staging table and INSERT ... SELECT into the
partition of another collection, with the same columns and indexes. The target is 0.6 of its rate.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

import asyncpg
import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector
from pgvector.asyncpg import register_vector
from search_overhead import corpus
from support.indexing import OneEmbedder, finished, make_collection

from service.db.analyzers import load_analyzer
from service.db.embedded import EmbeddedPostgres
from service.db.migrate import migrate
from service.db.pool import Database, open_database
from service.indexing.intake import submit_documents
from service.indexing.planning import Lexemes, lexemes_of
from service.indexing.worker import Worker
from service.models import Collection, IncomingChunk, IncomingDocument

TEAM = 1
CHUNKS_A_REQUEST = 1_000
CHUNKS_A_STATEMENT = 500
CHUNKS_A_DOCUMENT = 10

DOCUMENTS = """
INSERT INTO braid.documents (team_id, collection_id, doc_id, status)
SELECT $1, $2, doc_id, 'ready' FROM unnest($3::text[]) AS doc_id
RETURNING doc_id, id
"""
STAGE = """
CREATE TEMP TABLE staged (document_id bigint, chunk_id text, doc_id text, position int, text text,
    content_hash bytea, embedding halfvec, exact text, words text) ON COMMIT DELETE ROWS
"""
COLUMNS = STAGE[STAGE.index("(") + 1 : STAGE.index(")")]
INSERT = """
INSERT INTO braid.chunks (generation_id, team_id, document_id, type, chunk_id, doc_id, position,
    metadata, text, context_due, content_hash, embedding, own_vector, tsv, length, bm25)
SELECT $1, $2, document_id, 'chunk', chunk_id, doc_id, position, '{}', text, false, content_hash,
    embedding, true, lexemes.tsv, counted.length,
    braid.bm25_document(lexemes.tsv, counted.length, $4, $5, $6)
FROM staged
CROSS JOIN LATERAL (
    SELECT exact::tsvector || to_tsvector($3::text::regconfig, words) AS tsv OFFSET 0) AS lexemes
CROSS JOIN LATERAL (SELECT braid.document_length(lexemes.tsv) AS length OFFSET 0) AS counted
"""
COUNT = "SELECT count(*) FROM braid.chunks WHERE generation_id = $1"


def as_documents(texts: list[str], vectors: NDArray[np.float64]) -> list[IncomingDocument]:
    """Documents of ten chunks each, as the API would have read them."""
    chunks = [
        IncomingChunk(id=f"c{row}", text=text, vector=vectors[row].tolist())
        for row, text in enumerate(texts)
    ]
    starts = range(0, len(chunks), CHUNKS_A_DOCUMENT)
    return [
        IncomingDocument(doc_id=f"d{at}", chunks=chunks[at : at + CHUNKS_A_DOCUMENT])
        for at in starts
    ]


async def through_the_product(
    database: Database, dsn: str, collection: Collection, documents: list[IncomingDocument]
) -> float:
    """Seconds from the first request until every job has ended."""
    worker = Worker(database, dsn, OneEmbedder(None), concurrency=2)
    running = asyncio.create_task(worker.run())
    await asyncio.sleep(1)
    step = CHUNKS_A_REQUEST // CHUNKS_A_DOCUMENT
    began = time.perf_counter()
    jobs = [
        await submit_documents(database, collection, documents[at : at + step])
        for at in range(0, len(documents), step)
    ]
    for job in jobs:
        ended = await finished(database, collection, job)
        assert ended.status == "done", ended
    seconds = time.perf_counter() - began
    worker.stop()
    await running
    return seconds


async def bare(
    dsn: str,
    collection: Collection,
    configuration: str,
    documents: list[IncomingDocument],
    lexemes: dict[str, Lexemes],
) -> float:
    """Seconds to write the same rows by hand, a transaction for each statement."""
    connection = await asyncpg.connect(dsn)
    await register_vector(connection)
    await connection.execute(STAGE)
    generation = collection.generation
    names = [column.split()[0] for column in COLUMNS.replace("\n", " ").split(",")]
    step = CHUNKS_A_STATEMENT // CHUNKS_A_DOCUMENT
    began = time.perf_counter()
    for at in range(0, len(documents), step):
        part = documents[at : at + step]
        async with connection.transaction():
            accepted = await connection.fetch(
                DOCUMENTS, TEAM, collection.id, [one.doc_id for one in part]
            )
            ids = {row["doc_id"]: row["id"] for row in accepted}
            rows = [
                (
                    ids[one.doc_id],
                    chunk.id,
                    one.doc_id,
                    position,
                    chunk.text,
                    bytes(16),
                    HalfVector(chunk.vector),
                    lexemes[chunk.id].exact,
                    lexemes[chunk.id].words,
                )
                for one in part
                for position, chunk in enumerate(one.chunks or [])
            ]
            await connection.copy_records_to_table("staged", records=rows, columns=names)
            await connection.execute(
                INSERT,
                generation.id,
                TEAM,
                configuration,
                generation.average_length,
                generation.k1,
                generation.b,
            )
    seconds = time.perf_counter() - began
    await connection.close()
    return seconds


async def round_of(database: Database, dsn: str, arguments: argparse.Namespace, nth: int) -> float:
    """Measure once; the share of the bare rate."""
    texts, vectors = corpus(arguments.chunks, arguments.dim, np.random.default_rng(nth))
    documents = as_documents([f"{text} n{row}" for row, text in enumerate(texts)], vectors)
    given = {"provider": "none", "model": None, "dim": arguments.dim, "language": "english"}
    ours = await make_collection(database, f"product{nth}", **given)
    theirs = await make_collection(database, f"bare{nth}", **given)
    async with database.read(TEAM) as connection:
        analyzer = await load_analyzer(connection, ours.generation)
    began = time.perf_counter()
    lexemes = {
        chunk.id: lexemes_of(chunk.text or "", analyzer)
        for document in documents
        for chunk in document.chunks or []
    }
    preparing = time.perf_counter() - began
    product = await through_the_product(database, dsn, ours, documents)
    least = await bare(dsn, theirs, analyzer.configuration, documents, lexemes)
    async with database.administer() as connection:
        for collection in (ours, theirs):
            counted = await connection.fetchval(COUNT, collection.generation.id)
            assert counted == arguments.chunks, counted
    rate = arguments.chunks / product
    print(
        f"{rate:6.0f} chunks/s, bare {arguments.chunks / least:6.0f}: {least / product:.2f} of it; "
        f"with lexemes made in its time {(least + preparing) / product:.2f}",
        flush=True,
    )
    return least / product


async def measure(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="braid-ingest-", ignore_cleanup_errors=True) as folder:
        server = EmbeddedPostgres(Path(folder))
        dsn = await asyncio.to_thread(server.start)
        try:
            await migrate(dsn)
            database = await open_database(dsn, size=8)
            shares = [
                await round_of(database, dsn, arguments, nth) for nth in range(arguments.rounds)
            ]
            await database.close()
        finally:
            await asyncio.to_thread(server.stop)
    share = statistics.median(shares)
    print(f"median {share:.2f} of the bare rate, {arguments.dim} dimensions (target 0.60)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=3)
    asyncio.run(measure(parser.parse_args()))


if __name__ == "__main__":
    main()
