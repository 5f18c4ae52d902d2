"""The lexical leg: lexemes of the query, their weights, and which rows to look at."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import msgspec

from service.db.analyzers import load_analyzer
from service.db.candidates import CandidateQuery
from service.db.lexical import (
    QueryLexeme,
    counted_lexemes,
    lexical_candidates,
    phrase_queries,
)
from service.db.pool import Connection, Database
from service.models import Candidate, Generation
from service.search.request import SearchPlan
from service.search.statistics import EXACT_ROWS, StatisticsCache
from service.text import (
    Analyzer,
    Clause,
    Prepared,
    lexeme_hash,
    parse_websearch,
    prepare,
    quote_lexeme,
)

MAX_TOKENS = 100
RARE_SHARE = 0.01
RARE_ROWS = 3


class LexicalPlan(msgspec.Struct, frozen=True):
    """Which rows are candidates, how lexemes weigh, and what the others could reach at most."""

    tsquery: str
    weights: Mapping[str, float]
    """idf x query tf by lexeme; every lexeme scores, whether or not it finds candidates."""
    unseen_bound: float = 0.0
    """No row outside the candidates can score more; 0 when every matching row is one."""


class LexicalAnswer(msgspec.Struct, frozen=True):
    """The ranked leg and how it was found."""

    candidates: list[Candidate]
    weights: Mapping[str, float]
    exact: bool
    rare_identifier: bool
    """The query holds an identifier that few rows hold."""


NOTHING = LexicalAnswer([], {}, exact=True, rare_identifier=False)


def idf(rows: int, frequency: int) -> float:
    """Inverse document frequency of BM25 (Robertson & Zaragoza 2009), never negative."""
    frequency = min(frequency, rows)
    return math.log1p((rows - frequency + 0.5) / (frequency + 0.5))


def plan_lexical(lexemes: Sequence[QueryLexeme], rows: int, generation: Generation) -> LexicalPlan:
    """Candidates under the row budget: rows with the rarest lexemes, or with all of them."""
    weights = {one.lexeme: one.tf * idf(rows, one.frequency) for one in lexemes}
    rarest = sorted(lexemes, key=lambda one: (one.frequency, one.lexeme))
    chosen: list[str] = []
    total = 0
    for one in rarest:
        total += one.frequency
        if chosen and total > generation.row_budget:
            break
        chosen.append(one.lexeme)
    tsquery = any_of(chosen)
    left_out = [one.lexeme for one in rarest[len(chosen) :]]
    if left_out:
        tsquery = f"{tsquery} | ({all_of(weights)})"
    bound = (generation.k1 + 1) * sum(weights[lexeme] for lexeme in left_out)
    return LexicalPlan(tsquery, weights, bound)


async def lexical_leg(
    database: Database, statistics: StatisticsCache, plan: SearchPlan, query: CandidateQuery
) -> LexicalAnswer:
    """Rank the rows of the plan's generation by BM25 for its text."""
    generation = plan.collection.generation
    text, operator = plan.text or "", plan.request.lexical.operator
    clauses = parse_websearch(text)[:MAX_TOKENS] if operator == "websearch" else ()
    if clauses:
        text = " ".join(clause.text for clause in clauses if not clause.negated)
    known = await statistics.of(database, generation)
    async with database.read(generation.team_id) as connection:
        analyzer = await load_analyzer(connection, generation)
        prepared = _bounded(prepare(text, analyzer))
        counter = _Counter(connection, statistics, generation, analyzer, known.rows)
        lexemes, rows = await counter.lexemes(prepared)
        chosen = plan_lexical(lexemes, rows, generation)
        if operator == "and":
            chosen = LexicalPlan(all_of(chosen.weights), chosen.weights)
        elif operator == "websearch":
            tsquery = await websearch_query(connection, analyzer, clauses)
            chosen = LexicalPlan(tsquery, chosen.weights)
        if not lexemes or not chosen.tsquery:
            return NOTHING
        weights = _by_position(chosen.weights)
        candidates = await lexical_candidates(connection, query, chosen.tsquery, weights)
        if chosen.unseen_bound and len(candidates) < query.limit:
            # Whoever asks for more rows than hold the rare words gets those with a common one.
            chosen = LexicalPlan(any_of(chosen.weights), chosen.weights)
            candidates = await lexical_candidates(connection, query, chosen.tsquery, weights)
    return LexicalAnswer(
        candidates,
        chosen.weights,
        exact=_is_proven(candidates, chosen, plan.request.k),
        rare_identifier=_has_rare_identifier(prepared, lexemes, rows),
    )


class _Counter:
    """Counts the lexemes of one query on one connection."""

    def __init__(
        self,
        connection: Connection,
        statistics: StatisticsCache,
        generation: Generation,
        analyzer: Analyzer,
        rows: int,
    ) -> None:
        self._connection = connection
        self._statistics = statistics
        self._generation = generation
        self._configuration = analyzer.configuration
        self._rows = rows

    async def lexemes(self, prepared: Prepared) -> tuple[list[QueryLexeme], int]:
        """Lexemes with their frequencies, and the rows of the generation.

        A query of nothing but stop words is asked by its adjacent pairs of them.
        """
        lexemes, rows = await self._count(prepared)
        if not lexemes and prepared.stop_pairs:
            return await self._count(Prepared("", prepared.stop_pairs, (), {}))
        return lexemes, rows

    async def _count(self, prepared: Prepared) -> tuple[list[QueryLexeme], int]:
        if self._rows <= EXACT_ROWS:
            return await counted_lexemes(
                self._connection, self._generation.id, self._configuration, prepared
            )
        found = await self._statistics.lexemes(self._connection, self._configuration, prepared)
        frequencies = await self._statistics.frequencies(
            self._connection, self._generation, list(found)
        )
        lexemes = [QueryLexeme(lexeme, tf, frequencies[lexeme]) for lexeme, tf in found.items()]
        return lexemes, self._rows


async def websearch_query(
    connection: Connection, analyzer: Analyzer, clauses: Sequence[Clause]
) -> str:
    """The tsquery of a websearch: groups of clauses, each group with something to find."""
    prepared = [prepare(clause.text, analyzer) for clause in clauses]
    phrases = await phrase_queries(
        connection, analyzer.configuration, [one.phrase for one in prepared]
    )
    groups: list[tuple[list[str], list[str]]] = [([], [])]
    for clause, one, phrase in zip(clauses, prepared, phrases, strict=True):
        if clause.alternative:
            groups.append(([], []))
        condition = phrase or all_of(one.exact or one.stop_pairs)
        if condition:
            groups[-1][clause.negated].append(f"({condition})")
    return " | ".join(
        "(" + " & ".join([*wanted, *(f"!{condition}" for condition in unwanted)]) + ")"
        for wanted, unwanted in groups
        if wanted
    )


def any_of(lexemes: Iterable[str]) -> str:
    """A tsquery that one of the lexemes must match."""
    return " | ".join(map(quote_lexeme, lexemes))


def all_of(lexemes: Iterable[str]) -> str:
    """A tsquery that every one of the lexemes must match."""
    return " & ".join(map(quote_lexeme, lexemes))


def _bounded(prepared: Prepared) -> Prepared:
    """At most `MAX_TOKENS` of each kind, however much text was pasted."""
    return msgspec.structs.replace(
        prepared,
        words=" ".join(prepared.words.split(" ", MAX_TOKENS)[:MAX_TOKENS]),
        exact=dict(islice(prepared.exact.items(), MAX_TOKENS)),
        stop_pairs=dict(islice(prepared.stop_pairs.items(), MAX_TOKENS)),
    )


def _by_position(weights: Mapping[str, float]) -> dict[int, float]:
    positions: dict[int, float] = {}
    for lexeme, weight in weights.items():
        place = lexeme_hash(lexeme)
        positions[place] = positions.get(place, 0.0) + weight
    return positions


def _is_proven(candidates: Sequence[Candidate], plan: LexicalPlan, k: int) -> bool:
    if plan.unseen_bound == 0:
        return True
    return len(candidates) >= k and candidates[k - 1].score >= plan.unseen_bound


def _has_rare_identifier(prepared: Prepared, lexemes: Sequence[QueryLexeme], rows: int) -> bool:
    few = max(RARE_ROWS, RARE_SHARE * rows)
    rare = {one.lexeme for one in lexemes if 0 < one.frequency <= few}
    return not rare.isdisjoint(prepared.identifiers)
