"""Splitting long texts, hostile ones among them: bounded work, nothing lost, nothing torn."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from semantic_text_splitter import MarkdownSplitter, TextSplitter

from service.indexing.chunking import iter_chunks, split_text
from service.indexing.splitting import Chunk, Chunking
from service.text import estimate_tokens

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
ALPHABETS = {
    "ideographs": [chr(code) for code in range(0x4E00, 0x4F00)],
    "kana": [chr(code) for code in range(0x3041, 0x3097)],
    "thai": [chr(code) for code in range(0xE01, 0xE3B)],
    "emoji": [chr(code) for code in range(0x1F600, 0x1F640)],
    "families": [FAMILY],
    "one letter": ["a"],
    "one line": ["some ", "words ", "of ", "a ", "line "],
    "blanks": [" ", "\t", "\n"],
    "marks": ["e\u0301\u0302", "o\u0308"],
    "headings": ["# a\n", "## b\n"],
    "code": ["```\n", "a = 1\n", "\n"],
    "bars": ["|", "-", " x ", "\n"],
}


def random_text(kind: str, length: int, seed: int = 1) -> str:
    choose = random.Random(seed).choice
    pieces: list[str] = []
    size = 0
    while size < length:
        pieces.append(choose(ALPHABETS[kind]))
        size += len(pieces[-1])
    return "".join(pieces)


class Counted:
    """Counts characters as tokens and remembers what it was asked."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, text: str) -> int:
        self.lengths.append(len(text))
        return len(text)


def in_order_and_complete(text: str, chunks: list[Chunk]) -> bool:
    """Whether starts and ends grow and nothing but blanks is between the chunks."""
    reached = 0
    for before, chunk in itertools.pairwise([Chunk("", -1, 0), *chunks]):
        # A part of a long table has its header above.
        assert chunk.text.endswith(text[chunk.start : chunk.end])
        assert "|" in text or chunk.text == text[chunk.start : chunk.end]
        assert before.start < chunk.start
        assert before.end < chunk.end
        assert not text[reached : chunk.start].strip()
        reached = chunk.end
    return not text[reached:].strip()


@pytest.mark.parametrize("kind", ALPHABETS)
@pytest.mark.parametrize("name", ["a.txt", "a.md"])
def test_the_work_grows_with_the_text_and_no_faster(kind: str, name: str) -> None:
    work = []
    for length in (10_000, 40_000):
        count = Counted()
        split_text(random_text(kind, length), Chunking(100, 10, count), name=name)
        assert max(count.lengths) <= 1_600
        work.append(sum(count.lengths))
    assert work[1] <= 6 * work[0]


@settings(max_examples=60, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(sorted(ALPHABETS)), min_size=1, max_size=4),
    length=st.integers(500, 3_000),
    limits=st.tuples(st.integers(16, 200), st.integers(0, 15)),
    name=st.sampled_from(["", "a.txt", "a.md"]),
)
def test_long_texts_of_any_script_are_covered_within_the_limit(
    kinds: list[str], length: int, limits: tuple[int, int], name: str
) -> None:
    size, overlap = limits
    text = "".join(random_text(kind, length) for kind in kinds)
    chunks = split_text(text, Chunking(size, overlap, len), name=name)
    assert in_order_and_complete(text, chunks)
    assert max((len(chunk.text) for chunk in chunks), default=0) <= size
    shared = [before.end - after.start for before, after in itertools.pairwise(chunks)]
    assert name != "a.txt" or max(shared, default=0) <= overlap


@pytest.mark.parametrize("kind", ["ideographs", "kana", "emoji", "one letter", "one line"])
def test_neighbours_overlap_everywhere(kind: str) -> None:
    chunks = split_text(random_text(kind, 20_000), Chunking(100, 10, len))
    shared = [before.end - after.start for before, after in itertools.pairwise(chunks)]
    assert min(shared) >= 4
    assert max(shared) <= 10


def test_a_character_of_several_code_points_is_never_torn() -> None:
    chunks = split_text(FAMILY * 4_000, Chunking(64, 8, len))
    assert {chunk.text for chunk in chunks[:-1]} == {FAMILY * 12}
    assert chunks[-1].text == FAMILY * (len(chunks[-1].text) // len(FAMILY))


def test_a_run_that_counts_as_few_tokens_still_becomes_bounded_chunks() -> None:
    text = "a" * 50_000
    chunks = split_text(text, Chunking(100, 10, lambda piece: len(piece.split())))
    assert in_order_and_complete(text, chunks)
    assert max(len(chunk.text) for chunk in chunks) <= 1_600


def prose(seed: int) -> str:
    choose = random.Random(seed)
    sentences = [f"{random_text('one line', choose.randrange(9, 90), n)}end. " for n in range(900)]
    return "".join(s + choose.choice(["", "", "\n", "\n\n"]) for s in sentences)


@pytest.mark.parametrize(("size", "overlap"), [(64, 0), (64, 20), (200, 30)])
def test_long_prose_is_split_as_if_it_were_split_at_once(size: int, overlap: int) -> None:
    for seed in range(3):
        text = prose(seed)
        at_once = TextSplitter.from_callback(estimate_tokens, size, overlap).chunk_indices(text)
        chunks = split_text(text, Chunking(size, overlap, estimate_tokens), name="a.txt")
        assert [(chunk.start, chunk.text) for chunk in chunks] == at_once


def test_long_markdown_is_split_as_if_it_were_split_at_once() -> None:
    section = (
        "## Part {n}\n\nWhat part {n} says.\n\n```py\n# no heading\n\nx = {n}\n```\n\n- a\n- b\n\n"
    )
    text = "# All\n\n" + "".join(section.format(n=n) for n in range(300))
    at_once = MarkdownSplitter.from_callback(estimate_tokens, 64, 8).chunk_indices(text)
    chunks = split_text(text, Chunking(64, 8, estimate_tokens))
    assert [(chunk.start, chunk.text) for chunk in chunks] == at_once


def test_a_long_table_is_cut_between_rows() -> None:
    text = "| a | b |\n|---|---|\n" + "".join(f"| {n} | row |\n" for n in range(3_000))
    for chunk in split_text(text, Chunking(64, 0, estimate_tokens)):
        assert chunk.text.startswith("|")
        assert chunk.text.rstrip().endswith("|")


def test_markdown_goes_on_after_a_code_block_of_any_length() -> None:
    code = "```py\n" + "# not a heading\nx = 1\n\n" * 2_000 + "```\n\n"
    chunks = split_text(code + "# Next\n\nText of it.", Chunking(64, 8, estimate_tokens))
    assert chunks[-1].text == "# Next\n\nText of it."


def test_the_first_chunk_comes_without_reading_on() -> None:
    count = Counted()
    next(iter_chunks(random_text("ideographs", 1_000_000), Chunking(100, 10, count)))
    assert sum(count.lengths) <= 100_000
