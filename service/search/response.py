"""The search response."""

from typing import Any, Literal

import msgspec

from service.models import FusionMethod, Metadata, Mode, RecordType, Weights
from service.search.fusion import LexicalEvidence

StageName = Literal["embed", "dense", "lexical", "rescore", "rerank", "diversity", "hydrate"]


class LegExplanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one leg said of a hit; `rank` counts from 1."""

    rank: int
    score: float
    contribution: float
    terms: dict[str, float] | None = None
    """Lexical only: what each lexeme added to the BM25 score."""


class FusedExplanation(msgspec.Struct, frozen=True):
    """Place and score in the fused list."""

    rank: int
    score: float


class HitExplanation(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why a hit ranks where it does."""

    dense: LegExplanation | None = None
    lexical: LegExplanation | None = None
    fused: FusedExplanation | None = None
    rerank: FusedExplanation | None = None


class Record(msgspec.Struct, frozen=True):
    """A chunk or summary that is added to a hit, not ranked."""

    id: str
    doc_id: str
    type: RecordType
    position: int
    text: str
    context: str | None
    metadata: Metadata
    start: int | None
    end: int | None
    headings: list[str]


class Expansion(msgspec.Struct, frozen=True):
    """What the request asked to add to a hit."""

    siblings: list[Record]
    neighbours: list[Record]
    summary: Record | None


class Highlight(msgspec.Struct, frozen=True):
    """Where a text holds the query's words: offsets in characters, and marked pieces of it."""

    spans: list[tuple[int, int]]
    fragments: list[str]


class Hit(msgspec.Struct, frozen=True):
    """One ranked chunk or summary."""

    id: str
    doc_id: str
    type: RecordType
    position: int
    text: str
    context: str | None
    title: str | None
    source: str | None
    metadata: Metadata
    start: int | None
    """Where it begins in its document's text, in characters; null for a client's own chunk."""
    end: int | None
    headings: list[str]
    """What it stands under there, outermost first: headings, or definitions of code."""
    score: float
    rerank_score: float | msgspec.UnsetType = msgspec.UNSET
    """What the reranker gave, where it ranked the hit."""
    explain: HitExplanation | msgspec.UnsetType = msgspec.UNSET
    expansion: Expansion | msgspec.UnsetType = msgspec.UNSET
    highlight: Highlight | msgspec.UnsetType = msgspec.UNSET
    collection: str | msgspec.UnsetType = msgspec.UNSET
    """Only in a search over several collections."""


class DocumentHit(msgspec.Struct, frozen=True):
    """One document with its matching chunks in reading order."""

    doc_id: str
    score: float
    title: str | None
    source: str | None
    metadata: Metadata
    chunks: list[Hit]
    matched_chunk_ids: list[str]
    collection: str | msgspec.UnsetType = msgspec.UNSET


class FusionExplanation(msgspec.Struct, frozen=True):
    """The rule that made one list of two, and why this one."""

    method: FusionMethod
    weights: Weights
    rrf_k: int | None
    reason: str
    evidence: LexicalEvidence | None = None
    """What the automatic choice went by; null for what was set."""
    lowest: float | None = None
    """Scaled score of a leg's lowest candidate by the automatic choice; null for what was set."""


class Explanation(msgspec.Struct, frozen=True):
    """What `explain` adds to the whole answer."""

    fusion: FusionExplanation | None


class Degradation(msgspec.Struct, frozen=True):
    """A stage that failed or ran late and was left out."""

    stage: StageName
    reason: str
    collection: str | msgspec.UnsetType = msgspec.UNSET


class CollectionPart(msgspec.Struct, frozen=True):
    """What a search over several collections did in one of them."""

    exhausted: bool
    stages: dict[StageName, dict[str, Any]]
    degraded: list[Degradation]


class SearchResponse(msgspec.Struct, frozen=True):
    """Ranked hits, or documents when grouped, and how they came to be."""

    mode: Mode
    exhausted: bool
    """True when nothing more matches than what is here."""
    abstained: bool
    degraded: list[Degradation]
    stages: dict[StageName, dict[str, Any]]
    took_ms: float
    hits: list[Hit] | msgspec.UnsetType = msgspec.UNSET
    documents: list[DocumentHit] | msgspec.UnsetType = msgspec.UNSET
    best_score: dict[str, float] | msgspec.UnsetType = msgspec.UNSET
    """With `abstained`: the best score seen on each scale that had a threshold."""
    explain: Explanation | msgspec.UnsetType = msgspec.UNSET
    collections: dict[str, CollectionPart] | msgspec.UnsetType = msgspec.UNSET
    """By name; only in a search over several collections."""
