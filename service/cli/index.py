"""`braid index`: reads a file or folder, sends it in batches and waits until it is searchable."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from rich.progress import Progress, TaskID

from service.cli.batches import Batch, Intake
from service.cli.client import NOT_FOUND, AnswerError, Api, open_api
from service.cli.console import CommandError, complain, err
from service.cli.jobs import Failure, Job, collection_path, finished, post_documents
from service.cli.parser import Arguments
from service.cli.reading import read_documents
from service.cli.report import IndexReport, progress_bar, show_report

IN_FLIGHT = 4
WATCH_SECONDS = 1.0
PAUSE_SECONDS = 1.0
ATTEMPTS = 8
REFUSED = (400, 409, 413)
BUSY = (429, 503)


def run(arguments: Arguments) -> int:
    """Index a path; status 1 if anything that should be searchable is not."""
    if not arguments.path.exists():
        raise CommandError(f"{arguments.path} does not exist")
    return asyncio.run(_run(arguments.path, arguments.collection, arguments.language))


async def _run(path: Path, collection: str, language: str | None) -> int:
    async with open_api() as api:
        await ensure_collection(api, collection, language)
        report = await index_path(api, collection, path)
    show_report(report, collection)
    if not report.indexed and not report.failures:
        complain(f"found no documents in {path}")
    return 0 if report.indexed and not report.failures else 1


async def ensure_collection(api: Api, collection: str, language: str | None) -> None:
    """Make the collection unless it exists; an existing one keeps its language."""
    try:
        found = await api.get(collection_path(collection))
    except AnswerError as error:
        if error.status != NOT_FOUND:
            raise
        body = {"name": collection} | ({"language": language} if language else {})
        await api.post("/v1/collections", body)
        return
    if language and found["language"] != language:
        raise CommandError(
            f"collection {collection} exists with language {found['language']}: "
            "choose another --collection or leave --language out"
        )


async def index_path(api: Api, collection: str, path: Path) -> IndexReport:
    """Index all that is readable below `path` and wait until it is searchable."""
    started = time.monotonic()
    with err.status("reading"):
        total = sum(len(batch) for batch in Intake(read_documents(path)))
    intake = Intake(read_documents(path))
    with progress_bar() as progress:
        sender = _Sender(api, collection, progress, progress.add_task("", total=total, chunks=0))
        await sender.run(iter(intake))
    failures = [Failure(one.name, one.reason) for one in intake.unread if one.failed]
    return IndexReport(
        indexed=sender.indexed,
        chunks=sender.chunks,
        seconds=time.monotonic() - started,
        failures=[*failures, *sender.failures],
        skipped=[one for one in intake.unread if not one.failed],
        warnings=sender.warnings,
    )


class _Sender:
    """Keeps a few batches on their way and notes what becomes of them."""

    def __init__(self, api: Api, collection: str, progress: Progress, task: TaskID) -> None:
        self._api = api
        self._collection = collection
        self._progress = progress
        self._task = task
        self.indexed = 0
        self.chunks = 0
        self.failures: list[Failure] = []
        self.warnings: list[str] = []

    async def run(self, batches: Iterator[Batch]) -> None:
        watch = asyncio.ensure_future(self._watch())
        try:
            await asyncio.gather(*(self._send_all(batches) for _ in range(IN_FLIGHT)))
        finally:
            watch.cancel()
        await self._count_chunks()

    async def _send_all(self, batches: Iterator[Batch]) -> None:
        # The next batch is read when the one before is searchable: memory stays bounded.
        for batch in batches:
            await self._send(batch)

    async def _send(self, batch: Batch) -> None:
        """Index a batch; one that is refused is halved until the document at fault is alone."""
        try:
            job_id = await self._accepted(batch)
        except AnswerError as error:
            if error.status not in REFUSED:
                raise
            if len(batch) == 1:
                self.failures.append(Failure(batch[0].doc_id, str(error)))
                self._progress.advance(self._task)
                return
            middle = len(batch) // 2
            await self._send(batch[:middle])
            await self._send(batch[middle:])
        else:
            await self._follow(job_id, batch)

    async def _accepted(self, batch: Batch) -> int:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await post_documents(self._api, self._collection, batch)
            except AnswerError as error:
                if error.status not in BUSY or attempt == ATTEMPTS:
                    raise
            await asyncio.sleep(PAUSE_SECONDS * attempt)
        raise AssertionError

    async def _follow(self, job_id: int, batch: Batch) -> None:
        seen = 0

        def advance(job: Job) -> None:
            nonlocal seen
            done = job.counts.indexed + job.counts.failed
            self._progress.advance(self._task, done - seen)
            seen = done

        job = await finished(self._api, self._collection, job_id, advance)
        self.indexed += job.counts.indexed
        self.failures += job.failures
        self.warnings += job.warnings
        if job.status == "cancelled":
            left = len(batch) - job.counts.indexed - job.counts.failed
            reason = "given up: the job was cancelled"
            self.failures += [Failure(f"a document of job {job_id}", reason)] * left
        if unnamed := job.counts.failed - len(job.failures):
            reason = job.error or "failed without a reason"
            self.failures += [Failure(f"a document of job {job_id}", reason)] * unnamed

    async def _watch(self) -> None:
        while True:
            await self._count_chunks()
            await asyncio.sleep(WATCH_SECONDS)

    async def _count_chunks(self) -> None:
        self.chunks = (await self._api.get(collection_path(self._collection)))["chunks"]
        self._progress.update(self._task, chunks=self.chunks)
