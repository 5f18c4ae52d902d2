"""What a chunk stands under."""

import pytest

from service.indexing.chunking import split_text
from service.indexing.headings import Outline
from service.indexing.splitting import Chunking
from service.text import estimate_tokens


@pytest.mark.parametrize(
    ("line", "label"),
    [
        ("# Keys", "Keys"),
        ("## Keys ##", "Keys"),
        ("# Keys #\t ", "Keys"),
        ("# C#", "C#"),
        ("# C# and F# #", "C# and F#"),
        ("#\tKeys", "Keys"),
    ],
)
def test_the_marks_that_close_a_heading_are_not_its_words(line: str, label: str) -> None:
    text = f"{line}\n\nText.\n"
    assert Outline(text, "a.md").path(text.index("Text"), len(text)) == (label,)


@pytest.mark.parametrize("gap", [" ", "#", " #", "\t"])
def test_a_heading_of_any_length_is_read_in_linear_time(gap: str) -> None:
    text = f"# a{gap * 20_000}b\n\nText.\n"
    (label,) = Outline(text, "a.md").path(len(text) - 2, len(text))
    assert label.startswith("a")
    assert len(label) <= 120


@pytest.mark.parametrize("line", [" " * 4_000 + "x|", "|-" + " " * 4_000 + "x"])
def test_lines_that_nearly_are_the_rule_of_a_table_are_read_in_linear_time(line: str) -> None:
    text = f"a | b\n{line}\n" * 50
    chunks = split_text(text, Chunking(512, 64, estimate_tokens), name="a.md")
    assert chunks[0].start == 0
    assert chunks[-1].end == len(text.rstrip())
