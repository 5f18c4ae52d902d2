"""The tokenizer of multilingual-e5-small, text normalization included."""

from tokenizers import Regex, Tokenizer
from tokenizers.models import Unigram
from tokenizers.normalizers import NFKC, Replace, Sequence, Strip
from tokenizers.pre_tokenizers import Metaspace

from service.providers.e5_weights import E5Weights

CONTROLS = Regex(r"[\x00-\x08\x0b\x0e-\x1f\x7f\x{8f}\x{9f}]+")
BLANKS = Regex(
    r"[ \t\n\f\r\x{85}\x{1680}\x{200b}-\x{200f}\x{2028}\x{2029}\x{2581}\x{feff}\x{fffd}]+",
)
CHARACTERS_A_TOKEN = 16
BOUNDARY = 64
"""Tokens next to a cut that the text behind it may change."""


def build_tokenizer(weights: E5Weights) -> Tokenizer:
    """Text to token numbers, without special tokens; offsets refer to the text as given."""
    vocabulary = weights.vocabulary()
    for number in {*weights.special, len(vocabulary) - 1}:
        # NUL never survives normalization, so no text can spell a special token.
        vocabulary[number] = ("\0" + vocabulary[number][0], 0.0)
    tokenizer = Tokenizer(Unigram(vocabulary, unk_id=weights.special.unknown, byte_fallback=False))
    tokenizer.normalizer = Sequence(
        [NFKC(), Replace(CONTROLS, ""), Replace(BLANKS, " "), Strip()],
    )
    tokenizer.pre_tokenizer = Metaspace(replacement="▁", prepend_scheme="always", split=True)
    return tokenizer


def token_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token numbers of the whole text."""
    clean = text.encode("utf-8", "ignore").decode()  # without lone surrogates
    # The batch call releases the interpreter lock: a megabyte would stop every other thread.
    return tokenizer.encode_batch_fast([clean], add_special_tokens=False)[0].ids


def leading_token_ids(tokenizer: Tokenizer, text: str, limit: int) -> tuple[list[int], bool]:
    """The first `limit` tokens and whether there are more; reads no more text than it needs."""
    end = limit * CHARACTERS_A_TOKEN
    while True:
        ids = token_ids(tokenizer, text[:end])
        if end >= len(text) or len(ids) > limit + BOUNDARY:
            return ids[:limit], len(ids) > limit
        end *= 4
