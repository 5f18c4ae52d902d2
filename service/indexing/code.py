"""Source code: its definitions, by tree-sitter grammars, and chunks along them. Pure."""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import PurePosixPath
from typing import Any

import msgspec
import numpy as np
from tree_sitter import Language, Node, Parser

from service.indexing.splitting import Chunk, Chunking, plain

MAX_CHARACTERS = 500_000
"""Of a file that is parsed; a longer one is split as plain text."""
BYTES_A_REPORT = 50
"""Of the parser's progress; source code needs one for more than 100, garbage for fewer than 50."""
LEAST_REPORTS = 1_000
BYTES_AT_ONCE = 65_536
DEPTH_OF_BODY = 3
"""Nodes between a definition and one inside it; deeper ones are left to the enclosing one."""
MAX_DEPTH = 12
MAX_LABEL = 120

GRAMMARS: Mapping[str, tuple[str, str]] = {
    ".py": ("tree_sitter_python", "language"),
    ".pyi": ("tree_sitter_python", "language"),
    ".js": ("tree_sitter_javascript", "language"),
    ".jsx": ("tree_sitter_javascript", "language"),
    ".mjs": ("tree_sitter_javascript", "language"),
    ".cjs": ("tree_sitter_javascript", "language"),
    ".ts": ("tree_sitter_typescript", "language_typescript"),
    ".mts": ("tree_sitter_typescript", "language_typescript"),
    ".tsx": ("tree_sitter_typescript", "language_tsx"),
    ".java": ("tree_sitter_java", "language"),
    ".go": ("tree_sitter_go", "language"),
    ".rs": ("tree_sitter_rust", "language"),
    ".c": ("tree_sitter_c", "language"),
    ".h": ("tree_sitter_cpp", "language"),
    ".cc": ("tree_sitter_cpp", "language"),
    ".cpp": ("tree_sitter_cpp", "language"),
    ".cxx": ("tree_sitter_cpp", "language"),
    ".hpp": ("tree_sitter_cpp", "language"),
    ".cs": ("tree_sitter_c_sharp", "language"),
    ".rb": ("tree_sitter_ruby", "language"),
    ".php": ("tree_sitter_php", "language_php"),
    ".sh": ("tree_sitter_bash", "language"),
    ".bash": ("tree_sitter_bash", "language"),
}
DEFINITIONS = frozenset(
    {
        *("function_definition", "class_definition", "function_declaration", "class_declaration"),
        *("generator_function_declaration", "method_definition", "abstract_class_declaration"),
        *("interface_declaration", "enum_declaration", "type_alias_declaration"),
        *("internal_module", "module", "method_declaration", "constructor_declaration"),
        *("record_declaration", "annotation_type_declaration", "type_declaration"),
        *("function_item", "struct_item", "enum_item", "trait_item", "impl_item", "mod_item"),
        *("macro_definition", "struct_specifier", "class_specifier", "enum_specifier"),
        *("union_specifier", "namespace_definition", "namespace_declaration"),
        *("struct_declaration", "trait_declaration", "method", "singleton_method", "class"),
    }
)
WRAPPERS = frozenset({"decorated_definition", "export_statement", "template_declaration"})
LEADING = frozenset({"comment", "line_comment", "block_comment", "attribute_item"})


class Definition(msgspec.Struct, frozen=True):
    """A definition and where it stands in its text, in characters, with its leading comments."""

    start: int
    end: int
    depth: int
    """Of definitions around it."""
    label: str
    """Its first words, up to its body."""


def is_code(name: str) -> bool:
    """Whether there is a grammar for a file of that name."""
    return PurePosixPath(name).suffix.lower() in GRAMMARS


def definitions(text: str, name: str) -> list[Definition]:
    """The definitions in reading order, outer before inner; none when the text can't be parsed."""
    if not is_code(name) or len(text) > MAX_CHARACTERS:
        return []
    encoded = text.encode(errors="surrogatepass")
    parser = Parser(_language(PurePosixPath(name).suffix.lower()))
    limit = _Limit(LEAST_REPORTS + len(encoded) // BYTES_A_REPORT)
    try:
        # Reading by parts, the parser reports and lets other threads go on.
        tree = parser.parse(
            lambda at, _point: encoded[at : at + BYTES_AT_ONCE], progress_callback=limit
        )
    except ValueError:
        return []
    position = _positions(text, encoded)
    return [
        Definition(position(start), position(end), depth, label)
        for start, end, depth, label in _walk(tree.root_node, encoded)
    ]


def code_chunks(text: str, chunking: Chunking, parts: Sequence[Definition]) -> Iterator[Chunk]:
    """As many whole definitions as fit, and long ones by those inside them; nothing is shared.

    Split, then merge, as in cAST (Zhang et al. 2025).
    """
    return _within(text, 0, len(text), parts, chunking)


class _Span(msgspec.Struct, frozen=True):
    start: int
    end: int
    inside: Sequence[Definition] = ()


def _within(
    text: str, start: int, stop: int, parts: Sequence[Definition], chunking: Chunking
) -> Iterator[Chunk]:
    first = end = start
    left = chunking.size
    for span in _spans(text, start, stop, parts):
        tokens = chunking.tokens(text[span.start : span.end])
        if tokens > left:
            yield from _merged(text, first, end, chunking)
            first, left = span.start, chunking.size
        if tokens > left:
            yield from (
                _within(text, span.start, span.end, span.inside, chunking)
                if span.inside
                else plain(text, span.start, span.end, chunking)
            )
            first, left = span.end, chunking.size
        else:
            left -= tokens
        end = span.end
    yield from _merged(text, first, end, chunking)


def _spans(text: str, start: int, stop: int, parts: Sequence[Definition]) -> list[_Span]:
    """The outermost definitions and what is between them, without gaps."""
    spans: list[_Span] = []
    at, index = start, 0
    while index < len(parts):
        part = parts[index]
        behind = index + 1
        while behind < len(parts) and parts[behind].start < part.end:
            behind += 1
        if text[at : part.start].strip():
            spans.append(_Span(at, part.start))
            at = part.start
        spans.append(_Span(at, part.end, parts[index + 1 : behind]))
        at, index = part.end, behind
    rest = text[at:stop]
    if spans and not any(character.isalnum() for character in rest):
        spans[-1] = msgspec.structs.replace(spans[-1], end=stop)  # the closing brackets
    elif rest.strip():
        spans.append(_Span(at, stop))
    return spans


def _merged(text: str, start: int, end: int, chunking: Chunking) -> Iterator[Chunk]:
    piece = text[start:end]
    # Blank lines go, the indentation of the first line stays.
    start += len(piece) - len(piece.lstrip())
    start = max(text.rfind("\n", 0, start) + 1, end - len(piece))
    piece = text[start:end].rstrip()
    if not piece:
        return
    if chunking.tokens(piece) > chunking.size:
        yield from plain(text, start, end, chunking)
    else:
        yield Chunk(piece, start, start + len(piece))


@cache
def _language(suffix: str) -> Language:
    module, function = GRAMMARS[suffix]
    return Language(getattr(importlib.import_module(module), function)())


class _Limit:
    """Stops the parser after so many reports: the same text always ends the same way."""

    def __init__(self, reports: int) -> None:
        self._left = reports

    def __call__(self, _offset: int, _has_error: bool) -> bool:
        self._left -= 1
        return self._left < 0


def _positions(text: str, encoded: bytes) -> Any:
    """Characters by bytes of UTF-8."""
    if len(encoded) == len(text):
        return int
    is_start = (np.frombuffer(encoded, np.uint8) & 0xC0) != 0x80
    before = np.concatenate(([0], np.cumsum(is_start)))
    return lambda at: int(before[at])


def _walk(root: Node, encoded: bytes) -> Iterator[tuple[int, int, int, str]]:
    waiting: list[tuple[Node, int, int, int]] = [(root, 0, 0, 0)]
    while waiting:
        node, start, depth, distance = waiting.pop()
        inner = _definition_in(node)
        if inner is not None and depth < MAX_DEPTH and node.parent is not None:
            yield start, node.end_byte, depth, _label(inner, encoded)
            node, depth, distance = inner, depth + 1, 0
        if distance <= DEPTH_OF_BODY:
            children = node.named_children
            begun = zip(reversed(children), reversed(_starts(children)), strict=True)
            waiting.extend((child, begin, depth, distance + 1) for child, begin in begun)


def _definition_in(node: Node) -> Node | None:
    if node.type in DEFINITIONS:
        return node
    if node.type in WRAPPERS:
        return next((one for one in node.named_children if one.type in DEFINITIONS), None)
    return None


def _starts(siblings: Sequence[Node]) -> list[int]:
    """Where each begins, with the comments that stand right above it.

    In one pass: the parser looks for the sibling before a node from the first one on.
    """
    starts: list[int] = []
    before: Node | None = None
    for node in siblings:
        attached = (
            before is not None
            and before.type in LEADING
            and before.end_point.row + 1 >= node.start_point.row
        )
        starts.append(starts[-1] if attached else node.start_byte)
        before = node
    return starts


def _label(node: Node, encoded: bytes) -> str:
    body = node.child_by_field_name("body")
    end = node.end_byte if body is None else body.start_byte
    head = encoded[node.start_byte : min(end, node.start_byte + 4 * MAX_LABEL)]
    words = head.decode(errors="ignore")
    if body is None:
        words = words.partition("\n")[0]
    return " ".join(words.split())[:MAX_LABEL].rstrip(" {:=(")
