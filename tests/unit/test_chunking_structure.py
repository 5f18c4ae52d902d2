"""Splitting along structure: tables with their headers, source code at its definitions."""

import itertools
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.indexing.chunking import iter_chunks, split_text
from service.indexing.code import GRAMMARS, definitions
from service.indexing.splitting import Chunking

HEADER = "| key | meaning |\n|-----|---------|\n"
SIZE = 120
LINES = {
    ".py": [
        "def f(a):\n",
        "    return a\n",
        "class C:\n",
        "    x = 1\n",
        "\n",
        "# note\n",
        "    @d\n",
    ],
    ".go": ["func F() int {\n", "\treturn 1\n", "}\n", "type T struct {\n", "// note\n", "\n"],
    ".ts": [
        "export class A {\n",
        "  run() {}\n",
        "}\n",
        "const f = () => 1;\n",
        "/** n */\n",
        "\n",
    ],
    ".cpp": ["template <class T>\n", "struct S {\n", "  int f() { return 1; }\n", "};\n", "// é\n"],
    ".rb": ["module M\n", "  class A\n", "    def run\n", "    end\n", "  end\n", "end\n", "\n"],
}


def chunking(size: int = SIZE, overlap: int = 0) -> Chunking:
    return Chunking(size, overlap, len)


def table(rows: int, words: str = "a row") -> str:
    return HEADER + "".join(f"| {row} | {words} |\n" for row in range(rows))


def test_a_table_that_fits_is_whole() -> None:
    text = "Before it some words that fill a chunk.\n\n" * 3 + table(3) + "\nAnd words behind it.\n"
    holding = [chunk.text for chunk in split_text(text, chunking()) if "|" in chunk.text]
    assert len(holding) == 1
    assert table(3).strip() in holding[0]


def test_each_part_of_a_long_table_has_its_header_and_whole_rows() -> None:
    text = f"Words.\n\n## Keys\n\n{table(40)}\nWords behind.\n"
    parts = [chunk for chunk in split_text(text, chunking()) if "|" in chunk.text]
    assert len(parts) > 5
    assert parts[0].text.startswith(f"## Keys\n\n{HEADER}")
    assert all(chunk.text.startswith(HEADER) for chunk in parts[1:])
    rows = [line for chunk in parts for line in chunk.text.split("\n") if " row " in line]
    assert rows == [f"| {row} | a row |" for row in range(40)]
    assert max(len(chunk.text) for chunk in parts) <= SIZE


def test_the_place_of_a_part_is_that_of_its_rows() -> None:
    text = f"Words.\n\n{table(40)}"
    for chunk in split_text(text, chunking()):
        assert chunk.text.removeprefix(HEADER) == text[chunk.start : chunk.end].removeprefix(HEADER)


def test_a_row_that_is_too_long_goes_below_the_header_by_parts() -> None:
    parts = split_text(table(1, "many words " * 30), chunking())
    assert len(parts) > 3
    assert all(chunk.text.startswith(HEADER) for chunk in parts)
    assert max(len(chunk.text) for chunk in parts) <= SIZE


def test_a_table_in_a_code_block_is_code() -> None:
    text = f"```\n{table(40)}```\n"
    parts = split_text(text, chunking())
    assert sum(HEADER in chunk.text for chunk in parts) == 1


def test_a_code_block_that_fits_is_whole() -> None:
    block = "```py\nfirst = 1\n\nsecond = 2\n\nthird = 3\n```"
    before = "Some words that fill most of a chunk, so the block begins the next one. And more."
    text = f"{before}\n\n{block}\n\nWords behind the block, enough to fill what is left of it.\n"
    assert any(block in chunk.text for chunk in split_text(text, chunking(100), name="a.md"))


table_texts = st.lists(
    st.sampled_from([HEADER, "| a | b |\n", "|x|\n", "|---|\n", "words\n", "\n", "# h\n", "```\n"]),
    max_size=60,
).map("".join)


@given(text=table_texts, size=st.integers(24, 90), overlap=st.integers(0, 12))
@example(text=HEADER * 3, size=30, overlap=0)
@example(text="|a|\n|-|\n", size=24, overlap=0)
@example(text="# h\n# h\n| a | b |\n|x|\n\n|x|\n|x|\n|---|\n", size=24, overlap=3)
def test_all_text_with_tables_is_in_some_chunk_within_the_limit(
    text: str, size: int, overlap: int
) -> None:
    chunks = split_text(text, chunking(size, overlap), name="a.md")
    covered = [False] * len(text)
    for chunk in chunks:
        assert len(chunk.text) <= size
        assert chunk.text.endswith(text[chunk.start : chunk.end])
        covered[chunk.start : chunk.end] = [True] * (chunk.end - chunk.start)
    assert not "".join(c for c, is_in in zip(text, covered, strict=True) if not is_in).strip()
    assert [one.start for one in chunks] == sorted({one.start for one in chunks})


def test_a_table_of_many_rows_is_split_in_linear_work() -> None:
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(len(text))
        return len(text)

    split_text(table(20_000), Chunking(SIZE, 0, count))
    assert sum(counted) <= 4 * len(table(20_000))


PYTHON = '''"""A module."""

import os


# Leads to both.
@decorated
def first(a: int) -> int:
    return a


class Holder:
    """Holds."""

    def one(self) -> str:
        return "{words}"

    def two(self) -> str:
        return "{words}"


def last() -> None:
    pass
'''


def test_definitions_are_named_and_nested() -> None:
    found = [(part.label, part.depth) for part in definitions(PYTHON, "a.py")]
    assert found == [
        ("def first(a: int) -> int", 0),
        ("class Holder", 0),
        ("def one(self) -> str", 1),
        ("def two(self) -> str", 1),
        ("def last() -> None", 0),
    ]


def test_a_definition_begins_with_its_comments_and_decorators() -> None:
    first = definitions(PYTHON, "a.py")[0]
    assert PYTHON[first.start : first.end].startswith("# Leads to both.\n@decorated\ndef first")


def test_places_are_in_characters_not_bytes() -> None:
    text = "// größer als 日本\nfunction f() { return 1 }\n// ende\nfunction g() {}\n"
    second = definitions(text, "a.js")[1]
    assert text[second.start : second.end] == "// ende\nfunction g() {}"


def test_code_is_split_between_definitions() -> None:
    text = PYTHON.replace("{words}", "w" * 40)
    chunks = [chunk.text for chunk in split_text(text, chunking(), name="a.py")]
    assert chunks == [
        (
            '"""A module."""\n\nimport os\n\n\n# Leads to both.\n@decorated\n'
            "def first(a: int) -> int:\n    return a"
        ),
        (
            'class Holder:\n    """Holds."""\n\n    def one(self) -> str:\n'
            f'        return "{"w" * 40}"'
        ),
        f'    def two(self) -> str:\n        return "{"w" * 40}"',
        "def last() -> None:\n    pass",
    ]


def test_a_function_longer_than_a_chunk_is_split_within() -> None:
    text = "def long():\n" + "".join(f"    call_{n}()\n" for n in range(60)) + "\n\nx = 1\n"
    chunks = split_text(text, chunking(), name="a.py")
    assert max(len(chunk.text) for chunk in chunks) <= SIZE
    assert chunks[-1].text == "x = 1"


@settings(deadline=None)
@given(
    suffix=st.sampled_from(sorted(LINES)),
    picks=st.lists(st.integers(0, 6), max_size=60),
    size=st.integers(20, 200),
)
def test_all_code_is_in_some_chunk_within_the_limit(
    suffix: str, picks: list[int], size: int
) -> None:
    lines = LINES[suffix]
    text = "".join(lines[pick % len(lines)] for pick in picks)
    chunks = split_text(text, chunking(size), name=f"a{suffix}")
    reached = 0
    for chunk in chunks:
        assert chunk.text == text[chunk.start : chunk.end]
        assert len(chunk.text) <= size
        assert not text[reached : chunk.start].strip()
        reached = chunk.end
    assert not text[reached:].strip()
    assert chunks == split_text(text, chunking(size), name=f"a{suffix}")


@pytest.mark.parametrize("suffix", sorted(GRAMMARS))
def test_garbage_in_a_code_file_is_split_as_any_text(suffix: str) -> None:
    choose = random.Random(3).choice
    text = "".join(choose("(){}[];:,.\n \"'abc=+ \t<>") for _ in range(8_000))
    chunks = split_text(text, chunking(), name=f"a{suffix}")
    for before, after in itertools.pairwise(chunks):
        assert not text[before.end : after.start].strip()
    assert max(len(chunk.text) for chunk in chunks) <= SIZE


@pytest.mark.parametrize("text", ["", "(" * 5_000, "class A:\n " * 2_000, "{" * 5_000])
def test_hostile_nesting_is_split(text: str) -> None:
    for name in ("a.py", "a.js", "a.cpp"):
        assert "".join(
            "".join(c.text.split()) for c in iter_chunks(text, chunking(), name=name)
        ) == ("".join(text.split()))


def test_comments_above_a_definition_are_found_in_one_pass() -> None:
    comments = "# what it does\n" * 20_000
    (found,) = definitions(f"x = 1\n\n{comments}def last():\n    pass\n", "a.py")
    assert (found.start, found.label) == (len("x = 1\n\n"), "def last()")
