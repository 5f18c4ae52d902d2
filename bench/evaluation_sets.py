"""Evaluation sets in BEIR layout, and the figures that judge a ranking of their documents."""

import csv
import json
import math
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import msgspec

LANGUAGES = {
    "ar": "arabic",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "fi": "finnish",
    "fr": "french",
    "hi": "hindi",
    "hu": "hungarian",
    "id": "indonesian",
    "it": "italian",
    "nl": "dutch",
    "no": "norwegian",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sv": "swedish",
    "tr": "turkish",
}
"""ISO 639-1 code: text search configuration of stock PostgreSQL; `simple` for all others."""
NAMED_LANGUAGE = re.compile(r"^\W*(?:lang|language)\W+([a-z]{2,})", re.MULTILINE)


class EvaluationDocument(msgspec.Struct, frozen=True):
    """A document as the set has it."""

    id: str
    title: str
    text: str


class EvaluationSet(msgspec.Struct, frozen=True):
    """Documents, queries, and which documents are right for which query."""

    name: str
    language: str
    documents: Sequence[EvaluationDocument]
    queries: Mapping[str, str]
    grades: Mapping[str, Mapping[str, int]]


def read_set(folder: Path, language: str | None) -> EvaluationSet:
    """Read a folder of corpus.jsonl, queries.jsonl and qrels.tsv.

    Without `language` a line `lang: xx` of its README names it.
    """
    documents = [
        EvaluationDocument(line["_id"], line.get("title") or "", line["text"])
        for line in _lines(folder / "corpus.jsonl")
        if line["text"].strip()
    ]
    known = {document.id for document in documents}
    grades: dict[str, dict[str, int]] = {}
    with (folder / "qrels.tsv").open(encoding="utf-8", newline="") as file:
        for query, document, grade in list(csv.reader(file, delimiter="\t"))[1:]:
            if int(grade) > 0 and document in known:
                grades.setdefault(query, {})[document] = int(grade)
    queries = {line["_id"]: line["text"] for line in _lines(folder / "queries.jsonl")}
    asked = {query: text for query, text in queries.items() if query in grades}
    return EvaluationSet(folder.name, language or _named_language(folder), documents, asked, grades)


def _lines(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _named_language(folder: Path) -> str:
    for path in sorted(folder.glob("README*")):
        if named := NAMED_LANGUAGE.search(path.read_text("utf-8")):
            return LANGUAGES.get(named[1], "simple")
    return "simple"


def is_fitted_on(query: str) -> bool:
    """Whether a query belongs to the half that choices are made on; the other half reports."""
    return blake2b(query.encode(), digest_size=1).digest()[0] % 2 == 0


def ndcg(ranked: Sequence[str], grades: Mapping[str, int], depth: int = 10) -> float:
    """Normalized discounted cumulative gain at `depth` (Järvelin & Kekäläinen 2002), linear."""
    gained = _dcg([grades.get(document, 0) for document in ranked[:depth]])
    return gained / _dcg(sorted(grades.values(), reverse=True)[:depth])


def _dcg(grades: Sequence[int]) -> float:
    return math.fsum(grade / math.log2(at + 2) for at, grade in enumerate(grades))


def share_found(ranked: Sequence[str], grades: Mapping[str, int], depth: int) -> float:
    """Pass@depth: share of the right documents among the first `depth`."""
    return len(grades.keys() & set(ranked[:depth])) / len(grades)


def figures(ranked: Sequence[str], grades: Mapping[str, int]) -> dict[str, float]:
    """What is told of one ranking."""
    return {
        "ndcg@10": ndcg(ranked, grades),
        "p@1": float(bool(ranked) and ranked[0] in grades),
        **{f"pass@{depth}": share_found(ranked, grades, depth) for depth in (5, 10, 20)},
    }
