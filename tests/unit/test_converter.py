"""Turning files into Markdown: what stays of their structure, and what is refused by name."""

import io
import re
import zipfile
from pathlib import Path

import pytest
from support.made_files import (
    WORDS,
    archive,
    docx,
    encrypted_pdf,
    marked_pdf,
    paragraph,
    pdf,
    table,
)

from service.indexing.conversion import Limits
from service.indexing.converter import RefusedError, convert
from service.indexing.files import convert_file
from service.indexing.payload import PendingFile
from service.indexing.planning import UnfitDocumentError

HTML = b"""<!doctype html><html><head><title>Key  guide</title><style>p {color: red}</style></head>
<body><script>alert("not text")</script><h1>Keys</h1><p>How to <b>rotate_them</b>
<a href="https://example.com/long">here</a>.</p>
<ul><li>first</li><li>second</li></ul>
<table><tr><th>name</th><th>limit</th></tr><tr><td>k</td><td>1000</td></tr></table>
<pre><code>x = a * b
</code></pre><noscript>enable it</noscript></body></html>"""


def converted(content: bytes, name: str, **limits: int) -> tuple[str, str | None]:
    found = convert(content, name, Limits(**limits))
    return found.text, found.title


def refusal(content: bytes, name: str, **limits: int) -> str:
    with pytest.raises(RefusedError) as caught:
        convert(content, name, Limits(**limits))
    return str(caught.value)


def archive_parts(made: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(made)) as zipped:
        return {name: zipped.read(name) for name in zipped.namelist()}


def changed_parts(*, flags: int = 0, method: int = 8) -> bytes:
    """A Word file whose parts claim to be encrypted or packed in another way."""
    made = bytearray(docx(paragraph("words"), title="title"))
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for found in re.finditer(re.escape(mark), bytes(made)):
            made[found.start() + at] |= flags
            made[found.start() + at + 2] = method
    return bytes(made)


def test_html_keeps_headings_lists_tables_and_code_and_no_script() -> None:
    text, title = converted(HTML, "guide.html")
    assert title == "Key guide"
    assert "# Keys\n" in text
    assert "How to **rotate_them**" in text
    assert "- first\n- second" in text
    assert "| name | limit |\n| --- | --- |\n| k | 1000 |" in text
    assert "```\nx = a * b\n" in text
    for hidden in ("alert", "color", "enable it", "example.com"):
        assert hidden not in text


def test_html_is_known_by_its_beginning_too() -> None:
    assert converted(b"<html><p>words</p></html>", "page")[0] == "words"


def test_what_a_page_says_to_its_reader_is_not_its_text() -> None:
    page = (
        '<?xml version="1.0" encoding="iso-8859-2"?><!DOCTYPE html><html><body>'
        "<p>\u0142\u00f3d\u017a<?php echo 1 ?> sinks</p></body></html>"
    )
    assert converted(page.encode("iso-8859-2"), "boat.xhtml")[0] == "\u0142\u00f3d\u017a sinks"


def test_a_table_around_tables_is_taken_for_layout() -> None:
    inner = "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>"
    page = f"<table><tr><td>{inner}</td><td>beside</td></tr><tr><td>below</td></tr></table>"
    expected = "| a | b |\n| --- | --- |\n| 1 | 2 |\n\nbeside\n\nbelow"
    assert converted(page.encode(), "mail.html")[0] == expected


def test_what_was_inserted_in_a_word_file_is_there_and_what_was_deleted_is_not() -> None:
    body = (
        "<w:p><w:r><w:t>kept</w:t></w:r><w:ins><w:r><w:t> new</w:t></w:r></w:ins>"
        "<w:del><w:r><w:delText> old</w:delText></w:r></w:del></w:p>"
    )
    assert converted(docx(body), "tracked.docx")[0] == "kept new"


def test_nothing_outside_of_a_word_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hidden")
    entity = f'<!DOCTYPE d [<!ENTITY x SYSTEM "file://{tmp_path}/secret">]>'
    text = (
        f'{entity}<w:document xmlns:w="{WORDS}"><w:body>{paragraph("a &x;b")}</w:body></w:document>'
    )
    parts = archive_parts(docx(paragraph("")))
    made = archive({**parts, "word/document.xml": text.encode()})
    assert converted(made, "outside.docx")[0] == "a b"


def test_bookmarks_of_a_pdf_make_headings_and_bad_ones_are_left_out() -> None:
    made = marked_pdf("Intro\nwords", mark=b"(Intro)")
    assert converted(made, "a.pdf") == ("\n# Intro\n\nwords", "Intro")
    half = marked_pdf("Intro\nwords", mark=b"<FEFFD83D>")
    assert converted(half, "b.pdf") == ("Intro\nwords", None)


def test_a_pdf_gives_the_text_of_its_pages_and_its_title() -> None:
    text, title = converted(
        pdf(["First page", "Second page\nwith a line"], title="Manual"), "m.pdf"
    )
    assert (text, title) == ("First page\n\nSecond page\nwith a line", "Manual")


def test_a_word_file_keeps_headings_and_tables() -> None:
    body = (
        paragraph("Limits", "Heading1")
        + paragraph("What is bounded.")
        + table(["name", "limit"], ["k", "1000"])
    )
    text, title = converted(docx(body, title="The &amp; limits"), "l.docx")
    assert title == "The & limits"
    assert text.startswith("# Limits\n\nWhat is bounded.")
    assert "| name | limit |\n| --- | --- |\n| k | 1000 |" in text


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "latin-1"])
def test_text_is_read_in_its_encoding(encoding: str) -> None:
    words = "# Schlüssel\n\nGrößere Städte und schöne Gärten gehören zu den Wünschen vieler Bürger."
    assert converted(words.encode(encoding), "text.md") == (words, "Schlüssel")


def test_code_stays_as_it_is() -> None:
    code = "def f(a):\n    return a * 2  # *not* emphasis\n"
    assert converted(code.encode(), "f.py")[0] == code


@pytest.mark.parametrize(
    ("content", "name", "reason"),
    [
        (b"", "empty.txt", "holds no text"),
        (b" \n\t", "blank.md", "holds no text"),
        (b"<html><script>1</script></html>", "a.html", "holds no text"),
        (pdf([""]), "scan.pdf", "has no text on its 1 pages: a scan needs text recognition first"),
        (encrypted_pdf(), "closed.pdf", "is encrypted"),
        (b"%PDF-1.7\nnothing", "bad.pdf", "is damaged: no PDF reader opens it"),
        (b"words", "wrong.pdf", "is no PDF file"),
        (
            re.sub(rb"/Kids \[\d+", b"/Kids [99", pdf(["one", "two"])),
            "page.pdf",
            "is damaged: its page 1 can't be read",
        ),
        (b"<p>a</p><![unknown[", "marked.html", "is damaged: its parts can't be read"),
        (changed_parts(flags=1), "closed.docx", "is encrypted"),
        (changed_parts(method=99), "method.docx", "is damaged: its parts can't be read"),
        (
            b"\xd0\xcf\x11\xe0" + "EncryptedPackage".encode("utf-16-le"),
            "password.docx",
            "is encrypted",
        ),
        (b"words", "wrong.docx", "is no DOCX file"),
        (b"PK\x03\x04broken", "bad.docx", "is damaged: its archive can't be read"),
        (
            archive({"word/document.xml": b"<broken"}),
            "b.docx",
            "is damaged: its parts can't be read",
        ),
        (archive({"a.txt": b"words"}), "a.zip", "is an archive: send the files in it"),
        (archive({"xl/workbook.xml": b""}), "a.xlsx", "is a spreadsheet: only Word files are read"),
        (b"\xd0\xcf\x11\xe0old", "a.doc", "is an old Office file: save it as .docx or PDF"),
        (b"\x89PNG\r\n", "a.md", "is an image"),
        (bytes(range(256)) * 20, "a.txt", "is binary: it holds no text"),
    ],
)
def test_what_gives_no_text_is_refused_with_the_reason(
    content: bytes, name: str, reason: str
) -> None:
    assert refusal(content, name) == reason


def test_pages_and_characters_are_bounded() -> None:
    assert refusal(pdf(["a"] * 3), "a.pdf", pages=2) == "has 3 pages, at most 2 are taken"
    reason = "holds more than 10 characters of text"
    assert refusal(b"eleven char", "a.txt", characters=10) == reason
    assert refusal(pdf(["eleven char"]), "a.pdf", characters=10) == reason


def test_an_archive_that_expands_without_end_is_refused_unread() -> None:
    bomb = archive({"word/document.xml": b"0" * 210_000_000})
    assert len(bomb) < 1_000_000
    assert refusal(bomb, "bomb.docx") == "expands to more than 200 MB"


async def failure(content: bytes, name: str, limits: Limits) -> str:
    with pytest.raises(UnfitDocumentError) as caught:
        await convert_file(PendingFile(name, content), limits)
    return str(caught.value)


async def test_a_file_is_converted_by_a_process_of_its_own() -> None:
    found = await convert_file(PendingFile("guide.html", HTML), Limits())
    assert found.title == "Key guide"


async def test_a_conversion_that_takes_too_much_memory_fails_by_name() -> None:
    large = b"<p>" + b"<i>x</i>" * 1_500_000
    reason = await failure(large, "large.html", Limits(memory_mb=150))
    assert reason == "large.html: takes more than 150 MB of memory"


async def test_a_conversion_that_takes_too_long_fails_by_name() -> None:
    slow = b"<p>" + b"<i>x</i>" * 1_500_000
    reason = await failure(slow, "slow.html", Limits(seconds=1))
    assert reason == "slow.html: takes more than 1 s to convert"


async def test_markup_that_nests_without_end_fails_by_name() -> None:
    reason = await failure(b"<div>" * 20_000 + b"x", "deep.html", Limits())
    assert reason == "deep.html: nests too deep"


async def test_an_entity_that_grows_is_refused() -> None:
    declared = '<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa">' + "".join(
        f'<!ENTITY {chr(98 + n)} "{("&" + chr(97 + n) + ";") * 10}">' for n in range(9)
    )
    body = f"{declared}]><w:document>&j;</w:document>"
    reason = await failure(
        archive({"word/document.xml": body.encode(), "_rels/.rels": b"<a/>"}), "e.docx", Limits()
    )
    assert reason == "e.docx: is damaged: its parts can't be read"
