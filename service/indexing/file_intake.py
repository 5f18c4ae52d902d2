"""Taking files in: each becomes a document whose text is made when it is indexed."""

import asyncio
from collections.abc import Sequence

import msgspec

from service.db.pool import Database
from service.errors import InvalidRequestError, Violation
from service.indexing.bounds import MAX_FILES, Violations, check_labels, first_violations
from service.indexing.cleaning import Cleaner
from service.indexing.intake import Packed, check_languages, commit
from service.indexing.payload import PendingDocument, PendingFile, pack
from service.models import Collection, Metadata


class IncomingFile(msgspec.Struct, frozen=True):
    """A file and what its document is filed under."""

    doc_id: str
    name: str
    content: bytes
    title: str | None
    source: str
    language: str | None
    metadata: Metadata | None


async def submit_files(
    database: Database, collection: Collection, files: Sequence[IncomingFile]
) -> int:
    """Accept files for indexing and return the job's id; nothing of them is lost from then on.

    Each replaces the document of its id. Raises `InvalidRequestError` and `NotFoundError`.
    """
    if not 1 <= len(files) <= MAX_FILES:
        raise InvalidRequestError.at("/file", f"a request has 1 to {MAX_FILES} files")
    if found := first_violations(_violations(files)):
        raise InvalidRequestError.of(found)
    await check_languages(database, {"/language": files[0].language})
    packed = await asyncio.to_thread(lambda: [_pack(file) for file in files])
    return await commit(database, collection, packed)


def _violations(files: Sequence[IncomingFile]) -> Violations:
    seen: set[str] = set()
    for at, file in enumerate(files):
        yield from check_labels(file, f"/file/{at}")
        if file.doc_id in seen:
            yield Violation(f"/file/{at}", "the same name twice in one request")
        seen.add(file.doc_id)


def _pack(file: IncomingFile) -> Packed:
    cleaner = Cleaner()
    pending = PendingDocument(
        title=cleaner.text(file.title),
        source=cleaner.text(file.source),
        metadata=cleaner.value(file.metadata),
        language=file.language,
        file=PendingFile(file.name, file.content),
    )
    return Packed(file.doc_id, "replace", pack(pending), cleaner.changed)
