"""What the chunker does for search: the same questions on its chunks and on chunks that are given.

Each set has whole documents, and its answers are passages of them, in characters. The documents are
indexed twice over the HTTP API of a server in this process: as the chunks that come with the set,
and raw, at some settings of the chunker with headings as headers. A hit counts by the characters of
the answers that it holds, wherever its chunk begins and ends.
"""

import argparse
import asyncio
import csv
import json
import os
import re
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
from evaluation_sets import ndcg
from quality import finished, posted, serving

from service.settings import Settings
from service.telemetry import configure_telemetry

SIZES = ("512/64", "256/32", "128/16")
MODES = ("text", "hybrid")
DEPTHS = (5, 10, 20)
BUDGETS = (4_000, 8_000)
"""Characters that are read, from the best hit on: fair to chunks of any length."""
K = 60
BATCH = 20
AT_ONCE = 2
PAGE = 1_000
KINDS = (
    (".rs", r"^\s*(?:pub(?:\(\w+\))? )?(?:fn|impl|mod|use) .*[{;]$"),
    (".java", r"^(?:package|import) [\w.]+;$"),
    (".cpp", r"^#(?:include|pragma|ifndef) "),
    (".py", r"^(?:import|from|def|class) \w"),
)
"""Suffix of a file, and a line that tells it: the sets have no file names, users' files have."""


class Passage(NamedTuple):
    """A part of a document, in characters."""

    document: str
    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


class Task(msgspec.Struct, frozen=True):
    """A set: its documents, its chunks in each, its queries with the passages that answer them."""

    name: str
    documents: Mapping[str, str]
    given: Mapping[str, Mapping[str, Passage]]
    queries: Mapping[str, str]
    answers: Mapping[str, Sequence[Passage]]


class Splitting(msgspec.Struct, frozen=True):
    """A collection: its name and its chunks by id."""

    name: str
    chunks: Mapping[str, Passage]


def read_task(folder: Path) -> Task:
    """Read a folder in BEIR layout with documents.jsonl, and spans.jsonl or else judged chunks."""
    documents = {line["_id"]: line["text"] for line in _lines(folder / "documents.jsonl")}
    given = _located(folder, documents)
    spans = folder / "spans.jsonl"
    answers = _spans(spans) if spans.exists() else _judged(folder / "qrels.tsv", given)
    queries = {line["_id"]: line["text"] for line in _lines(folder / "queries.jsonl")}
    asked = {query: text for query, text in queries.items() if query in answers}
    return Task(folder.name, documents, given, asked, answers)


def _lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _located(folder: Path, documents: Mapping[str, str]) -> dict[str, dict[str, Passage]]:
    """Where the chunks of corpus.jsonl stand: one after the other, ids begin with the document's"""
    found: dict[str, dict[str, Passage]] = {document: {} for document in documents}
    reached = dict.fromkeys(documents, 0)
    for line in _lines(folder / "corpus.jsonl"):
        document = re.sub(r"(?:_chunk_|-)\d+$", "", line["_id"])
        start = documents[document].index(line["text"], reached[document])
        reached[document] = start + 1
        passage = Passage(document, start, start + len(line["text"]))
        found[document][line["_id"]] = passage
    return found


def _spans(path: Path) -> dict[str, list[Passage]]:
    return {
        line["_id"]: [Passage(line["document"], start, end) for start, end in line["spans"]]
        for line in _lines(path)
    }


def _judged(path: Path, given: Mapping[str, Mapping[str, Passage]]) -> dict[str, list[Passage]]:
    places = {chunk: place for chunks in given.values() for chunk, place in chunks.items()}
    answers: dict[str, list[Passage]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for query, chunk, grade in list(csv.reader(file, delimiter="\t"))[1:]:
            if int(grade) > 0:
                answers.setdefault(query, []).append(places[chunk])
    return answers


async def index_given(client: httpx.AsyncClient, task: Task, provider: str) -> Splitting:
    name = f"{task.name}-given"
    documents = [
        {
            "doc_id": document,
            "chunks": [
                {"id": chunk, "text": task.documents[document][place.start : place.end]}
                for chunk, place in chunks.items()
                if task.documents[document][place.start : place.end].strip()
            ],
        }
        for document, chunks in task.given.items()
    ]
    await _index(client, {"name": name}, documents, provider)
    chunks = {chunk: place for each in task.given.values() for chunk, place in each.items()}
    return Splitting(name, chunks)


async def index_raw(
    client: httpx.AsyncClient, task: Task, size: str, given: argparse.Namespace
) -> Splitting:
    tokens, overlap = map(int, size.split("/"))
    name = f"{task.name}-{tokens}-{overlap}"
    collection = {
        "name": name,
        "chunking": {"size": tokens, "overlap": overlap},
        "contextual": {"enabled": not given.without_headings, "mode": "heading"},
    }
    documents = [
        {
            "doc_id": document,
            "text": text,
            **({"source": document + kind(text)} if given.named else {}),
        }
        for document, text in task.documents.items()
    ]
    await _index(client, collection, documents, given.provider)
    chunks = {
        record["id"]: Passage(record["doc_id"], record["start"], record["end"])
        async for record in _records(client, name)
    }
    return Splitting(name, chunks)


def kind(text: str) -> str:
    """The suffix that a file of such a text would have."""
    lines = {suffix: len(re.findall(line, text, re.MULTILINE)) for suffix, line in KINDS}
    best = max(lines, key=lambda suffix: lines[suffix])
    return best if lines[best] else ""


async def _index(
    client: httpx.AsyncClient,
    collection: dict[str, Any],
    documents: Sequence[dict[str, Any]],
    provider: str,
) -> None:
    body = {**collection, "language": "english", "embedding": {"provider": provider}}
    (await client.post("/v1/collections", json=body)).raise_for_status()
    path = f"/v1/collections/{collection['name']}"
    for start in range(0, len(documents), BATCH):
        sent = {"documents": documents[start : start + BATCH]}
        job = await posted(client, f"{path}/documents", sent)
        await finished(client, f"{path}/jobs/{job['job_id']}")


async def _records(client: httpx.AsyncClient, name: str) -> Any:
    cursor: dict[str, str] = {}
    while True:
        wanted = {"scope": "chunks", "limit": str(PAGE), **cursor}
        answer = await client.get(f"/v1/collections/{name}/documents", params=wanted)
        page = answer.raise_for_status().json()
        for record in page["records"]:
            yield record
        if not page["next_cursor"]:
            return
        cursor = {"cursor": page["next_cursor"]}


async def measure(
    client: httpx.AsyncClient, task: Task, splitting: Splitting, mode: str
) -> dict[str, float]:
    """Means over the queries."""
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(query: str) -> dict[str, float]:
        body = {"query": {"text": task.queries[query]}, "mode": mode, "k": K, "timeout_ms": 60_000}
        async with limit:
            found = await posted(client, f"/v1/collections/{splitting.name}/search", body)
        assert not found["degraded"], found["degraded"]
        ranked = [hit["id"] for hit in found["hits"]]
        return figures(ranked, splitting.chunks, task.answers[query])

    each = await asyncio.gather(*map(one, task.queries))
    return {name: statistics.fmean(figure[name] for figure in each) for name in each[0]}


def figures(
    ranked: Sequence[str], chunks: Mapping[str, Passage], answers: Sequence[Passage]
) -> dict[str, float]:
    """What is told of one ranking of chunks, by the characters of the answers."""
    passages = [chunks[chunk] for chunk in ranked]
    wanted = _characters(answers)
    relevant = {id_: 1 for id_, place in chunks.items() if is_relevant(place, answers)}
    told = {"ndcg@10": ndcg(ranked, relevant) if relevant else 0.0}
    for depth in DEPTHS:
        told[f"recall@{depth}"] = len(wanted & _characters(passages[:depth])) / len(wanted)
    for budget in BUDGETS:
        read = list(_within(passages, budget))
        told[f"recall in {budget}"] = len(wanted & _characters(read)) / len(wanted)
    read = passages[: DEPTHS[0]]
    found, length = len(wanted & _characters(read)), sum(place.length for place in read)
    told[f"precision@{DEPTHS[0]}"] = found / length if length else 0.0
    told[f"iou@{DEPTHS[0]}"] = found / (length + len(wanted) - found)
    return told


def is_relevant(chunk: Passage, answers: Sequence[Passage]) -> bool:
    """Whether half of an answer is in the chunk, or half of the chunk in an answer."""
    return any(
        2 * (min(chunk.end, answer.end) - max(chunk.start, answer.start))
        >= min(chunk.length, answer.length)
        for answer in answers
        if chunk.document == answer.document
    )


def _characters(passages: Sequence[Passage]) -> set[tuple[str, int]]:
    return {(one.document, at) for one in passages for at in range(one.start, one.end)}


def _within(passages: Sequence[Passage], budget: int) -> Iterator[Passage]:
    """The passages that are read with so many characters, the last one in part."""
    for passage in passages:
        read = min(passage.length, budget)
        yield passage._replace(end=passage.start + read)
        budget -= read


async def compare(given: argparse.Namespace, task: Task) -> list[dict[str, Any]]:
    print(f"\n{task.name}: {len(task.documents)} documents, {len(task.queries)} queries")
    told: list[dict[str, Any]] = []
    async with serving(given.cache) as client:
        for size in ("given", *given.sizes):
            if size == "given":
                splitting = await index_given(client, task, given.provider)
            else:
                splitting = await index_raw(client, task, size, given)
            for mode in given.modes:
                found = await measure(client, task, splitting, mode)
                told.append({"set": task.name, "chunks": size, "mode": mode, **found})
                _show(splitting, size, mode, found)
    return told


def _show(splitting: Splitting, size: str, mode: str, found: Mapping[str, float]) -> None:
    length = statistics.fmean(place.length for place in splitting.chunks.values())
    row = "  ".join(f"{name} {value:.4f}" for name, value in found.items())
    count = len(splitting.chunks)
    print(f"  {size:<8} {count:>5} of {length:>5.0f} characters  {mode:<7} {row}", flush=True)


async def main(given: argparse.Namespace) -> None:
    configure_telemetry(Settings(log_level="error"))
    given.cache.mkdir(parents=True, exist_ok=True)
    told = []
    for folder in sorted(path.parent for path in given.sets.glob("*/documents.jsonl")):
        if not given.only or folder.name in given.only:
            told += await compare(given, read_task(folder))
    if given.json:
        given.json.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    sets = os.environ.get("BRAID_EVALUATION_SETS")
    parser.add_argument("sets", type=Path, nargs="?" if sets else None, default=sets)
    parser.add_argument("--only", nargs="*", help="names of sets")
    parser.add_argument("--sizes", nargs="*", default=SIZES, metavar="SIZE/OVERLAP")
    parser.add_argument("--modes", nargs="*", default=MODES, choices=("text", "vector", "hybrid"))
    parser.add_argument("--named", action="store_true", help="give code a file name of its kind")
    parser.add_argument("--without-headings", action="store_true", help="no headers of headings")
    parser.add_argument("--provider", default="local", help="`none` for mode text: no embedding")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "braid-quality")
    parser.add_argument("--json", type=Path, help="file for the figures")
    asyncio.run(main(parser.parse_args()))
