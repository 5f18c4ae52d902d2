"""Pooled BM25 is the BM25 of one corpus that holds all the rows."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import generation_of

from service.db.lexical import QueryLexeme
from service.search.pooling import Corpus, Impacts, pool_of, pooled_scores
from service.text import lexeme_hash

QUERY = Counter({"a": 1, "b": 2, "never": 1})
row = st.lists(st.sampled_from("abcd"), min_size=1, max_size=12)
corpora = st.lists(st.lists(row, min_size=1, max_size=5), min_size=1, max_size=4)


def bm25(text: list[str], texts: list[list[str]], k1: float, b: float) -> float:
    """Over one corpus, by the book."""
    average = sum(map(len, texts)) / len(texts)
    score = 0.0
    for word, times in QUERY.items():
        holding = sum(word in one for one in texts)
        tf = text.count(word)
        idf = math.log1p((len(texts) - holding + 0.5) / (holding + 0.5))
        score += times * idf * impact(tf, len(text), average, k1, b)
    return score


def impact(tf: int, length: int, average: float, k1: float, b: float) -> float:
    return tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / average)) if tf else 0.0


@given(
    given_corpora=corpora, k1=st.sampled_from([0.0, 0.9, 1.2, 2.0]), b=st.sampled_from([0, 0.75, 1])
)
def test_rows_score_as_in_one_corpus(
    given_corpora: list[list[list[str]]], k1: float, b: float
) -> None:
    everything = [text for texts in given_corpora for text in texts]
    made = []
    for texts in given_corpora:
        average = sum(map(len, texts)) / len(texts)
        generation = generation_of(1, k1=k1, b=b, average_length=average)
        lexemes = [
            QueryLexeme(word, times, sum(word in one for one in texts))
            for word, times in QUERY.items()
        ]
        made.append(Corpus(generation, len(texts), lexemes))
    pool = pool_of(made)
    assert pool.average_length == pytest.approx(sum(map(len, everything)) / len(everything))
    words = {lexeme_hash(word): word for word in QUERY}
    for corpus, texts in zip(made, given_corpora, strict=True):
        average = corpus.generation.average_length
        values = [
            [impact(one.count(words[place]), len(one), average, k1, b) for place in pool.weights]
            for one in texts
        ]
        lengths = [float(len(one)) for one in texts]
        impacts = Impacts(np.array(values, np.float32).astype(np.float64), np.array(lengths))
        expected = [bm25(one, everything, k1, b) for one in texts]
        assert pooled_scores(impacts, corpus.generation, pool) == pytest.approx(expected, rel=1e-4)
