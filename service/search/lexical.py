"""The lexical leg: lexemes of the query, their frequencies, and which way answers."""

import math
from collections.abc import Mapping, Sequence, Set
from itertools import chain, islice
from typing import Literal

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
from service.db.segments import Segment
from service.models import Candidate
from service.search.fusion import NO_EVIDENCE, LexicalEvidence
from service.search.packed import PackedAnswer, PackedIndex, PackedWeights, search_packed
from service.search.planning import (
    LexicalPlan,
    all_of,
    any_of,
    plan_lexical,
    positions_of,
    weigh,
)
from service.search.request import SearchPlan
from service.search.statistics import EXACT_ROWS, StatisticsCache
from service.text import (
    Analyzer,
    Clause,
    Prepared,
    lexeme_hash,
    parse_websearch,
    prepare,
)

MAX_TOKENS = 100


class LexicalAnswer(msgspec.Struct, frozen=True):
    """The ranked leg and how it was found."""

    candidates: list[Candidate]
    weights: Mapping[str, float]
    exact: bool
    named: Set[str] = frozenset()
    """Lexemes of the query that are identifiers or parts of them."""
    path: Literal["gin", "packed"] = "gin"
    """Whether the index of the rows answered, or the packed posting lists."""
    rows: int = 0
    """Of the generation, as the weights count them."""
    lexemes: Sequence[QueryLexeme] = ()

    @property
    def evidence(self) -> LexicalEvidence:
        """How well the leg did with this query."""
        total = math.fsum(self.weights.values())
        if not self.candidates or not total:
            return NO_EVIDENCE
        named = math.fsum(weight for one, weight in self.weights.items() if one in self.named)
        return LexicalEvidence(min(1.0, self.candidates[0].score / total), named / total)


class CorpusCache(msgspec.Struct, frozen=True):
    """What a process remembers of the corpora it searches."""

    statistics: StatisticsCache
    packed: PackedIndex

    def forget(self) -> None:
        """Remember nothing of any corpus."""
        self.statistics.forget()
        self.packed.forget()


NOTHING = LexicalAnswer([], {}, exact=True)


async def lexical_leg(
    database: Database, corpus: CorpusCache, plan: SearchPlan, query: CandidateQuery
) -> LexicalAnswer:
    """Rank the rows of the plan's generation by BM25 for its text."""
    generation = plan.collection.generation
    known = await corpus.statistics.of(database, generation)
    async with database.read(generation.team_id) as connection:
        analyzer = await load_analyzer(connection, generation)
        return await _Leg(connection, corpus, plan, query, analyzer, known.rows).answer()


class _Leg:
    """One query on one connection."""

    def __init__(  # noqa: PLR0917
        self,
        connection: Connection,
        corpus: CorpusCache,
        plan: SearchPlan,
        query: CandidateQuery,
        analyzer: Analyzer,
        rows: int,
    ) -> None:
        self._connection = connection
        self._corpus = corpus
        self._plan = plan
        self._generation = plan.collection.generation
        self._query = query
        self._analyzer = analyzer
        self._rows = rows
        self._known: Sequence[QueryLexeme] = ()
        self._segments: Sequence[Segment] = ()

    async def answer(self) -> LexicalAnswer:
        operator = self._plan.request.lexical.operator
        text = self._plan.text or ""
        clauses: Sequence[Clause] = ()
        if operator == "websearch":
            clauses = parse_websearch(text)[:MAX_TOKENS]
            text = " ".join(clause.text for clause in clauses if not clause.negated)
        prepared = _clipped(prepare(text, self._analyzer))
        if operator == "and":
            # A row need not hold a word in every way that it may be written.
            prepared = msgspec.structs.replace(prepared, words=_first(prepared.phrase))
        if self._rows > EXACT_ROWS:
            self._segments = await self._corpus.packed.segments(self._connection, self._generation)
        lexemes = await self._lexemes(prepared)
        if not lexemes:
            return NOTHING
        self._known = lexemes
        weights = weigh(lexemes, self._rows)
        named = await self._named_lexemes(prepared)
        if self._segments and operator == "or":
            answer = await self._packed(weights)
            if answer is not None:
                return self._answer(answer.candidates, weights, answer.exact, named, path="packed")
        return await self._bounded(await self._plan_rows(lexemes, weights, clauses), named)

    async def _plan_rows(
        self,
        lexemes: Sequence[QueryLexeme],
        weights: Mapping[str, float],
        clauses: Sequence[Clause],
    ) -> LexicalPlan:
        operator = self._plan.request.lexical.operator
        if operator == "and":
            return LexicalPlan(all_of(weights), weights)
        if operator == "websearch":
            tsquery = await websearch_query(self._connection, self._analyzer, clauses)
            return LexicalPlan(tsquery, weights)
        return plan_lexical(lexemes, self._rows, self._generation)

    async def _packed(self, weights: Mapping[str, float]) -> PackedAnswer | None:
        return await search_packed(
            self._connection,
            self._corpus.packed,
            self._segments,
            self._query,
            PackedWeights(positions_of(weights), any_of(weights), self._generation.k1),
        )

    async def _bounded(self, chosen: LexicalPlan, named: Set[str]) -> LexicalAnswer:
        if not chosen.tsquery:
            return NOTHING
        connection, query = self._connection, self._query
        weights = positions_of(chosen.weights)
        candidates = await lexical_candidates(connection, query, chosen.tsquery, weights)
        if chosen.unseen_bound and len(candidates) < query.limit:
            # Whoever asks for more rows than hold the rare words gets those with a common one.
            chosen = LexicalPlan(any_of(chosen.weights), chosen.weights)
            candidates = await lexical_candidates(connection, query, chosen.tsquery, weights)
        exact = _is_proven(candidates, chosen, self._plan.request.k)
        return self._answer(candidates, chosen.weights, exact, named, path="gin")

    async def _named_lexemes(self, prepared: Prepared) -> Set[str]:
        """Lexemes of identifiers and of their parts, stemmed as the query's are."""
        if not prepared.identifiers:
            return frozenset()
        lexemes = await self._corpus.statistics.lexemes_of(
            self._connection, self._analyzer.configuration, prepared.identifier_words
        )
        return frozenset(chain(prepared.identifiers, *lexemes.values()))

    def _answer(
        self,
        candidates: list[Candidate],
        weights: Mapping[str, float],
        exact: bool,
        named: Set[str],
        path: Literal["gin", "packed"],
    ) -> LexicalAnswer:
        return LexicalAnswer(candidates, weights, exact, named, path, self._rows, self._known)

    async def _lexemes(self, prepared: Prepared) -> list[QueryLexeme]:
        """Lexemes with their frequencies.

        A query of nothing but stop words is asked by its adjacent pairs of them.
        """
        lexemes = await self._count(prepared)
        if not lexemes and prepared.stop_pairs:
            return await self._count(Prepared("", prepared.stop_pairs, (), {}))
        return lexemes

    async def _count(self, prepared: Prepared) -> list[QueryLexeme]:
        connection, generation = self._connection, self._generation
        configuration = self._analyzer.configuration
        if self._rows <= EXACT_ROWS:
            counted, rows = await counted_lexemes(
                connection, generation.id, configuration, prepared
            )
            self._rows = rows
            return counted
        found = await self._corpus.statistics.lexemes(connection, configuration, prepared)
        if self._segments:
            self._rows = sum(segment.rows for segment in self._segments)
            frequencies = await self._packed_frequencies(list(found))
        else:
            frequencies = await self._corpus.statistics.frequencies(
                connection, generation, list(found)
            )
        return [QueryLexeme(lexeme, tf, frequencies[lexeme]) for lexeme, tf in found.items()]

    async def _packed_frequencies(self, lexemes: Sequence[str]) -> dict[str, int]:
        places = {lexeme: lexeme_hash(lexeme) for lexeme in lexemes}
        lists = await self._corpus.packed.lists(
            self._connection, self._segments, list(set(places.values()))
        )
        return {
            lexeme: sum(lists[segment.id, place].rows for segment in self._segments)
            for lexeme, place in places.items()
        }


async def websearch_query(
    connection: Connection, analyzer: Analyzer, clauses: Sequence[Clause]
) -> str:
    """The tsquery of a websearch: groups of clauses, each group with something to find."""
    prepared = [prepare(clause.text, analyzer) for clause in clauses]
    phrases = await phrase_queries(
        connection, analyzer.configuration, [one.phrase for one in prepared]
    )
    groups: list[list[tuple[Clause, str]]] = [[]]
    for clause, one, phrase in zip(clauses, prepared, phrases, strict=True):
        if clause.alternative:
            groups.append([])
        pairs = one.stop_pairs if clause.phrase else ()
        groups[-1].append((clause, phrase or all_of(one.exact or pairs)))
    return " | ".join(filter(None, (_group_query(group, analyzer) for group in groups)))


def _group_query(group: Sequence[tuple[Clause, str]], analyzer: Analyzer) -> str:
    """All clauses of a group; one that is a stop word demands nothing of its own."""
    wanted = [f"({query})" for clause, query in group if query and not clause.negated]
    if not wanted:
        text = " ".join(clause.text for clause, _ in group if not clause.negated)
        pairs = all_of(prepare(text, analyzer).stop_pairs)
        wanted = [f"({pairs})"] if pairs else []
    unwanted = [f"!({query})" for clause, query in group if query and clause.negated]
    return "(" + " & ".join([*wanted, *unwanted]) + ")" if wanted else ""


def _clipped(prepared: Prepared) -> Prepared:
    """At most `MAX_TOKENS` of each kind, however much text was pasted."""
    return msgspec.structs.replace(
        prepared,
        words=_first(prepared.words),
        exact=dict(islice(prepared.exact.items(), MAX_TOKENS)),
        stop_pairs=dict(islice(prepared.stop_pairs.items(), MAX_TOKENS)),
    )


def _first(words: str) -> str:
    return " ".join(words.split(" ", MAX_TOKENS)[:MAX_TOKENS])


def _is_proven(candidates: Sequence[Candidate], plan: LexicalPlan, k: int) -> bool:
    if plan.unseen_bound == 0:
        return True
    return len(candidates) >= k and candidates[k - 1].score >= plan.unseen_bound
