"""Search quality through the product: index sets, search them in each mode, choose and report.

Each folder under the given one is a set in BEIR layout. Its documents are posted over the HTTP API
of a server in this process and chunked, embedded and indexed as any others; its queries are asked
in modes text, vector and hybrid. Queries fall into two halves by a hash of their id: fusion rules
are compared on the one, and everything is reported on the other and on both.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec
from embedding_cache import CachedEmbedder
from evaluation_sets import EvaluationSet, figures, is_fitted_on, ndcg, read_set
from pydantic import SecretStr

from service.app import create_app_for
from service.db.embedded import EmbeddedPostgres
from service.db.migrate import migrate
from service.models import Candidate, FusionMethod, Weights
from service.providers.embedders import Embedders
from service.providers.registry import EmbedderOptions, create_embedder
from service.search.fusion import FusionRule, Leg, LexicalEvidence, fuse
from service.settings import Settings
from service.telemetry import configure_telemetry

KEY = "key-of-the-quality-measurement"
BATCH = 100
AT_ONCE = 2
WAIT_SECONDS = 3600
POOL = 40
"""Candidates of each leg that the rules are compared on: the product's default."""
DEEP = 100
MODES = ("text", "vector", "hybrid")

Ranked = Sequence[Candidate]


class Asked(msgspec.Struct, frozen=True):
    """One query: what each leg found, and the documents of each mode."""

    id: str
    legs: Mapping[Leg, Ranked]
    documents: Mapping[str, Sequence[str]]
    evidence: LexicalEvidence


class Measured(msgspec.Struct, frozen=True):
    """A set and its queries."""

    set: EvaluationSet
    queries: Sequence[Asked]


@contextlib.asynccontextmanager
async def serving(cache: Path) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the whole service in this process, on a database of its own."""
    with tempfile.TemporaryDirectory(prefix="braid-bench-", ignore_cleanup_errors=True) as folder:
        postgres = EmbeddedPostgres(Path(folder), settings={"fsync": "off"})
        dsn = await asyncio.to_thread(postgres.start)
        try:
            await asyncio.to_thread(asyncio.run, migrate(dsn))
            settings = Settings(database_url=SecretStr(dsn), root_api_key=SecretStr(KEY))

            def embedders(*_given: object) -> Embedders:
                return Embedders(EmbedderOptions(), lambda *of: _cached(cache, *of))

            app = create_app_for("all", settings, embedders)
            async with (
                app.lifespan(),
                httpx.AsyncClient(
                    transport=httpx.ASGITransport(app),
                    base_url="http://braid",
                    headers={"X-API-Key": KEY},
                    timeout=WAIT_SECONDS,
                ) as client,
            ):
                yield client
        finally:
            await asyncio.to_thread(postgres.stop)


def _cached(
    cache: Path, provider: str, model: str, dim: int | None, options: EmbedderOptions | None
) -> CachedEmbedder:
    made = create_embedder(provider, model, dim, options)
    return CachedEmbedder(made, cache / "embeddings.sqlite")


async def index(client: httpx.AsyncClient, given: EvaluationSet, provider: str) -> None:
    collection = {
        "name": given.name,
        "language": given.language,
        "embedding": {"provider": provider},
    }
    (await client.post("/v1/collections", json=collection)).raise_for_status()
    path = f"/v1/collections/{given.name}"
    documents = [
        {"doc_id": one.id, "text": one.text, **({"title": one.title} if one.title else {})}
        for one in given.documents
    ]
    jobs = []
    for start in range(0, len(documents), BATCH):
        body = {"documents": documents[start : start + BATCH]}
        jobs.append((await posted(client, f"{path}/documents", body))["job_id"])
    for job in jobs:
        await finished(client, f"{path}/jobs/{job}")


async def posted(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request that is sent again while the service is too busy for it."""
    while True:
        answer = await client.post(path, json=body)
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            found: dict[str, Any] = answer.raise_for_status().json()
            return found
        await asyncio.sleep(float(answer.headers.get("Retry-After", 1)))


async def finished(client: httpx.AsyncClient, path: str) -> None:
    """Wait for a job that must succeed."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            job = (await client.get(path)).json()
            if job["status"] not in {"pending", "processing"}:
                assert job["status"] == "done", job
                assert not job["counts"]["failed"], job
                return
            await asyncio.sleep(0.2)


async def ask(client: httpx.AsyncClient, given: EvaluationSet, query: str) -> Asked:
    """Both legs chunk by chunk, and the answer of the default fusion."""
    body = {"query": {"text": given.queries[query]}, "timeout_ms": 60_000}
    chunks = {**body, "k": DEEP, "max_chunks_per_document": 20}
    lexical = await _search(client, given, {**chunks, "mode": "text"})
    dense = await _search(client, given, {**chunks, "mode": "vector"})
    grouped = {**body, "mode": "hybrid", "k": 20, "group_by": "document", "explain": True}
    hybrid = await _search(client, given, grouped)
    return Asked(
        query,
        {"dense": _candidates(dense), "lexical": _candidates(lexical)},
        {
            "text": _documents(lexical["hits"]),
            "vector": _documents(dense["hits"]),
            "hybrid": _documents(hybrid["documents"]),
        },
        LexicalEvidence(**hybrid["explain"]["fusion"]["evidence"]),
    )


async def _search(
    client: httpx.AsyncClient, given: EvaluationSet, body: dict[str, Any]
) -> dict[str, Any]:
    found = await posted(client, f"/v1/collections/{given.name}/search", body)
    assert not found["degraded"], found["degraded"]
    return found


def _candidates(answer: Mapping[str, Any]) -> Ranked:
    return [
        Candidate(hash(hit["id"]), hash(hit["doc_id"]), "chunk", hit["doc_id"], 0, hit["score"])
        for hit in answer["hits"]
    ]


def _documents(found: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(one["doc_id"] for one in found))


async def measure(client: httpx.AsyncClient, given: EvaluationSet, provider: str) -> Measured:
    await index(client, given, provider)
    limit = asyncio.Semaphore(AT_ONCE)

    async def bounded(query: str) -> Asked:
        async with limit:
            return await ask(client, given, query)

    return Measured(given, await asyncio.gather(*map(bounded, given.queries)))


def summary(measured: Measured, *, fitted: bool | None = None) -> dict[str, dict[str, float]]:
    """Mean figures by mode, of one half of the queries or of all."""
    told: dict[str, dict[str, float]] = {}
    for mode in MODES:
        each = [
            figures(asked.documents[mode], measured.set.grades[asked.id])
            for asked in measured.queries
            if fitted in {None, is_fitted_on(asked.id)}
        ]
        told[mode] = {name: statistics.fmean(one[name] for one in each) for name in each[0]}
    return told


def gain(told: Mapping[str, Mapping[str, float]]) -> float:
    """nDCG@10 of hybrid beyond that of the better leg."""
    return told["hybrid"]["ndcg@10"] - max(told["text"]["ndcg@10"], told["vector"]["ndcg@10"])


def show(measured: Measured) -> dict[str, Any]:
    both, reported = summary(measured), summary(measured, fitted=False)
    name, language = measured.set.name, measured.set.language
    print(f"\n{name} ({language}): {len(measured.set.documents)} documents,"
          f" {len(measured.queries)} queries")  # fmt: skip
    for mode in MODES:
        row = "  ".join(f"{figure} {value:.4f}" for figure, value in both[mode].items())
        print(f"  {mode:<7} {row}   reported half {reported[mode]['ndcg@10']:.4f}")
    print(f"  gain over the better leg {gain(both):+.4f}, reported half {gain(reported):+.4f}")
    rules = {rule: gain_by(measured, rule) for rule in RULES}
    compared = "  ".join(f"{rule} {value:+.4f}" for rule, value in rules.items())
    print(f"  rules on the fitted half: {compared}", flush=True)
    return {"set": name, "language": language, "all": both, "reported": reported, "rules": rules}


def gain_by(measured: Measured, rule: str) -> float:
    """Gain of a rule on the half that choices are made on, computed from the legs."""
    fused, legs = [], {"text": [], "vector": []}
    for asked in measured.queries:
        if is_fitted_on(asked.id):
            grades = measured.set.grades[asked.id]
            fused.append(ndcg(fused_documents(asked, rule), grades))
            for mode, each in legs.items():
                each.append(ndcg(asked.documents[mode], grades))
    return statistics.fmean(fused) - max(statistics.fmean(each) for each in legs.values())


def fused_documents(asked: Asked, rule: str) -> Sequence[str]:
    legs = {leg: ranked[:POOL] for leg, ranked in asked.legs.items()}
    fused = fuse(legs, RULES[rule](asked.evidence))
    return list(dict.fromkeys(one.candidate.chunk_id for one in fused))


def _weighing(
    uncovered: float, covered: float, lowest: float | None
) -> Callable[[LexicalEvidence], FusionRule]:
    """Automatic weights with other constants."""

    def choose(evidence: LexicalEvidence) -> FusionRule:
        words = uncovered + (covered - uncovered) * evidence.coverage
        dense = words * (1 - evidence.identifiers * evidence.coverage**2)
        return FusionRule("dbsf", Weights(dense, 1 - dense), 60, "compared", lowest=lowest)

    return choose


def _fixed(method: FusionMethod, dense: float, rrf_k: int = 60) -> Callable[..., FusionRule]:
    return lambda _evidence: FusionRule(method, Weights(dense, 1 - dense), rrf_k, "compared")


RULES = {
    "rrf 60 0.7": _fixed("rrf", 0.7),
    "rrf 60 0.5": _fixed("rrf", 0.5),
    "rrf 5 0.5": _fixed("rrf", 0.5, 5),
    "rrf 5 0.3": _fixed("rrf", 0.3, 5),
    "dbsf 0.3": _fixed("dbsf", 0.3),
    "dbsf 0.4": _fixed("dbsf", 0.4),
    "dbsf 0.5": _fixed("dbsf", 0.5),
    **{
        f"auto {uncovered}-{covered} {lowest}": _weighing(uncovered, covered, lowest)
        for uncovered, covered in ((0.5, 0.4), (0.6, 0.4), (0.7, 0.4))
        for lowest in (None, 0.0, 0.06, 0.2)
    },
}
"""Rules to compare: method, k of rrf, dense weight; `auto`: by the words found; the lowest."""


async def main(given: argparse.Namespace) -> None:
    languages = dict(pair.split("=", 1) for pair in given.language)
    folders = sorted(path.parent for path in given.sets.glob("*/corpus.jsonl"))
    wanted = [path for path in folders if not given.only or path.name in given.only]
    configure_telemetry(Settings(log_level="error"))
    given.cache.mkdir(parents=True, exist_ok=True)
    told = []
    for folder in wanted:
        async with serving(given.cache) as client:
            measured = await measure(
                client, read_set(folder, languages.get(folder.name)), given.provider
            )
        told.append(show(measured))
        if given.json:
            given.json.write_text(json.dumps(told, indent=1))
    show_together(told)


def show_together(told: Sequence[Mapping[str, Any]]) -> None:
    """Means over the sets."""
    gains = {half: [gain(one[half]) for one in told] for half in ("all", "reported")}
    print("\nover the sets, gain over the better leg: mean, least")
    for half, each in gains.items():
        print(f"  hybrid, {half} queries {statistics.fmean(each):+.4f} {min(each):+.4f}")
    for rule in RULES:
        each = [one["rules"][rule] for one in told]
        print(f"  {rule:<14} fitted half {statistics.fmean(each):+.4f} {min(each):+.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    sets = os.environ.get("BRAID_EVALUATION_SETS")
    parser.add_argument("sets", type=Path, nargs="?" if sets else None, default=sets)
    parser.add_argument("--only", nargs="*", help="names of sets")
    parser.add_argument("--language", action="append", default=[], metavar="SET=CONFIGURATION")
    parser.add_argument("--provider", default="local")
    parser.add_argument("--cache", type=Path, default=Path(tempfile.gettempdir()) / "braid-quality")
    parser.add_argument("--json", type=Path, help="file for the figures")
    asyncio.run(main(parser.parse_args()))
