"""Servers that speak the wire formats of Voyage, OpenAI and Cohere."""

import base64
import hashlib
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.fake_http import Answer, Call, FakeServer

KEY = "secret-of-the-tests"
WORD = re.compile(r"\w+|[^\w\s]")
NATIVE_DIM = 1024


def vector_of(text: str, dim: int, kind: str | None = None) -> NDArray[np.float32]:
    """One deterministic direction a text and kind; a smaller dimension is its prefix."""
    seed = hashlib.sha256(f"{kind}\0{text}".encode("utf-8", "surrogatepass")).digest()
    whole = np.random.default_rng(list(seed)).standard_normal(4096).astype(np.float32)
    prefix = whole[:dim]
    unit: NDArray[np.float32] = prefix / np.linalg.norm(prefix)
    return unit


def count_tokens(text: str) -> int:
    """What these servers call a token: a word or a mark."""
    return len(WORD.findall(text))


def encode_vector(vector: NDArray[np.float32], encoding: str | None) -> str | list[float]:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return [float(value) for value in vector]


def relevance(query: str, document: str) -> float:
    """Share of the query's words that the document holds, a little less for longer ones."""
    asked, given = set(query.casefold().split()), document.casefold().split()
    shared = len(asked.intersection(given)) / max(len(asked), 1)
    return round(shared / (1 + len(given) / 1000), 6)


class FakeProvider(FakeServer):
    """What the three have in common: a key, limits in tokens, and a count of them."""

    def __init__(self, *, window: int = 32_000, call_tokens: int = 120_000) -> None:
        super().__init__()
        self.window = window
        self.call_tokens = call_tokens
        self.dim = NATIVE_DIM
        self.tokens = 0
        self.refused: list[list[str]] = []
        """Inputs of the calls that were refused for having too many tokens."""

    def respond(self, call: Call) -> Answer:
        if call.headers.get("authorization") != f"Bearer {KEY}":
            return self.error(401, "Provided API key is invalid.")
        route = call.path.partition("?")[0].rsplit("/", 1)[-1]
        handle = getattr(self, f"post_{route}" if call.method == "POST" else f"get_{route}", None)
        answer: Answer = handle(call.body) if handle else self.error(404, "unknown route")
        return answer

    def error(self, status: int, message: str) -> Answer:
        return Answer({"detail": message}, status)

    def too_long(self, texts: list[str], *, truncation: bool) -> str | None:
        counts = [count_tokens(text) for text in texts]
        if truncation:
            counts = [min(count, self.window) for count in counts]
        if max(counts) > self.window or sum(counts) > self.call_tokens:
            self.refused.append(texts)
            return (
                f"Request to model failed. The max allowed tokens per submitted batch is "
                f"{self.call_tokens}. Your batch has {sum(counts)} tokens after truncation. "
                "Please lower the number of tokens in the batch."
            )
        self.tokens += sum(counts)
        return None

    def usage(self, texts: list[str]) -> int:
        return sum(min(count_tokens(text), self.window) for text in texts)


def ranked(query: str, documents: list[str], top: int | None) -> list[dict[str, Any]]:
    scored = [
        {"index": at, "relevance_score": relevance(query, text)}
        for at, text in enumerate(documents)
    ]
    scored.sort(key=lambda one: (-one["relevance_score"], one["index"]))
    return scored[:top]


class FakeVoyage(FakeProvider):
    """`POST /embeddings` and `POST /rerank` as voyageai 0.5 sends and reads them."""

    max_texts = 1000

    def post_embeddings(self, body: dict[str, Any]) -> Answer:
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        if body.get("input_type") not in (None, "query", "document"):
            return self.error(400, "input_type must be query or document")
        if len(texts) > self.max_texts:
            return self.error(400, f"The batch size limit is {self.max_texts}.")
        if reason := self.too_long(texts, truncation=body.get("truncation", True)):
            return self.error(400, reason)
        dim = body.get("output_dimension") or self.dim
        kind, encoding = body.get("input_type"), body.get("encoding_format")
        data = [
            {
                "object": "embedding",
                "embedding": encode_vector(vector_of(text, dim, kind), encoding),
                "index": at,
            }
            for at, text in enumerate(texts)
        ]
        usage = {"total_tokens": self.usage(texts)}
        return Answer({"object": "list", "data": data, "model": body["model"], "usage": usage})

    def post_rerank(self, body: dict[str, Any]) -> Answer:
        if len(body["documents"]) > self.max_texts:
            return self.error(400, f"The number of documents exceeds {self.max_texts}.")
        data = ranked(body["query"], body["documents"], body.get("top_k"))
        usage = {"total_tokens": self.usage([body["query"], *body["documents"]])}
        return Answer({"object": "list", "data": data, "model": body["model"], "usage": usage})


class FakeOpenAI(FakeProvider):
    """`POST /embeddings` and `GET /models`; only the newest models shorten their vectors."""

    shortens = True
    max_texts = 2048

    def __init__(self) -> None:
        super().__init__(window=8192, call_tokens=300_000)
        self.dim = 1536

    def error(self, status: int, message: str) -> Answer:
        kind = "invalid_request_error"
        return Answer({"error": {"message": message, "type": kind, "code": None}}, status)

    def too_long(self, texts: list[str], *, truncation: bool) -> str | None:
        longest = max(count_tokens(text) for text in texts)
        if longest > self.window:
            self.refused.append(texts)
            return (
                f"This model's maximum context length is {self.window} tokens, however you "
                f"requested {longest} tokens."
            )
        return super().too_long(texts, truncation=truncation)

    def post_embeddings(self, body: dict[str, Any]) -> Answer:
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        if "" in texts:
            return self.error(400, "'$.input' is invalid.")
        if len(texts) > self.max_texts:
            return self.error(400, f"'$.input' is too long: at most {self.max_texts}.")
        if "dimensions" in body and not self.shortens:
            return self.error(400, "This model does not support specifying dimensions.")
        if reason := self.too_long(texts, truncation=False):
            return self.error(400, reason)
        dim, encoding = body.get("dimensions") or self.dim, body.get("encoding_format")
        data = [
            {
                "object": "embedding",
                "index": at,
                "embedding": encode_vector(vector_of(text, dim), encoding),
            }
            for at, text in enumerate(texts)
        ]
        tokens = self.usage(texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return Answer({"object": "list", "data": data, "model": body["model"], "usage": usage})

    def get_models(self, _body: None) -> Answer:
        model = {"id": "text-embedding-3-small", "object": "model", "created": 0, "owned_by": "x"}
        return Answer({"object": "list", "data": [model]})


class FakeCohere(FakeProvider):
    """`POST /v2/rerank` and `GET /v1/models`."""

    def error(self, status: int, message: str) -> Answer:
        return Answer({"id": "1", "message": message}, status)

    def post_rerank(self, body: dict[str, Any]) -> Answer:
        results = ranked(body["query"], body["documents"], body.get("top_n"))
        meta = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
        return Answer({"id": "1", "results": results, "meta": meta})

    def get_models(self, _body: None) -> Answer:
        return Answer({"models": [{"name": "rerank-v3.5", "endpoints": ["rerank"]}]})
