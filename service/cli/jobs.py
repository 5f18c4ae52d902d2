"""Sends documents and follows the jobs that index them."""

import asyncio
from collections.abc import Callable
from urllib.parse import quote

import msgspec

from service.cli.batches import Batch, request_body
from service.cli.client import Api
from service.models import JobStatus

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 1.0


class Counts(msgspec.Struct, frozen=True):
    """Documents of a job."""

    documents: int
    indexed: int
    failed: int


class Failure(msgspec.Struct, frozen=True):
    """Why one document was not indexed."""

    doc_id: str
    reason: str


class Job(msgspec.Struct, frozen=True):
    """What the command line reads of a job."""

    status: JobStatus
    counts: Counts
    error: str | None = None
    warnings: list[str] = []
    failures: list[Failure] = []

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen."""
        return self.status in ("done", "error", "cancelled")


class _Accepted(msgspec.Struct, frozen=True):
    job_id: int


def collection_path(collection: str) -> str:
    """The path of a collection in the API."""
    return f"/v1/collections/{quote(collection, safe='')}"


async def post_documents(api: Api, collection: str, batch: Batch) -> int:
    """Hand documents over, or one file; the job that indexes them."""
    path = collection_path(collection)
    if (file := batch[0].file) is not None:
        content = await asyncio.to_thread(file.read_bytes)
        fields = {"doc_id": batch[0].doc_id, "source": str(file)}
        answer = await api.upload(f"{path}/files", file.name, content, fields)
    else:
        answer = await api.call("POST", f"{path}/documents", request_body(batch))
    return msgspec.json.decode(answer, type=_Accepted).job_id


async def finished(
    api: Api, collection: str, job_id: int, progress: Callable[[Job], None] = lambda _: None
) -> Job:
    """The job when it has ended; `progress` sees every state on the way, also the last."""
    pause = FIRST_PAUSE
    while True:
        path = f"{collection_path(collection)}/jobs/{job_id}"
        job = msgspec.json.decode(await api.call("GET", path), type=Job)
        progress(job)
        if job.ended:
            return job
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)
