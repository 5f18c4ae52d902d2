"""Reads the chosen rows and shapes them as the client sees them."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import msgspec

from service.db.analyzers import load_analyzer
from service.db.hydrate import (
    MAX_SIBLINGS,
    DocumentHeader,
    Surroundings,
    document_headers,
    hydrate,
    impacts,
    surroundings,
)
from service.db.pool import Connection, Database
from service.models import StoredChunk, Vector
from service.search.fusion import Fused, Leg
from service.search.grouping import by_document
from service.search.highlight import highlight, tokens_of
from service.search.lexical import CorpusCache
from service.search.planning import positions_of
from service.search.request import Expand, SearchPlan
from service.search.response import (
    DocumentHit,
    Expansion,
    FusedExplanation,
    Highlight,
    Hit,
    HitExplanation,
    LegExplanation,
    Record,
)
from service.telemetry import stage
from service.text import lexeme_hash, prepare


class Shown(msgspec.Struct, frozen=True):
    """The hits of one collection by row, and the documents that they belong to."""

    hits: Mapping[int, Hit]
    headers: Mapping[int, DocumentHeader]


class Presented(msgspec.Struct, frozen=True):
    """The answer's hits or documents; not complete when a chosen row is gone."""

    hits: list[Hit]
    documents: list[DocumentHit]
    complete: bool


class Asked(msgspec.Struct, frozen=True):
    """The query as the legs saw it: weights of its lexemes, and its vector."""

    weights: Mapping[str, float]
    vector: Vector | None
    ranks: Mapping[int, int]
    """Place of each row in the fused list, from 1; only for explanations."""


async def show(
    database: Database,
    corpus: CorpusCache,
    plan: SearchPlan,
    chosen: Sequence[Fused],
    asked: Asked,
) -> Shown:
    """Hydrate the candidates that were chosen in one collection."""
    if not chosen:
        return Shown({}, {})
    generation = plan.collection.generation
    # More than one statement reads the document: all must see the same version of it.
    snapshot = plan.request.group_by == "document" or plan.request.expand != Expand()
    async with database.read(generation.team_id, snapshot=snapshot) as connection:
        rows = [one.candidate.row for one in chosen]
        stored = await hydrate(connection, generation.id, rows)
        alive = [one for one in chosen if one.candidate.row in stored]
        terms = await _terms(connection, plan, rows, asked.weights) if plan.request.explain else {}
        with stage("expand") if plan.request.expand != Expand() else nullcontext():
            expansions = await _expansions(connection, plan, alive, asked)
        highlights = await _highlights(connection, corpus, plan, stored, asked.weights)
        grouped = plan.request.group_by == "document"
        documents = list({one.candidate.document: None for one in alive}) if grouped else []
        headers = await document_headers(connection, documents) if grouped else {}
    hits = {
        one.candidate.row: _hit(
            one,
            stored[one.candidate.row],
            _explanation(one, asked.ranks, terms, plan) if plan.request.explain else msgspec.UNSET,
            expansions.get(one.candidate.row, msgspec.UNSET),
            highlights.get(one.candidate.row, msgspec.UNSET),
            collection=plan.shown_name,
        )
        for one in alive
    }
    return Shown(hits, headers)


def arrange(chosen: Sequence[Fused], parts: Sequence[Shown], *, grouped: bool) -> Presented:
    """What was read of each collection in the order of the chosen candidates."""
    hits = {row: hit for part in parts for row, hit in part.hits.items()}
    headers = {document: header for part in parts for document, header in part.headers.items()}
    alive = [one for one in chosen if one.candidate.row in hits]
    headed = not grouped or all(one.candidate.document in headers for one in alive)
    return Presented(
        hits=[hits[one.candidate.row] for one in alive],
        documents=_documents(alive, hits, headers) if grouped else [],
        complete=len(alive) == len(chosen) and headed,
    )


def _hit(
    fused: Fused,
    stored: StoredChunk,
    explanation: HitExplanation | msgspec.UnsetType,
    expansion: Expansion | msgspec.UnsetType,
    highlighted: Highlight | msgspec.UnsetType,
    *,
    collection: str | msgspec.UnsetType,
) -> Hit:
    return Hit(
        id=stored.id,
        doc_id=stored.doc_id,
        type=stored.type,
        position=stored.position,
        text=stored.text,
        context=stored.context,
        title=stored.title,
        source=stored.source,
        metadata=stored.metadata,
        start=stored.start,
        end=stored.end,
        headings=stored.headings,
        score=fused.score,
        rerank_score=fused.rerank.score if fused.rerank else msgspec.UNSET,
        explain=explanation,
        expansion=expansion,
        highlight=highlighted,
        collection=collection,
    )


def _documents(
    alive: Sequence[Fused], shown: Mapping[int, Hit], headers: Mapping[int, DocumentHeader]
) -> list[DocumentHit]:
    documents = []
    for document, group in by_document(alive).items():
        header = headers.get(document)
        if header is None:
            continue
        chunks = [shown[one.candidate.row] for one in group]
        documents.append(
            DocumentHit(
                doc_id=header.doc_id,
                score=max(one.score for one in group),
                title=header.title,
                source=header.source,
                metadata=header.metadata,
                chunks=chunks,
                matched_chunk_ids=[chunk.id for chunk in chunks],
                collection=chunks[0].collection,
            )
        )
    return documents


async def _terms(
    connection: Connection, plan: SearchPlan, rows: list[int], weights: Mapping[str, float]
) -> dict[int, dict[str, float]]:
    """What each lexeme adds to the BM25 score of each row."""
    if not weights:
        return {}
    found = await impacts(connection, plan.collection.generation.id, rows)
    places = {lexeme: lexeme_hash(lexeme) for lexeme in weights}
    return {
        row: {
            lexeme: weights[lexeme] * document[place]
            for lexeme, place in places.items()
            if place in document
        }
        for row, document in found.items()
    }


async def _highlights(
    connection: Connection,
    corpus: CorpusCache,
    plan: SearchPlan,
    stored: Mapping[int, StoredChunk],
    weights: Mapping[str, float],
) -> dict[int, Highlight]:
    if not plan.request.highlight:
        return {}
    analyzer = await load_analyzer(connection, plan.collection.generation)
    tokens = {token for chunk in stored.values() for token in tokens_of(chunk.text)}
    prepared = {token: prepare(token, analyzer) for token in tokens}
    words = [word for one in prepared.values() for word in one.words.split()]
    known = await corpus.statistics.lexemes_of(connection, analyzer.configuration, words)

    def lexemes_of(token: str) -> set[str]:
        one = prepared[token]
        stems = (lexeme for word in one.words.split() for lexeme in known[word])
        return {*one.exact, *stems}

    return {row: highlight(chunk.text, weights, lexemes_of) for row, chunk in stored.items()}


def _explanation(
    fused: Fused,
    ranks: Mapping[int, int],
    terms: Mapping[int, dict[str, float]],
    plan: SearchPlan,
) -> HitExplanation:
    def leg(name: Leg) -> LegExplanation | None:
        part = fused.legs.get(name)
        if part is None:
            return None
        added = terms.get(fused.candidate.row) if name == "lexical" else None
        return LegExplanation(part.rank, part.score, part.contribution, added)

    rank = ranks[fused.candidate.row]
    place = FusedExplanation(rank, fused.score) if plan.mode == "hybrid" else None
    given = fused.rerank
    reranked = FusedExplanation(given.rank, given.score) if given else None
    return HitExplanation(dense=leg("dense"), lexical=leg("lexical"), fused=place, rerank=reranked)


async def _expansions(
    connection: Connection,
    plan: SearchPlan,
    alive: Sequence[Fused],
    asked: Asked,
) -> dict[int, Expansion]:
    expand = plan.request.expand
    siblings = MAX_SIBLINGS if expand.siblings_all else expand.siblings_topk
    if not alive or not (siblings or expand.neighbours or expand.summary):
        return {}
    by_position = positions_of(asked.weights) or None
    wanted = Surroundings(
        siblings=siblings,
        order=None
        if expand.siblings_all
        else (by_position if asked.vector is None else asked.vector),
        neighbours=expand.neighbours,
        summary=expand.summary,
    )
    keys = [
        (one.row, one.document, one.position, one.chunk_id, one.type)
        for one in (fused.candidate for fused in alive)
    ]
    found = await surroundings(connection, plan.collection.generation.id, keys, wanted)
    return {row: _expansion(found.get(row, {})) for row, *_ in keys}


def _expansion(related: Mapping[str, list[StoredChunk]]) -> Expansion:
    summary = related.get("summary")
    return Expansion(
        siblings=[_record(chunk) for chunk in related.get("siblings", [])],
        neighbours=[_record(chunk) for chunk in related.get("neighbours", [])],
        summary=_record(summary[0]) if summary else None,
    )


def _record(chunk: StoredChunk) -> Record:
    return Record(
        id=chunk.id,
        doc_id=chunk.doc_id,
        type=chunk.type,
        position=chunk.position,
        text=chunk.text,
        context=chunk.context,
        metadata=chunk.metadata,
        start=chunk.start,
        end=chunk.end,
        headings=chunk.headings,
    )
