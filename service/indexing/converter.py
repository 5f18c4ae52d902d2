"""Converts one file to Markdown, in a process of its own that may be killed.

Reads the file from standard input and writes `{"text", "title"}` or `{"refused"}` as JSON. It knows
no settings and no secrets: what it is to keep to comes as arguments.
"""

import io
import re
import resource
import sys
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from html import unescape

import mammoth
import msgspec
import pypdfium2
from bs4 import BeautifulSoup, Declaration, ProcessingInstruction, Tag
from charset_normalizer import from_bytes
from markdownify import MarkdownConverter

from service.indexing.conversion import Converted, Limits

MAX_EXPANDED_BYTES = 200_000_000
"""Of what an archive holds."""
ENCRYPTED_PART = 0x1
SNIFFED = 1_024
MARKUP = re.compile(
    rb"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)?<(?:!doctype\s+html|html)\b",
    re.IGNORECASE | re.DOTALL,
)
WITHOUT_TEXT = ("script", "style", "template", "noscript", "svg", "iframe", "object", "embed")
NOT_SHOWN = (ProcessingInstruction, Declaration)
PARTS_OF_TABLES = ("thead", "tbody", "tfoot", "tr", "th", "td", "caption")
DOCX_TITLE = re.compile(r"<dc:title[^>]*>([^<]*)</dc:title>")
HEADING = re.compile(r"^#{1,6} +(\S.*)$", re.MULTILINE)
OLD_OFFICE = b"\xd0\xcf\x11\xe0"
ENCRYPTED_OFFICE = "EncryptedPackage".encode("utf-16-le")
OTHER_KINDS = {
    OLD_OFFICE: "an old Office file: save it as .docx or PDF",
    b"{\\rtf": "a rich text file: save it as .docx or PDF",
    b"\x1f\x8b": "a compressed file",
    b"7z\xbc\xaf": "a compressed file",
    b"Rar!": "a compressed file",
    b"\x89PNG": "an image",
    b"\xff\xd8\xff": "an image",
    b"GIF8": "an image",
    b"\x7fELF": "a program",
}


class RefusedError(Exception):
    """The file gives no text; says why."""


def convert(content: bytes, name: str, limits: Limits) -> Converted:
    """The text of a file as Markdown; raises `RefusedError`."""
    converter = _converter_of(content, name)
    try:
        found = converter(content, limits)
    except (RefusedError, MemoryError, RecursionError):
        raise
    except Exception as error:  # the readers let out whatever they stumble over
        raise RefusedError("is damaged: its parts can't be read") from error
    if len(found.text) > limits.characters:
        raise RefusedError(f"holds more than {limits.characters} characters of text")
    if not found.text.strip():
        raise RefusedError("holds no text")
    return found


def _converter_of(content: bytes, name: str) -> Callable[[bytes, Limits], Converted]:
    suffix = name.lower().rpartition(".")[2]
    if content[:SNIFFED].lstrip().startswith(b"%PDF-"):
        return _pdf
    if content.startswith(b"PK\x03\x04"):
        return _archive
    if content.startswith(OLD_OFFICE) and ENCRYPTED_OFFICE in content:
        raise RefusedError("is encrypted")
    for start, kind in OTHER_KINDS.items():
        if content.startswith(start):
            raise RefusedError(f"is {kind}")
    if suffix in ("pdf", "docx"):
        raise RefusedError(f"is no {suffix.upper()} file")
    if suffix in ("html", "htm", "xhtml") or MARKUP.match(content[:SNIFFED]):
        return _html
    return _text


def _pdf(content: bytes, limits: Limits) -> Converted:
    try:
        document = pypdfium2.PdfDocument(content)
        pages = len(document)
    except pypdfium2.PdfiumError as error:
        encrypted = "password" in str(error).lower()
        raise RefusedError(
            "is encrypted" if encrypted else "is damaged: no PDF reader opens it"
        ) from error
    if pages > limits.pages:
        raise RefusedError(f"has {pages} pages, at most {limits.pages} are taken")
    marks = _bookmarks(document)
    texts, size = [], 0
    for number in range(pages):
        words = _words(document, number)
        texts.append(_with_headings(_unbroken(words), marks.get(number, ())))
        size += len(texts[-1])
        if size > limits.characters:
            raise RefusedError(f"holds more than {limits.characters} characters of text")
    text = "\n\n".join(filter(None, texts))
    if not text.strip():
        raise RefusedError(f"has no text on its {pages} pages: a scan needs text recognition first")
    title = " ".join(document.get_metadata_dict().get("Title", "").split())
    return Converted(text, title or (_first_heading(text) if marks else None))


def _bookmarks(document: pypdfium2.PdfDocument) -> dict[int, list[tuple[int, str]]]:
    """Levels and titles by page; those that can't be read are left out."""
    marks: dict[int, list[tuple[int, str]]] = {}
    with suppress(pypdfium2.PdfiumError):
        for mark in document.get_toc():
            place = mark.get_dest()
            index = None if place is None else place.get_index()
            if index is not None:
                with suppress(UnicodeDecodeError):
                    title = " ".join(mark.get_title().split())
                    marks.setdefault(index, []).append((mark.level, title))
    return marks


def _words(document: pypdfium2.PdfDocument, number: int) -> str:
    try:
        page = document[number]
        words: str = page.get_textpage().get_text_bounded()
    except pypdfium2.PdfiumError as error:
        raise RefusedError(f"is damaged: its page {number + 1} can't be read") from error
    page.close()
    return words


def _unbroken(words: str) -> str:
    """Text of a page without what only its lines needed."""
    words = words.replace("\r\n", "\n").replace("\r", "\n")
    return re.sub("[\ufffe\x02]\n?", "", words).strip()


def _with_headings(text: str, marks: Sequence[tuple[int, str]]) -> str:
    """Lines that a bookmark of the page names become headings."""
    levels = {title: level for level, title in marks if title}
    lines = []
    for line in text.split("\n"):
        level = levels.pop(" ".join(line.split()), None) if levels else None
        lines.append(line if level is None else f"\n{'#' * min(level + 1, 6)} {line.strip()}\n")
    return "\n".join(lines)


def _archive(content: bytes, _limits: Limits) -> Converted:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            parts = {part.filename: part.file_size for part in archive.infolist()}
            if sum(parts.values()) > MAX_EXPANDED_BYTES:
                mb = MAX_EXPANDED_BYTES // 1_000_000
                raise RefusedError(f"expands to more than {mb} MB")
            if any(part.flag_bits & ENCRYPTED_PART for part in archive.infolist()):
                raise RefusedError("is encrypted")
            if "word/document.xml" in parts:
                return _docx(content, _docx_title(archive))
    except (zipfile.BadZipFile, zipfile.LargeZipFile) as error:
        raise RefusedError("is damaged: its archive can't be read") from error
    for folder, kind in (("xl/", "a spreadsheet"), ("ppt/", "a presentation")):
        if any(part.startswith(folder) for part in parts):
            raise RefusedError(f"is {kind}: only Word files are read")
    raise RefusedError("is an archive: send the files in it")


def _docx(content: bytes, title: str | None) -> Converted:
    def no_image(_image: object) -> dict[str, str]:
        return {}

    made = mammoth.convert_to_html(
        io.BytesIO(content), convert_image=mammoth.images.img_element(no_image)
    )
    text = _markdown(BeautifulSoup(made.value, "html.parser"))
    return Converted(text, title or _first_heading(text))


def _docx_title(archive: zipfile.ZipFile) -> str | None:
    with suppress(KeyError):
        properties = archive.read("docProps/core.xml").decode(errors="replace")
        if found := DOCX_TITLE.search(properties):
            return " ".join(unescape(found[1]).split()) or None
    return None


def _html(content: bytes, _limits: Limits) -> Converted:
    page = BeautifulSoup(content, "html.parser")
    for part in page.find_all(string=lambda text: isinstance(text, NOT_SHOWN)):
        part.extract()
    title = " ".join(page.title.get_text().split()) if page.title else ""
    text = _markdown(page)
    return Converted(text, title or _first_heading(text))


def _markdown(page: BeautifulSoup) -> str:
    for part in page.find_all([*WITHOUT_TEXT, "head"]):
        part.decompose()
    for table in page.find_all("table"):
        if table.find("table"):
            _unwrap(table)
    converter = MarkdownConverter(
        heading_style="ATX",
        bullets="-",
        strip=["a", "img"],
        table_infer_header=True,
        escape_asterisks=False,
        escape_underscores=False,
        escape_misc=False,
    )
    text: str = converter.convert_soup(page)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _unwrap(table: Tag) -> None:
    """Make blocks of the cells of a table that holds tables: Markdown can't nest them."""
    own = [part for part in table.find_all(PARTS_OF_TABLES) if part.find_parent("table") is table]
    for part in (table, *own):
        part.name = "div"


def _text(content: bytes, _limits: Limits) -> Converted:
    text = _decoded(content)
    return Converted(text, _first_heading(text))


def _decoded(content: bytes) -> str:
    for mark, encoding in (
        (b"\xff\xfe\x00\x00", "utf-32"),
        (b"\x00\x00\xfe\xff", "utf-32"),
        (b"\xff\xfe", "utf-16"),
        (b"\xfe\xff", "utf-16"),
    ):
        if content.startswith(mark):
            with suppress(UnicodeDecodeError):
                return content.decode(encoding)
    with suppress(UnicodeDecodeError):
        text = content.decode("utf-8-sig")
        if "\0" not in text:
            return text
    if b"\0" in content:
        raise RefusedError("is binary: it holds no text")
    best = from_bytes(content).best()
    if best is None:
        raise RefusedError("is no text in any known encoding")
    return str(best)


def _first_heading(text: str) -> str | None:
    found = HEADING.search(text, 0, 20_000)
    return found[1].strip(" #") if found else None


def _limit(limits: Limits) -> None:
    memory = limits.memory_mb * 1_000_000
    for kind, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, limits.seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):  # not every system has each
            resource.setrlimit(kind, (most, most))


def main() -> None:
    """Convert standard input; arguments are the file's name and the limits as JSON."""
    name, given = sys.argv[1:]
    limits = msgspec.json.decode(given, type=Limits)
    _limit(limits)
    try:
        answer = convert(sys.stdin.buffer.read(), name, limits)
    except RefusedError as error:
        answer = Converted(refused=str(error))
    except MemoryError:
        answer = Converted(refused=f"takes more than {limits.memory_mb} MB of memory")
    except RecursionError:
        answer = Converted(refused="nests too deep")
    sys.stdout.buffer.write(msgspec.json.encode(answer))


if __name__ == "__main__":
    main()
