"""A cross-encoder of the operator's on onnxruntime, in this process, no network."""

import asyncio
import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession, SessionOptions
from tokenizers import Encoding, Tokenizer

from service.errors import ProviderError
from service.providers.base import Relevance

MODEL_FILES = ("model.onnx", "onnx/model.onnx")
WINDOW, MOST_WINDOW = 512, 8192
BATCH = 8
THREADS = 2


class OnnxReranker:
    """Scores pairs of query and document; the model is loaded by the first call."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._session: InferenceSession | None = None
        self._tokenizer: Tokenizer | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="rerank")

    async def rerank(self, query: str, documents: Sequence[str]) -> Sequence[Relevance]:
        """Probabilities that a document answers the query; stops when it is cancelled."""
        stopped = threading.Event()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._executor, self._run, query, documents, stopped)
        finally:
            stopped.set()

    async def close(self) -> None:
        """Let a running batch end."""
        await asyncio.to_thread(self._executor.shutdown)

    def _run(
        self, query: str, documents: Sequence[str], stopped: threading.Event
    ) -> list[Relevance]:
        try:
            session, tokenizer = self._load()
            # Neighbours in length, so that little is padded.
            order = sorted(range(len(documents)), key=lambda at: len(documents[at]))
            ranked: list[Relevance] = []
            for begin in range(0, len(order), BATCH):
                if stopped.is_set():
                    break
                places = order[begin : begin + BATCH]
                pairs = tokenizer.encode_batch([(query, documents[at]) for at in places])
                scores = _scores(session, pairs)
                ranked += [Relevance(at, float(s)) for at, s in zip(places, scores, strict=True)]
        except ProviderError:
            raise
        except Exception as error:
            raise ProviderError(f"the local reranker failed: {type(error).__name__}") from error
        return ranked

    def _load(self) -> tuple[InferenceSession, Tokenizer]:
        if self._session is None or self._tokenizer is None:
            paths = [self._folder / name for name in MODEL_FILES]
            model = next((path for path in paths if path.is_file()), None)
            if model is None:
                raise ProviderError("the folder of the local reranker has no model.onnx")
            tokenizer = Tokenizer.from_file(str(self._folder / "tokenizer.json"))
            tokenizer.enable_truncation(_window(self._folder))
            tokenizer.enable_padding()
            options = SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            options.log_severity_level = 3
            self._tokenizer = tokenizer
            self._session = InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return self._session, self._tokenizer


def _window(folder: Path) -> int:
    """Tokens of a pair, as far as the tokenizer's configuration says it."""
    try:
        told = json.loads((folder / "tokenizer_config.json").read_text()).get("model_max_length")
    except (OSError, ValueError):
        return WINDOW
    return int(told) if isinstance(told, int) and 0 < told <= MOST_WINDOW else WINDOW


def _scores(session: InferenceSession, pairs: Sequence[Encoding]) -> NDArray[Any]:
    """One probability a pair, from one logit (sigmoid) or two (softmax)."""
    given = {
        "input_ids": [pair.ids for pair in pairs],
        "attention_mask": [pair.attention_mask for pair in pairs],
        "token_type_ids": [pair.type_ids for pair in pairs],
    }
    wanted = {one.name for one in session.get_inputs()}
    feed = {name: np.array(rows, np.int64) for name, rows in given.items() if name in wanted}
    logits = np.asarray(session.run(None, feed)[0], np.float64).reshape(len(pairs), -1)
    if logits.shape[1] not in (1, 2):
        raise ProviderError(f"the local reranker gives {logits.shape[1]} numbers a pair")
    difference = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
    probabilities: NDArray[Any] = 1 / (1 + np.exp(-np.clip(difference, -500, 500)))
    return probabilities
