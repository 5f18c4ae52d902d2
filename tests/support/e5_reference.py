"""multilingual-e5-small written out in plain numpy, to check the fast encoder."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from service.providers.e5_weights import E5Weights, dequantize

Floats = NDArray[np.float32]
_erf = np.vectorize(math.erf, otypes=[np.float32])


def encode(weights: E5Weights, ids: list[int]) -> Floats:
    """Unit-length mean of the last layer for one text."""
    hidden = _norm(weights, "emb.ln", weights.embed(ids))
    for layer in range(weights.layers):
        prefix = f"l{layer}."
        attended = _linear(weights, prefix + "ao", _attention(weights, prefix, hidden))
        hidden = _norm(weights, prefix + "aln", attended + hidden)
        raised = _linear(weights, prefix + "fi", hidden)
        raised = raised * (1 + _erf(raised / math.sqrt(2))) / 2
        hidden = _norm(weights, prefix + "oln", _linear(weights, prefix + "fo", raised) + hidden)
    mean = hidden.mean(axis=0)
    return np.asarray(mean / np.linalg.norm(mean), np.float32)


def _attention(weights: E5Weights, prefix: str, hidden: Floats) -> Floats:
    query, key, value = (
        _linear(weights, prefix + part, hidden).reshape(len(hidden), weights.heads, -1)
        for part in "qkv"
    )
    scores = np.einsum("qhd,khd->hqk", query, key) / math.sqrt(query.shape[-1])
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    return np.asarray(np.einsum("hqk,khd->qhd", shares, value).reshape(hidden.shape), np.float32)


def _linear(weights: E5Weights, name: str, hidden: Floats) -> Any:
    bias = weights.floats(f"{name}.b")
    return hidden @ dequantize(weights.blocks(f"{name}.w", len(bias))).T + bias


def _norm(weights: E5Weights, name: str, hidden: Floats) -> Floats:
    centred = hidden - hidden.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + weights.epsilon)
    scaled = centred / deviation * weights.floats(f"{name}.w") + weights.floats(f"{name}.b")
    return np.asarray(scaled, np.float32)
