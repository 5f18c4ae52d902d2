"""The transformer of multilingual-e5-small on onnxruntime, one text a run."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from onnxruntime import InferenceSession, OrtValue, SessionOptions

from service.providers.base import Vector
from service.providers.e5_weights import Blocks, E5Weights, dequantize, nibbles

Precision = Literal["fp32", "int8"]
Tensors = dict[str, NDArray[Any]]

GRAPHS = Path(__file__).with_name("graphs")
LINEAR_PARTS = {"qkv": ("q", "k", "v"), "attention": ("ao",), "up": ("fi",), "down": ("fo",)}
NORMS = {"attention_norm": "aln", "output_norm": "oln"}


class E5Encoder:
    """A session whose graph is a small file and whose weights come from `E5Weights`."""

    def __init__(self, weights: E5Weights, precision: Precision) -> None:
        self._weights = weights
        # onnxruntime reads these arrays in place: they live as long as the session.
        self._values = {
            name: OrtValue.ortvalue_from_numpy(tensor)
            for name, tensor in initializers(weights, precision).items()
        }
        options = SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        options.log_severity_level = 3
        options.add_external_initializers(list(self._values), list(self._values.values()))
        self._session = InferenceSession(
            graph_path(precision).read_bytes(), options, providers=["CPUExecutionProvider"]
        )

    def encode(self, ids: list[int]) -> Vector:
        """Unit-length mean of the last layer, shape (hidden,); safe to call from many threads."""
        # One text a run: the int8 scale is taken over all rows, so neighbours would change it.
        pooled = self._session.run(None, {"embeddings": self._weights.embed(ids)[None]})[0][0]
        unit: Vector = pooled / np.linalg.norm(pooled)
        return unit


def graph_path(precision: Precision) -> Path:
    """The committed graph, made by `tools/build_local_graphs.py`."""
    return GRAPHS / f"e5_{precision}.onnx"


def initializers(weights: E5Weights, precision: Precision) -> Tensors:
    """Every tensor that the graph of this precision leaves open, by name."""
    encode = _int8 if precision == "int8" else _four_bit
    tensors = _norm(weights, "embeddings_norm", "emb.ln")
    for layer in range(weights.layers):
        prefix = f"l{layer}."
        for name, stored in NORMS.items():
            tensors |= _norm(weights, prefix + name, prefix + stored)
        for name, parts in LINEAR_PARTS.items():
            biases = [weights.floats(f"{prefix}{part}.b") for part in parts]
            blocks = [
                weights.blocks(f"{prefix}{part}.w", len(bias))
                for part, bias in zip(parts, biases, strict=True)
            ]
            tensors[f"{prefix}{name}.bias"] = np.concatenate(biases)
            matrix, scale = encode(np.concatenate(blocks))
            tensors |= {f"{prefix}{name}.weight": matrix, f"{prefix}{name}.scale": scale}
    return tensors


def _norm(weights: E5Weights, name: str, stored: str) -> Tensors:
    return {
        f"{name}.weight": weights.floats(f"{stored}.w").copy(),
        f"{name}.bias": weights.floats(f"{stored}.b").copy(),
    }


def _four_bit(blocks: Blocks) -> tuple[NDArray[Any], NDArray[Any]]:
    """The stored numbers in the order of MatMulNBits: neighbours share a byte."""
    numbers = nibbles(blocks)
    return numbers[..., 0::2] | (numbers[..., 1::2] << 4), blocks["scale"].astype(np.float32)


def _int8(blocks: Blocks) -> tuple[NDArray[Any], NDArray[Any]]:
    """Symmetric int8 with one scale an output, shape (inputs, outputs)."""
    matrix = dequantize(blocks).T
    scale = np.abs(matrix).max(axis=0) / 127
    return np.ascontiguousarray(np.rint(matrix / scale), dtype=np.int8), scale
