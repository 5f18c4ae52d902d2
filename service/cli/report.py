"""How an indexing run is shown while it goes on and when it has ended."""

from collections import defaultdict
from collections.abc import Iterable

import msgspec
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from service.cli.console import err
from service.cli.jobs import Failure
from service.cli.reading import Unread

NAMES_A_REASON = 20
MAX_LINES = 50


class IndexReport(msgspec.Struct, frozen=True):
    """What became of everything that was read; `chunks` counts the whole collection."""

    indexed: int
    chunks: int
    seconds: float
    failures: list[Failure]
    skipped: list[Unread]
    warnings: list[str]


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.speed or 0:.1f} documents/s", style="dim")


def progress_bar() -> Progress:
    """Documents, chunks, rate and time left."""
    return Progress(
        SpinnerColumn(),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("documents, {task.fields[chunks]} chunks"),
        _RateColumn(),
        TimeRemainingColumn(),
        console=err,
    )


def show_report(report: IndexReport, collection: str) -> None:
    """The outcome in one line, then everything that is not searchable, by name."""
    rate = report.indexed / report.seconds if report.seconds else 0
    err.print(
        f"indexed {report.indexed} documents into {collection} in {report.seconds:.1f} s "
        f"({rate:.1f} a second); the collection has {report.chunks} chunks"
    )
    _show_lines("warning", report.warnings, "yellow")
    for reason, names in _by_reason(report.skipped).items():
        shown = ", ".join(names[:NAMES_A_REASON])
        more = len(names) - NAMES_A_REASON
        rest = f" and {more} more" if more > 0 else ""
        err.print(Text.assemble(("skipped ", "yellow"), f"{reason}: {shown}{rest}"))
    _show_lines("failed", (f"{one.doc_id}: {one.reason}" for one in report.failures), "bold red")


def _by_reason(skipped: Iterable[Unread]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = defaultdict(list)
    for one in skipped:
        names[one.reason].append(one.name)
    return names


def _show_lines(label: str, lines: Iterable[str], style: str) -> None:
    lines = list(lines)
    for line in lines[:MAX_LINES]:
        err.print(Text.assemble((f"{label} ", style), line))
    if len(lines) > MAX_LINES:
        err.print(Text(f"{label}: {len(lines) - MAX_LINES} more", style=style))
