"""Inner value types, shared by the API, search, indexing and the database layer."""

from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import SecretStr

Vector = NDArray[np.float32]
"""Shape (dim,) for one text or (n, dim) for n texts."""
Mode = Literal["hybrid", "vector", "text"]
Scope = Literal["chunks", "summaries", "both"]
FusionMethod = Literal["rrf", "dbsf"]
AnalyzerKind = Literal["language", "simple", "trigram"]
RecordType = Literal["chunk", "summary"]
KeyScope = Literal["search", "index", "admin"]
IngestMode = Literal["replace", "upsert"]
JobKind = Literal["ingest", "reindex", "index", "context"]
JobStatus = Literal["pending", "processing", "done", "error", "paused", "cancelled"]
Quantization = Literal["none", "binary"]
IndexPolicy = Literal["auto", "hnsw", "exact"]
ContextMode = Literal["model", "heading"]
BatchPolicy = Literal["never", "auto", "always"]
ProviderKind = Literal["voyage", "openai", "cohere", "anthropic", "local"]
FlagName = Literal["contextual_retrieval", "hybrid_search"]
Metadata = dict[str, Any]


class Weights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Share of each leg in the fused score; each 0..1, not both 0."""

    dense: float
    lexical: float


class SearchDefaults(msgspec.Struct, frozen=True):
    """What a collection sets for its searches; None is left to the automatic choice."""

    mode: Mode = "hybrid"
    method: FusionMethod | None = None
    weights: Weights | None = None
    rrf_k: int | None = None
    fetch_k: int = 40
    target_recall: float = 0.99
    """Recall@10 against exact search that an approximate one must reach to be used."""
    quantization: Quantization = "none"
    """What the approximate index holds of a vector: all of it, or the signs."""
    row_budget: int = 8000
    """Rows that the lexical leg looks at for a query where no posting lists are packed."""


class RerankDefaults(msgspec.Struct, frozen=True):
    """Whether and how a collection's candidates are ranked anew by a model that reads them."""

    enabled: bool = False
    provider: str | None = None
    model: str | None = None
    top_n: int = 50
    """Candidates that the model reads."""
    timeout_ms: int = 800


class VectorIndex(msgspec.Struct, frozen=True):
    """The approximate index (HNSW) over the vectors of a generation."""

    quantization: Quantization
    rows: int
    """As many as were there when it was measured."""
    ef_search: int | None
    """Candidates that a search keeps; None while no number of them reaches the target recall."""


class Contextual(msgspec.Struct, frozen=True):
    """How the chunks of a generation are situated in their documents."""

    enabled: bool = False
    mode: ContextMode = "model"
    """A model writes each header, or it is made of the title and the headings above the chunk."""
    provider: str | None = None
    model: str | None = None
    batch: BatchPolicy = "never"
    """Whether headers come by the provider's batches: cheaper and, at worst, a day later."""
    embed: bool = False
    """Embed a header made of headings; a model's header always is."""
    concurrency: int = 4
    """Calls in flight."""
    version: int = 0
    """Of the prompt, or of the way headings are joined."""

    @property
    def by_model(self) -> bool:
        """Whether headers cost calls."""
        return self.enabled and self.mode == "model"

    @property
    def embedded(self) -> bool:
        """Whether headers are part of what is embedded."""
        return self.enabled and (self.embed or self.mode == "model")


class Generation(msgspec.Struct, frozen=True):
    """One build of a collection's index and everything that shaped it."""

    id: int
    team_id: int
    collection_id: int
    provider: str
    model: str | None
    dim: int | None
    base_url: str | None
    language: str
    analyzer: AnalyzerKind
    chunk_size: int
    chunk_overlap: int
    k1: float
    b: float
    row_budget: int
    average_length: float
    contextual: Contextual = Contextual()
    vector_index: VectorIndex | None = None


class Collection(msgspec.Struct, frozen=True):
    """A named set of documents and its active generation."""

    id: int
    team_id: int
    name: str
    search: SearchDefaults
    generation: Generation
    rerank: RerankDefaults = RerankDefaults()


class Principal(msgspec.Struct, frozen=True):
    """Who asks: a team, what its key may do, and where."""

    team_id: int
    scopes: frozenset[KeyScope]
    collection_ids: frozenset[int] | None = None
    """None: every collection of the team."""
    root: bool = False
    key_id: int | None = None
    """None for the root key."""


class Credential(msgspec.Struct, frozen=True):
    """What a team registered to use a provider with."""

    id: int
    team_id: int
    name: str
    kind: ProviderKind
    base_url: str | None
    secret: SecretStr | None


class IncomingChunk(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chunk made by the client: text, vector or both."""

    id: str
    text: str | None = None
    vector: list[float] | None = None
    metadata: Metadata | None = None
    position: int | None = None


class DocumentChunking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one document is split where that is not its collection's way; in tokens."""

    size: Annotated[int, msgspec.Meta(ge=16, le=8192)]
    overlap: Annotated[int, msgspec.Meta(ge=0, le=8191)] | None = None
    """An eighth of the size unless given; less than the size."""


class IncomingDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document as posted: raw text to be chunked here, or the client's own chunks."""

    doc_id: str
    text: str | None = None
    title: str | None = None
    source: str | None = None
    metadata: Metadata | None = None
    summary: str | None = None
    chunks: list[IncomingChunk] | None = None
    language: str | None = None
    chunking: DocumentChunking | None = None


class Candidate(msgspec.Struct, frozen=True):
    """One row of a leg: its keys and the leg's own score."""

    row: int
    document: int
    type: RecordType
    chunk_id: str
    position: int
    score: float


class StoredChunk(msgspec.Struct, frozen=True):
    """A chunk or summary as it is shown to a client."""

    row: int
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
    """Where it stands in its document's text, in characters; None for a client's chunk."""
    end: int | None
    headings: list[str]
    """What it stands under there, outermost first."""


class Condition(msgspec.Struct, frozen=True):
    """One comparison of a filter; `key` is literal (a dot is no path)."""

    key: str
    operator: Literal["eq", "gt", "gte", "lt", "lte", "in", "contains", "starts_with", "exists"]
    value: Any


class AllOf(msgspec.Struct, frozen=True):
    """Every part holds; no part at all holds always."""

    parts: "tuple[Filter, ...]"


class AnyOf(msgspec.Struct, frozen=True):
    """At least one part holds."""

    parts: "tuple[Filter, ...]"


class Not(msgspec.Struct, frozen=True):
    """The complement, so a missing key matches."""

    part: "Filter"


Filter = Condition | AllOf | AnyOf | Not
