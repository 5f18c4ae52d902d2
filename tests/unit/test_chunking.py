"""Splitting text: nothing is lost, nothing is too long, and the same text splits the same way."""

import itertools
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.hashed_embedder import HashedEmbedder

from service.indexing.chunking import chunking_of, split_text
from service.indexing.splitting import Chunking
from service.models import Generation
from service.text import estimate_tokens


def characters(text: str) -> int:
    return len(text)


def words(text: str) -> int:
    return len(text.split())


def chunking(size: int, overlap: int = 0, count: object = characters) -> Chunking:
    return Chunking(size, overlap, count)  # type: ignore[arg-type]


def generation(size: int = 512, overlap: int = 64) -> Generation:
    return Generation(
        id=1, team_id=1, collection_id=1, provider="hashed", model="hashed", dim=64, base_url=None,
        language="simple", analyzer="language", chunk_size=size, chunk_overlap=overlap, k1=1.2,
        b=0.75, row_budget=8000, average_length=100.0,
    )  # fmt: skip


texts = st.text(
    st.one_of(
        st.sampled_from(list("abc .,\n\n\t#-*|`>1\r")),
        st.characters(exclude_categories=["Cs"], exclude_characters="\0"),
    ),
    max_size=600,
)


@given(text=texts, size=st.integers(16, 60), overlap=st.integers(0, 15))
@example(text="a" * 200, size=16, overlap=15)
@example(text="# A\n\n## B\n\n" * 20, size=16, overlap=4)
@example(text="| a | b |\n|---|---|\n" + "| 1 | 2 |\n" * 30, size=40, overlap=10)
def test_chunks_cover_the_text_in_order_and_keep_the_limit(
    text: str, size: int, overlap: int
) -> None:
    for name in ("", "notes.txt", "readme.md"):
        chunks = split_text(text, chunking(size, overlap), name=name)
        covered = [False] * len(text)
        for chunk in chunks:
            assert chunk.text.endswith(text[chunk.start : chunk.end])
            covered[chunk.start : chunk.end] = [True] * (chunk.end - chunk.start)
        left_out = "".join(text[at] for at, is_in in enumerate(covered) if not is_in)
        assert not left_out.strip()
        assert all(chunk.text.strip() for chunk in chunks)
        assert [chunk.start for chunk in chunks] == sorted({chunk.start for chunk in chunks})
        # A grapheme cluster is never torn apart.
        assert all(len(chunk.text) <= size or len(chunk.text.split()) == 1 for chunk in chunks)


@given(text=texts)
def test_the_same_text_is_always_split_the_same_way(text: str) -> None:
    assert split_text(text, chunking(30, 8)) == split_text(text, chunking(30, 8))


def test_the_limit_is_in_tokens() -> None:
    text = " ".join(f"word{n}" for n in range(500))
    chunks = split_text(text, chunking(32, 8, words))
    assert max(words(chunk.text) for chunk in chunks) <= 32
    assert min(words(chunk.text) for chunk in chunks[:-1]) >= 24


def test_neighbours_share_the_overlap_and_no_more() -> None:
    text = " ".join(f"word{n}" for n in range(500))
    chunks = split_text(text, chunking(32, 8, words))
    for before, after in itertools.pairwise(chunks):
        shared = text[after.start : before.end]
        assert 1 <= words(shared) <= 8


def test_headings_and_paragraphs_are_where_it_splits() -> None:
    sections = [f"# Heading {n}\n\n" + f"Sentence of section {n}. " * 3 for n in range(6)]
    chunks = split_text("\n\n".join(sections), chunking(20, 0, words))
    assert [chunk.text.split("\n")[0] for chunk in chunks] == [f"# Heading {n}" for n in range(6)]


def test_a_heading_is_never_alone_above_a_long_block() -> None:
    text = "# Keys\n\n## Rotation\n\n" + "A sentence on how keys are rotated. " * 20
    chunks = split_text(text, chunking(32, 0, words))
    assert chunks[0].text.startswith("# Keys\n\n## Rotation\n\nA sentence")
    assert max(words(chunk.text) for chunk in chunks) <= 32


def test_a_code_file_is_not_taken_for_markdown() -> None:
    code = "\n".join(f"# comment {n}\nvalue_{n} = {n}" for n in range(12))
    as_code = split_text(code, chunking(24, 0, words), name="settings.py")
    assert [chunk.text.count("# comment") for chunk in as_code] == [4, 4, 4]


def test_a_huge_text_without_structure_is_counted_in_pieces() -> None:
    counted = []

    def count(text: str) -> int:
        counted.append(len(text))
        return words(text)

    text = "lorem ipsum " * 50_000
    chunks = split_text(text, chunking(64, 8, count))
    assert sum(words(chunk.text) for chunk in chunks) >= 100_000
    assert max(counted) <= 64 * 16
    assert re.fullmatch(r"(lorem|ipsum).*(lorem|ipsum)", chunks[-1].text)


def test_a_collection_without_embedder_estimates_tokens() -> None:
    without = chunking_of(generation(), None)
    assert without.count_tokens("word " * 100) == estimate_tokens("word " * 100) == 125
    assert estimate_tokens("检索") == 1
    assert estimate_tokens("") == 0


@pytest.mark.parametrize(("window", "size"), [(100, 100), (8000, 512)])
def test_chunks_fit_the_window_of_the_embedder(window: int, size: int) -> None:
    embedder = HashedEmbedder(max_tokens=window)
    chosen = chunking_of(generation(), embedder)
    assert (chosen.size, chosen.overlap) == (size, 64)
    assert chunking_of(generation(size=90, overlap=80), HashedEmbedder(max_tokens=50)).overlap == 49
