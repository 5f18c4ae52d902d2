"""An indexing run against a server that refuses, hesitates and fails some documents."""

import argparse
import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from service.cli import index
from service.cli.client import AnswerError, Api
from service.cli.console import CommandError
from service.cli.index import ensure_collection, index_path
from service.cli.jobs import Failure


class FakeServer(Api):
    """Takes every document but those of `bad` ids; those of `failing` ids fail in their job."""

    def __init__(self, *, bad: set[str] = frozenset(), failing: set[str] = frozenset()) -> None:  # type: ignore[assignment]
        self.bad, self.failing = bad, failing
        self.taken: list[str] = []
        self.jobs: list[list[str]] = []
        self.hesitations = 0
        self.collections: dict[str, dict[str, Any]] = {"c": {"language": "simple"}}

    async def call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        return msgspec.json.encode(self.answer(method, path, body and json.loads(body)))

    def answer(self, method: str, path: str, body: Any) -> Any:
        if method == "POST" and path == "/v1/collections":
            self.collections[body["name"]] = {"language": "simple", **body}
            return {}
        name, _, rest = path.removeprefix("/v1/collections/").partition("/")
        if name not in self.collections:
            raise AnswerError(404, "unknown collection")
        if rest == "documents":
            return {"job_id": self.take([one["doc_id"] for one in body["documents"]])}
        if rest.startswith("jobs/"):
            return self.job(self.jobs[int(rest.removeprefix("jobs/"))])
        return {**self.collections[name], "chunks": 2 * len(self.taken)}

    def take(self, ids: list[str]) -> int:
        if self.hesitations:
            self.hesitations -= 1
            raise AnswerError(503, "not now")
        if refused := self.bad.intersection(ids):
            raise AnswerError(400, f"{min(refused)} is bad")
        self.taken += [one for one in ids if one not in self.failing]
        self.jobs.append(ids)
        return len(self.jobs) - 1

    def job(self, ids: list[str]) -> dict[str, Any]:
        failed = [one for one in ids if one in self.failing]
        return {
            "status": "done",
            "counts": {
                "documents": len(ids),
                "indexed": len(ids) - len(failed),
                "failed": len(failed),
            },
            "failures": [{"doc_id": one, "reason": "nothing to index"} for one in failed],
            "warnings": [f"{one} was long" for one in ids if one == "long"],
        }


class CancellingServer(FakeServer):
    """Somebody else cancels every job when one document of it is indexed."""

    def job(self, ids: list[str]) -> dict[str, Any]:
        counts = {"documents": len(ids), "indexed": 1, "failed": 0}
        return {**super().job(ids), "status": "cancelled", "counts": counts}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.jsonl"
    ids = ["a", "b", "long", "d", "e", "f", "g"]
    path.write_text("".join(json.dumps({"id": one, "text": "t"}) + "\n" for one in ids) + "{\n")
    return path


async def test_refused_and_failed_documents_are_named_and_the_others_are_indexed(corpus):
    server = FakeServer(bad={"b"}, failing={"e"})
    report = await index_path(server, "c", corpus)
    assert sorted(server.taken) == ["a", "d", "f", "g", "long"]
    assert (report.indexed, report.chunks) == (5, 10)
    assert sorted(report.failures, key=lambda one: one.doc_id) == [
        Failure("b", "b is bad"),
        Failure("corpus.jsonl:8", "is not valid JSON"),
        Failure("e", "nothing to index"),
    ]
    assert report.warnings == ["long was long"]


async def test_documents_of_a_job_that_was_cancelled_count_as_failed(corpus):
    report = await index_path(CancellingServer(), "c", corpus)
    given_up = [one for one in report.failures if "cancelled" in one.reason]
    assert (report.indexed, len(given_up)) == (1, 6)


async def test_a_busy_server_is_asked_again(corpus, monkeypatch):
    monkeypatch.setattr(index, "PAUSE_SECONDS", 0)
    server = FakeServer()
    server.hesitations = 3
    assert (await index_path(server, "c", corpus)).indexed == 7


async def test_a_server_that_stays_busy_ends_the_run(corpus, monkeypatch):
    monkeypatch.setattr(index, "PAUSE_SECONDS", 0)
    server = FakeServer()
    server.hesitations = 1000
    with pytest.raises(AnswerError, match="not now"):
        await index_path(server, "c", corpus)


async def test_a_collection_is_made_once_with_the_language_asked_for():
    server = FakeServer()
    await ensure_collection(server, "new", "german")
    assert server.collections["new"]["language"] == "german"
    await ensure_collection(server, "new", "german")
    await ensure_collection(server, "new", None)
    with pytest.raises(CommandError, match="collection new exists with language german"):
        await ensure_collection(server, "new", "english")


def test_a_folder_without_documents_is_said_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(index, "open_api", FakeServer)
    monkeypatch.setattr(FakeServer, "__aexit__", lambda *_: asyncio.sleep(0))
    arguments = argparse.Namespace(path=tmp_path, collection="c", language=None)
    assert index.run(arguments) == 1
    assert f"braid: found no documents in {tmp_path}" in capsys.readouterr().err
