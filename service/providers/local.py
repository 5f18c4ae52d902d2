"""The bundled embedder: multilingual-e5-small in this process, no network."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from tokenizers import Tokenizer

from service.errors import ProviderError
from service.providers.base import EmbeddingBatch, Vector
from service.providers.e5_encoder import E5Encoder, Precision
from service.providers.e5_tokenizer import build_tokenizer, leading_token_ids, token_ids
from service.providers.e5_weights import locate_weights, open_weights
from service.providers.registry import EmbedderOptions

MODEL = "multilingual-e5-small"
DIM = 384
WINDOW = 512
DOCUMENT_PREFIX = "passage: "
QUERY_PREFIX = "query: "
PREFIX_TOKENS = 2
MARKS = 2
T = TypeVar("T")


class _Once(Generic[T]):
    """A value made by the first thread that asks for it."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value: T | None = None

    def get(self) -> T:
        with self._lock:
            if self._value is None:
                self._value = self._make()
            return self._value


class _Embedding(NamedTuple):
    vector: Vector
    tokens: int
    truncated: bool


class _Lane:
    """Threads for one kind of text, so that queries never wait behind documents."""

    def __init__(self, name: str, threads: int, embed: Callable[[str], _Embedding]) -> None:
        self._embed = embed
        self._closed = False
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"embed-{name}")

    async def embed(self, texts: Sequence[str]) -> list[_Embedding]:
        if self._closed:
            raise ProviderError("the local embedder is closed")
        loop = asyncio.get_running_loop()
        waiting = [loop.run_in_executor(self._executor, self._run, text) for text in texts]
        try:
            return await asyncio.gather(*waiting)
        finally:
            for future in waiting:
                future.cancel()

    def _run(self, text: str) -> _Embedding:
        if self._closed:
            raise ProviderError("the local embedder is closed")
        try:
            return self._embed(text)
        except ProviderError:
            raise
        except Exception as error:
            raise ProviderError(f"the local embedder failed: {type(error).__name__}") from error

    async def close(self) -> None:
        self._closed = True
        await asyncio.to_thread(self._executor.shutdown)


class LocalEmbedder:
    """multilingual-e5-small; its parts are loaded when first needed, or by `warm`."""

    model = MODEL
    dim = DIM
    max_tokens = WINDOW - MARKS - PREFIX_TOKENS
    batch_texts = 64
    batch_tokens = 25_000

    def __init__(
        self,
        *,
        document_threads: int = 1,
        query_threads: int = 2,
        document_precision: Precision | None = None,
    ) -> None:
        path = locate_weights()
        self._weights = _Once(partial(open_weights, path))
        self._tokenizer = _Once(lambda: build_tokenizer(self._weights.get()))
        self._fp32 = _Once(lambda: E5Encoder(self._weights.get(), "fp32"))
        self._int8 = _Once(lambda: E5Encoder(self._weights.get(), "int8"))
        self.document_precision = document_precision or ("int8" if has_vnni() else "fp32")
        self._document_encoder = self._int8 if self.document_precision == "int8" else self._fp32
        self._documents = _Lane("documents", document_threads, self._embed_document)
        self._queries = _Lane("queries", query_threads, self._embed_query)
        self.closed = False

    async def embed_documents(self, texts: Sequence[str]) -> EmbeddingBatch:
        """Embed texts as documents; each vector depends on its own text alone."""
        embeddings = await self._documents.embed(texts)
        return EmbeddingBatch(
            vectors=np.array([e.vector for e in embeddings], np.float32).reshape(-1, DIM),
            tokens=sum(e.tokens for e in embeddings),
            truncated=tuple(at for at, e in enumerate(embeddings) if e.truncated),
        )

    async def embed_query(self, text: str) -> Vector:
        """Embed one text as a query, shape (384,)."""
        (embedding,) = await self._queries.embed([text])
        return embedding.vector

    def count_tokens(self, text: str) -> int:
        """Tokens of the whole text, exact; comparable with `max_tokens`."""
        return len(token_ids(self._tokenizer.get(), text))

    def tokenizer(self) -> Tokenizer:
        """Text to tokens and their offsets; its `encode` keeps the interpreter lock."""
        return self._tokenizer.get()

    async def warm(self, *, documents: bool = True, queries: bool = True) -> None:
        """Load what these kinds of text need, so that no first call pays for it."""
        if documents:
            await self._documents.embed([""])
        if queries:
            await self._queries.embed([""])

    async def close(self) -> None:
        """Let running texts end and refuse the rest."""
        self.closed = True
        await asyncio.gather(self._documents.close(), self._queries.close())

    def _embed_document(self, text: str) -> _Embedding:
        return self._embed(DOCUMENT_PREFIX + text, self._document_encoder.get())

    def _embed_query(self, text: str) -> _Embedding:
        return self._embed(QUERY_PREFIX + text, self._fp32.get())

    def _embed(self, text: str, encoder: E5Encoder) -> _Embedding:
        special = self._weights.get().special
        ids, truncated = leading_token_ids(self._tokenizer.get(), text, WINDOW - MARKS)
        ids = [special.begin, *ids, special.end]
        return _Embedding(encoder.encode(ids), len(ids), truncated)


def has_vnni() -> bool:
    """Whether int8 products are fast and exact here; elsewhere they may saturate or be slow."""
    try:
        cpu = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return not {"avx512_vnni", "avx_vnni"}.isdisjoint(cpu.split())


_shared: WeakValueDictionary[EmbedderOptions, LocalEmbedder] = WeakValueDictionary()
_shared_lock = threading.Lock()


def create(model: str, dim: int | None, options: EmbedderOptions) -> LocalEmbedder:
    """The process's one embedder, whatever the number of collections that use it."""
    if model != MODEL:
        raise ProviderError(f"the local embedder has one model: {MODEL}")
    if dim not in (None, DIM):
        raise ProviderError(f"{MODEL} has {DIM} dimensions")
    with _shared_lock:
        embedder = _shared.get(options)
        if embedder is None or embedder.closed:
            embedder = _shared[options] = LocalEmbedder(
                document_threads=options.document_threads, query_threads=options.query_threads
            )
        return embedder
