"""Search answers as tables: ranks of the legs, snippets, timings, what was left out."""

import re
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from service.search.response import DocumentHit, Hit, LegExplanation, SearchResponse

SNIPPET_CHARACTERS = 200
CHARACTERS_BEFORE = 40
"""How much of a snippet comes before the first word of the query."""
MAX_MATCHES = 50
SHORTEST_WORD = 3
MAX_TERMS = 8
NO_RANK = "–"  # noqa: RUF001 - a dash where a number would be


def render(found: SearchResponse, query: str, *, explain: bool = False) -> Iterator[RenderableType]:
    """The parts of an answer, to be printed one after the other."""
    if isinstance(found.documents, list):
        yield _document_table(found.documents, query)
    if isinstance(found.hits, list):
        yield _hit_table(found.hits, query)
        if explain:
            yield from _explanations(found)
    yield _summary(found)
    for one in found.degraded:
        yield Text(f"degraded: {one.stage} was left out ({one.reason})", style="bold red")


def _hit_table(hits: Sequence[Hit], query: str) -> Table:
    table = _table()
    for rank, hit in enumerate(hits, 1):
        table.add_row(str(rank), _score(hit.score), *_ranks(hit), _chunk(hit, query))
    return table


def _document_table(documents: Sequence[DocumentHit], query: str) -> Table:
    """One row a document, below it one a chunk."""
    table = _table()
    for rank, document in enumerate(documents, 1):
        name = Text(document.doc_id, style="bold cyan")
        if document.title:
            name.append(f"  {document.title}", style="default")
        table.add_row(str(rank), _score(document.score), "", "", name)
        for hit in document.chunks:
            table.add_row("", "", *_ranks(hit), _chunk(hit, query))
        table.add_section()
    return table


def _chunk(hit: Hit, query: str) -> Text:
    return Text.assemble((hit.id, "cyan"), "\n", snippet(hit.text, query))


def _table() -> Table:
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False)
    for name in ("#", "score", "dense", "lexical"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("hit", ratio=1, overflow="fold")
    return table


def _ranks(hit: Hit) -> tuple[str, str]:
    explanation = hit.explain or None
    if explanation is None:
        return NO_RANK, NO_RANK
    return _rank(explanation.dense), _rank(explanation.lexical)


def _rank(leg: LegExplanation | None) -> str:
    return str(leg.rank) if leg else NO_RANK


def _score(score: float) -> str:
    return f"{score:.4f}"


def snippet(text: str, query: str) -> Text:
    """The part of the text that holds most of the query's words."""
    line = " ".join(text.split())
    words = [re.escape(word) for word in re.findall(r"\w[\w-]*\w", query) if _counts(word)]
    pattern = re.compile("|".join(words) or r"(?!)", re.IGNORECASE)
    start = max(0, _densest(line, pattern) - CHARACTERS_BEFORE)
    start = line.rfind(" ", 0, start + 1) + 1
    part = line[start : start + SNIPPET_CHARACTERS]
    before, after = "… " * (start > 0), " …" * (start + len(part) < len(line))
    shown = Text(before + part + after)
    shown.highlight_regex(pattern, style="bold")
    return shown


def _densest(line: str, pattern: re.Pattern[str]) -> int:
    """Where the stretch with most different words of the query begins."""
    matches = list(pattern.finditer(line))
    best, most = 0, 0
    for at, first in enumerate(matches):
        end = first.start() + SNIPPET_CHARACTERS - CHARACTERS_BEFORE
        words = {match[0].lower() for match in _until(end, matches[at : at + MAX_MATCHES])}
        if len(words) > most:
            best, most = first.start(), len(words)
    return best


def _until(end: int, matches: Sequence[re.Match[str]]) -> Iterator[re.Match[str]]:
    return (match for match in matches if match.start() < end)


def _counts(word: str) -> bool:
    return len(word) >= SHORTEST_WORD or not word.isascii()


def _summary(found: SearchResponse) -> Text:
    """How many, how long each stage took, and how the legs were fused."""
    shown = found.documents if isinstance(found.documents, list) else found.hits or []
    noun = "document" if isinstance(found.documents, list) else "hit"
    noun += "s" * (len(shown) != 1)
    stages = ", ".join(f"{name} {facts['ms']:.1f}" for name, facts in found.stages.items())
    line = f"{len(shown)} {noun} in {found.took_ms:.1f} ms ({stages})"
    if found.explain and found.explain.fusion:
        fusion = found.explain.fusion
        weights = f"dense {fusion.weights.dense:g}, lexical {fusion.weights.lexical:g}"
        line += f"; {fusion.method} {weights}: {fusion.reason}"
    if found.abstained:
        line += "; nothing reached the threshold"
    return Text(line, style="dim")


def _explanations(found: SearchResponse) -> Iterator[Text]:
    for rank, hit in enumerate(found.hits or [], 1):
        if not hit.explain:
            continue
        legs = {"dense": hit.explain.dense, "lexical": hit.explain.lexical}
        parts = [_explained(name, leg) for name, leg in legs.items() if leg]
        yield Text(f"{rank:3}. {'; '.join(parts)}", style="dim")


def _explained(name: str, leg: LegExplanation) -> str:
    line = f"{name} rank {leg.rank}, score {leg.score:.4f}, adds {leg.contribution:.4f}"
    if leg.terms:
        strongest = sorted(leg.terms.items(), key=lambda term: -term[1])[:MAX_TERMS]
        line += f" ({', '.join(f'{word} {added:.2f}' for word, added in strongest)})"
    return line
