"""The sample corpus: a few documents in several languages to try a search on."""

from pathlib import Path

from service.cli.batches import Intake
from service.cli.client import CONFLICT, AnswerError, Api
from service.cli.console import CommandError
from service.cli.jobs import finished, post_documents
from service.cli.reading import read_documents

COLLECTION = "sample"
QUESTION = "how do I replace a key without downtime"


def sample_folder() -> Path:
    """Where the corpus is."""
    return Path(__file__).parent.parent / "sample"


async def load_sample(api: Api) -> int:
    """Fill the collection unless it exists; how many documents it was given."""
    try:
        await api.post("/v1/collections", {"name": COLLECTION})
    except AnswerError as error:
        if error.status == CONFLICT:
            return 0
        raise
    documents = 0
    for batch in Intake(read_documents(sample_folder())):
        job = await finished(api, COLLECTION, await post_documents(api, COLLECTION, batch))
        if job.counts.failed:
            raise CommandError(job.error or f"{job.counts.failed} documents failed")
        documents += job.counts.indexed
    return documents
