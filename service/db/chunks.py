"""Chunks and summaries: the rows that are searched, written in a few statements a batch."""

import contextlib
from collections.abc import Iterator, Sequence

import asyncpg
import msgspec
import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from service.db.documents import as_json
from service.db.pool import Connection
from service.models import Generation, Metadata, RecordType

STORED = """
SELECT document_id, id, type, chunk_id, position, content_hash, start_offset IS NOT NULL
FROM braid.chunks WHERE generation_id = $1 AND document_id = ANY($2)
ORDER BY document_id, type, position, chunk_id
"""

REMOVE = "DELETE FROM braid.chunks WHERE generation_id = $1 AND id = ANY($2)"

# The ids of moved rows are unique only when all have moved; no client's id holds a control
# character, so these never collide.
PARK = """
UPDATE braid.chunks SET chunk_id = chr(1) || id WHERE generation_id = $1 AND id = ANY($2)
"""

KEEP = """
UPDATE braid.chunks c SET chunk_id = new.chunk_id, position = new.position, title = new.title,
    source = new.source, metadata = new.metadata,
    start_offset = new.start_offset, end_offset = new.end_offset, headings = new.headings
FROM unnest($2::bigint[], $3::text[], $4::int[], $5::text[], $6::text[], $7::jsonb[], $8::int[],
            $9::int[], $10::text[])
    AS new (id, chunk_id, position, title, source, metadata, start_offset, end_offset, headings)
WHERE c.generation_id = $1 AND c.id = new.id
  AND (c.chunk_id, c.position, c.title, c.source, c.metadata, c.start_offset, c.end_offset,
       c.headings)
      IS DISTINCT FROM (new.chunk_id, new.position, new.title, new.source, new.metadata,
                        new.start_offset, new.end_offset, new.headings)
"""

ADD = """
INSERT INTO braid.chunks (generation_id, team_id, document_id, type, chunk_id, doc_id, position,
    title, source, metadata, text, context, context_due, start_offset, end_offset, headings,
    content_hash, embedding, own_vector, tsv, length, bm25)
SELECT $1, $2, new.document_id, new.type, new.chunk_id, new.doc_id, new.position, new.title,
    new.source, new.metadata, new.text, new.context, new.context_due, new.start_offset,
    new.end_offset, new.headings, new.content_hash, new.embedding, new.own_vector, lexemes.tsv,
    counted.length, braid.bm25_document(lexemes.tsv, counted.length, $4, $5, $6)
FROM unnest($7::bigint[], $8::text[], $9::text[], $10::text[], $11::int[], $12::text[],
            $13::text[], $14::jsonb[], $15::text[], $16::int[], $17::int[], $18::bytea[],
            $19::halfvec[], $20::boolean[], $21::text[], $22::text[], $23::text[], $24::text[],
            $25::text[], $26::boolean[], $27::text[])
    AS new (document_id, type, chunk_id, doc_id, position, title, source, metadata, text,
            start_offset, end_offset, content_hash, embedding, own_vector, exact, words,
            title_exact, title_words, context, context_due, headings)
CROSS JOIN LATERAL (
    SELECT new.exact::tsvector || to_tsvector($3::text::regconfig, new.words)
        || setweight(new.title_exact::tsvector
                     || to_tsvector($3::text::regconfig, new.title_words), 'A') AS tsv OFFSET 0
) AS lexemes
CROSS JOIN LATERAL (SELECT braid.document_length(lexemes.tsv) AS length OFFSET 0) AS counted
"""

# A chunk's own keys are those whose value differs from what its document had.
RETITLE = """
UPDATE braid.chunks c SET title = $3, source = $4, metadata = $5::jsonb || coalesce((
    SELECT jsonb_object_agg(key, value) FROM jsonb_each(c.metadata)
    WHERE value IS DISTINCT FROM $6::jsonb -> key), '{}')
WHERE generation_id = $1 AND id = ANY($2)
"""

# The words of the title have weight A. Row numbers never name other lexemes, so these are new.
RETITLE_LEXEMES = """
UPDATE braid.chunks c SET id = nextval('braid.chunk_row_seq'), tsv = lexemes.tsv,
    length = counted.length, bm25 = braid.bm25_document(lexemes.tsv, counted.length, $4, $5, $6)
FROM unnest($7::bigint[], $8::text[], $9::text[]) AS new (id, title_exact, title_words)
JOIN braid.chunks old ON old.generation_id = $1 AND old.id = new.id
CROSS JOIN LATERAL (
    SELECT ts_filter(old.tsv, '{d}')
        || setweight(new.title_exact::tsvector
                     || to_tsvector($3::text::regconfig, new.title_words), 'A') AS tsv OFFSET 0
) AS lexemes
CROSS JOIN LATERAL (SELECT braid.document_length(lexemes.tsv) AS length OFFSET 0) AS counted
WHERE c.generation_id = $1 AND c.team_id = $2 AND c.id = new.id
"""

METADATA = """
SELECT generation_id, id, type, metadata FROM braid.chunks
WHERE generation_id = ANY($1) AND document_id = $2
"""
SET_METADATA = """
UPDATE braid.chunks c SET metadata = new.metadata
FROM unnest($1::bigint[], $2::bigint[], $3::jsonb[]) AS new (generation_id, id, metadata)
WHERE c.generation_id = ANY($4) AND c.generation_id = new.generation_id AND c.id = new.id
"""
GENERATIONS = """
SELECT id FROM braid.generations WHERE collection_id = $1 AND state <> 'discarded'
ORDER BY id FOR SHARE
"""
DELETE_DOCUMENT = """
DELETE FROM braid.chunks WHERE generation_id = ANY($1) AND document_id = $2
RETURNING generation_id
"""
REFUSED = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.ProgramLimitExceededError,
)


class RefusedRowsError(Exception):
    """The database does not take these rows; says why without showing them."""


@contextlib.contextmanager
def refusals_named() -> Iterator[None]:
    """Raise `RefusedRowsError` when the database refuses the rows of a statement."""
    try:
        yield
    except REFUSED as error:
        raise RefusedRowsError(f"the database refused its chunks ({error.sqlstate})") from error


class StoredRow(msgspec.Struct, frozen=True):
    """What deciding needs to know of a row that is there."""

    document: int
    row: int
    type: RecordType
    chunk_id: str
    position: int
    content_hash: bytes
    raw: bool
    """Split from the document's own text, not given by the client."""


class Placement(msgspec.Struct, frozen=True):
    """Where a record belongs and what it is filed under; may change without re-indexing it."""

    chunk_id: str
    position: int
    title: str | None
    source: str | None
    metadata: Metadata
    start: int | None
    end: int | None
    """Offsets of a raw chunk in its document's text, in characters."""
    headings: Sequence[str] = ()
    """What it stands under in the document, outermost first."""


def as_column(headings: Sequence[str]) -> str | None:
    """Headings, which have no line ends, as the column has them."""
    return "\n".join(headings) or None


class TitleLexemes(msgspec.Struct, frozen=True):
    """The title of a document as the lexical index of each of its rows has it."""

    exact: str
    """A tsvector literal of lexemes that no configuration may touch."""
    words: str


class NewRow(msgspec.Struct, frozen=True):
    """A record to index."""

    document: int
    doc_id: str
    type: RecordType
    placement: Placement
    text: str
    content_hash: bytes
    exact: str
    """A tsvector literal of lexemes that no configuration may touch."""
    words: str
    title: TitleLexemes
    embedding: NDArray[np.float16] | None
    own_vector: bool
    """The client's, not made from the text."""
    context: str | None = None
    """The header that situates it."""
    context_due: bool = False
    """The header could not be made yet."""


class Shared(msgspec.Struct, frozen=True):
    """What the records of a document have in common, before and after."""

    title: str | None
    source: str | None
    metadata: Metadata
    old_metadata: Metadata


async def stored_rows(
    connection: Connection, generation_id: int, documents: Sequence[int]
) -> dict[int, list[StoredRow]]:
    """The rows of each document in reading order."""
    found: dict[int, list[StoredRow]] = {document: [] for document in documents}
    for row in await connection.fetch(STORED, generation_id, documents):
        found[row["document_id"]].append(StoredRow(*row))
    return found


async def remove_rows(connection: Connection, generation_id: int, rows: Sequence[int]) -> None:
    """Delete rows."""
    await connection.execute(REMOVE, generation_id, rows)


async def keep_rows(
    connection: Connection,
    generation_id: int,
    kept: Sequence[tuple[StoredRow, Placement]],
) -> None:
    """Give rows that stay indexed as they are their new places."""
    moved = [stored.row for stored, placed in kept if stored.chunk_id != placed.chunk_id]
    if moved:
        await connection.execute(PARK, generation_id, moved)
    placements = [placed for _, placed in kept]
    await connection.execute(
        KEEP,
        generation_id,
        [stored.row for stored, _ in kept],
        [placed.chunk_id for placed in placements],
        [placed.position for placed in placements],
        [placed.title for placed in placements],
        [placed.source for placed in placements],
        [as_json(placed.metadata) for placed in placements],
        [placed.start for placed in placements],
        [placed.end for placed in placements],
        [as_column(placed.headings) for placed in placements],
    )


async def add_rows(
    connection: Connection, generation: Generation, configuration: str, rows: Sequence[NewRow]
) -> None:
    """Index new rows; raises `RefusedRowsError`."""
    placements = [row.placement for row in rows]
    with refusals_named():
        await connection.execute(
            ADD,
            generation.id,
            generation.team_id,
            configuration,
            generation.average_length,
            generation.k1,
            generation.b,
            [row.document for row in rows],
            [row.type for row in rows],
            [placed.chunk_id for placed in placements],
            [row.doc_id for row in rows],
            [placed.position for placed in placements],
            [placed.title for placed in placements],
            [placed.source for placed in placements],
            [as_json(placed.metadata) for placed in placements],
            [row.text for row in rows],
            [placed.start for placed in placements],
            [placed.end for placed in placements],
            [row.content_hash for row in rows],
            [None if row.embedding is None else HalfVector(row.embedding) for row in rows],
            [row.own_vector for row in rows],
            [row.exact for row in rows],
            [row.words for row in rows],
            [row.title.exact for row in rows],
            [row.title.words for row in rows],
            [row.context for row in rows],
            [row.context_due for row in rows],
            [as_column(placed.headings) for placed in placements],
        )


async def retitle_rows(
    connection: Connection,
    generation: Generation,
    configuration: str,
    rows: Sequence[tuple[int, TitleLexemes]],
) -> None:
    """Find rows by the words of another title from now on; they get new numbers."""
    await connection.execute(
        RETITLE_LEXEMES,
        generation.id,
        generation.team_id,
        configuration,
        generation.average_length,
        generation.k1,
        generation.b,
        [row for row, _ in rows],
        [title.exact for _, title in rows],
        [title.words for _, title in rows],
    )


async def share_anew(
    connection: Connection, generation_id: int, rows: Sequence[int], shared: Shared
) -> None:
    """Give records their document's new title, source and metadata; their own keys stay."""
    await connection.execute(
        RETITLE,
        generation_id,
        rows,
        shared.title,
        shared.source,
        as_json(shared.metadata),
        as_json(shared.old_metadata),
    )


async def hold_generations(connection: Connection, collection_id: int) -> list[int]:
    """All generations of a collection that hold rows, held still until the transaction ends."""
    return [row["id"] for row in await connection.fetch(GENERATIONS, collection_id)]


async def delete_records(
    connection: Connection, generations: Sequence[int], document: int
) -> dict[int, int]:
    """Delete the records of a document; how many by generation."""
    counts: dict[int, int] = {}
    for row in await connection.fetch(DELETE_DOCUMENT, generations, document):
        counts[row["generation_id"]] = counts.get(row["generation_id"], 0) + 1
    return counts


class RecordMetadata(msgspec.Struct, frozen=True):
    """The metadata of one record."""

    generation: int
    row: int
    type: RecordType
    metadata: Metadata


async def record_metadata(
    connection: Connection, generations: Sequence[int], document: int
) -> list[RecordMetadata]:
    """The metadata of all records of a document."""
    return [
        RecordMetadata(
            row["generation_id"], row["id"], row["type"], msgspec.json.decode(row["metadata"])
        )
        for row in await connection.fetch(METADATA, generations, document)
    ]


async def set_record_metadata(
    connection: Connection, generations: Sequence[int], records: Sequence[RecordMetadata]
) -> None:
    """Replace the metadata of records."""
    await connection.execute(
        SET_METADATA,
        [record.generation for record in records],
        [record.row for record in records],
        [as_json(record.metadata) for record in records],
        generations,
    )
