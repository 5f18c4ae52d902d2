"""The lexical leg's SQL: lexemes of a query, document frequencies, candidates by BM25."""

from collections.abc import Mapping, Sequence

import msgspec
from pgvector import SparseVector

from service.db.candidates import CandidateQuery, as_candidates, best_first, eligible
from service.db.pool import Connection, Database
from service.models import Candidate
from service.text import Prepared, tsvector_literal

HASH_SPACE = 2**28
PROBE_LIMIT = 100_000

# A lexeme as a one-word tsquery, whatever it holds.
AS_QUERY = r"('''' || replace(replace(lexeme, '\', '\\'), '''', '''''') || '''')::tsquery"

LEXEMES = """
    SELECT lexeme, greatest(coalesce(cardinality(positions), 1), 1) AS tf
    FROM unnest($1::text::tsvector || to_tsvector($2::text::regconfig, $3))
"""

COUNTED_LEXEMES = f"""
    WITH lexemes AS MATERIALIZED ({LEXEMES})
    SELECT lexeme, tf,
           (SELECT count(*) FROM braid.searchable
            WHERE generation_id = $4 AND tsv @@ {AS_QUERY}) AS frequency,
           (SELECT count(*) FROM braid.searchable WHERE generation_id = $4) AS rows
    FROM lexemes
"""

WORDS = """
    SELECT word, tsvector_to_array(to_tsvector($1::text::regconfig, word)) AS lexemes
    FROM unnest($2::text[]) AS word
"""

PROBES = f"""
    SELECT lexeme, (SELECT count(*) FROM (SELECT FROM braid.searchable
                                          WHERE generation_id = $1 AND tsv @@ {AS_QUERY}
                                          LIMIT {PROBE_LIMIT}) AS found) AS holding
    FROM unnest($2::text[]) AS lexeme
"""

PHRASES = """
    SELECT phraseto_tsquery($1::text::regconfig, words)::text
    FROM unnest($2::text[]) WITH ORDINALITY AS given(words, place) ORDER BY place
"""

# Sampled by ANALYZE with statistics target 500: thousands of lexemes with their frequencies.
STATISTICS = """
    SELECT (SELECT count(*) FROM (SELECT FROM braid.chunks WHERE generation_id = $1
                                  LIMIT 20000) AS counted) AS counted,
           (SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass($2::text)) AS estimated,
           s.most_common_elems::text::text[] AS lexemes, s.most_common_elem_freqs AS shares
    FROM (SELECT) AS one LEFT JOIN pg_stats s
      ON s.schemaname = 'braid' AND s.tablename = $3 AND s.attname = 'tsv'
"""
COUNTED_AT_MOST = 20_000


class QueryLexeme(msgspec.Struct, frozen=True):
    """A lexeme of the query: times in the query, and rows that hold it."""

    lexeme: str
    tf: int
    frequency: int


class LexicalStatistics(msgspec.Struct, frozen=True):
    """Rows of a generation and the frequencies of its common lexemes."""

    rows: int
    common: Mapping[str, int]


async def lexemes_of_words(
    connection: Connection, configuration: str, words: Sequence[str]
) -> dict[str, list[str]]:
    """What a configuration makes of each word: nothing of a stop word, else mostly one lexeme."""
    rows = await connection.fetch(WORDS, configuration, words)
    return {row["word"]: row["lexemes"] for row in rows}


async def counted_lexemes(
    connection: Connection, generation_id: int, configuration: str, prepared: Prepared
) -> tuple[list[QueryLexeme], int]:
    """The lexemes of a prepared query with exact frequencies, and the generation's rows."""
    exact = tsvector_literal(prepared.exact)
    rows = await connection.fetch(
        COUNTED_LEXEMES, exact, configuration, prepared.words, generation_id
    )
    lexemes = [QueryLexeme(lexeme, tf, frequency) for lexeme, tf, frequency, _ in rows]
    return lexemes, rows[0]["rows"] if rows else 0


async def probe_frequencies(
    connection: Connection, generation_id: int, lexemes: Sequence[str]
) -> dict[str, int]:
    """Rows that hold each lexeme, counted through the GIN index up to a bound."""
    rows = await connection.fetch(PROBES, generation_id, lexemes)
    return {row["lexeme"]: row["holding"] for row in rows}


async def phrase_queries(
    connection: Connection, configuration: str, phrases: Sequence[str]
) -> list[str]:
    """A tsquery for each phrase, empty where the configuration drops every word of it."""
    return [query for (query,) in await connection.fetch(PHRASES, configuration, phrases)]


async def lexical_statistics(database: Database, generation_id: int) -> LexicalStatistics:
    """What the planner knows of a generation; exact rows while it is small."""
    table = f"chunks_{generation_id:d}"
    async with database.administer() as connection:
        row = await connection.fetchrow(STATISTICS, generation_id, f"braid.{table}", table)
    assert row is not None
    exact = row["counted"] < COUNTED_AT_MOST
    rows = row["counted"] if exact else max(row["counted"], row["estimated"])
    # The shares end with four numbers about null elements and array lengths.
    shares = (row["shares"] or [])[: len(row["lexemes"] or [])]
    common = {
        lexeme: max(1, round(share * rows))
        for lexeme, share in zip(row["lexemes"] or [], shares, strict=True)
    }
    return LexicalStatistics(rows, common)


async def lexical_candidates(
    connection: Connection, query: CandidateQuery, tsquery: str, weights: Mapping[int, float]
) -> list[Candidate]:
    """Rows that match `tsquery` by BM25, the best first.

    `weights`: idf x query tf by the lexeme's position (from 1) in the document vectors.
    """
    arguments: list[object] = [sparse_weights(weights), tsquery]
    condition = f"{eligible(query, arguments)} AND tsv @@ $2::text::tsquery"
    statement = best_first(query, "-(bm25 <#> $1)", condition, arguments)
    return as_candidates(await connection.fetch(statement, *arguments))


def sparse_weights(weights: Mapping[int, float]) -> SparseVector:
    """The query side of BM25; pgvector's Python type counts positions from 0."""
    return SparseVector({place - 1: weight for place, weight in weights.items()}, HASH_SPACE)
