"""Documents as they are written: taken in, their metadata changed, deleted."""

from typing import Annotated, cast

import msgspec
from litestar import Response, delete, patch, post
from litestar.params import JSONBody, QueryParameter

from service.api.access import CurrentCollection, requires
from service.api.problems import EVERYWHERE, WITH_BODY
from service.api.records import DocId
from service.api.services import CurrentServices, Services
from service.api.strict import KEEPS_SURROGATES
from service.indexing import editing
from service.indexing.bounds import MAX_DOCUMENTS
from service.indexing.intake import submit_documents
from service.indexing.waiting import wait_for_job
from service.models import Collection, IncomingDocument, IngestMode, Metadata

WAIT_SECONDS = 30.0

Wait = Annotated[
    bool, QueryParameter(description=f"whether to wait for the job, {WAIT_SECONDS:g} s at most")
]


class DocumentsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Documents to index; without a `mode` client chunks are upserted, all else replaces."""

    documents: Annotated[
        list[IncomingDocument], msgspec.Meta(min_length=1, max_length=MAX_DOCUMENTS)
    ]
    mode: IngestMode | None = None


class Accepted(msgspec.Struct, frozen=True):
    """The documents are stored and will be indexed."""

    job_id: int


class MetadataPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A merge patch (RFC 7396): null removes a key, objects merge, all else replaces."""

    metadata: Metadata
    apply_to_chunks: bool = True


class Patched(msgspec.Struct, frozen=True):
    """How many records have changed metadata."""

    patched_records: int


class Deleted(msgspec.Struct, frozen=True):
    """How many records are gone."""

    deleted_records: int


@post(
    "/collections/{name:str}/documents",
    guards=[requires("index")],
    responses=WITH_BODY,
    status_code=202,
    summary="Index documents",
    tags=["documents"],
    opt={KEEPS_SURROGATES: True},
)
async def post_documents(
    data: JSONBody[DocumentsRequest],
    services: CurrentServices,
    collection: CurrentCollection,
    wait: Wait = False,
) -> Response[Accepted]:
    """Take documents in: they and their job are stored before the answer.

    With `wait=true` the answer comes when the job has ended, or after 30 s, and is the job.
    """
    job_id = await submit_documents(services.database, collection, data.documents, data.mode)
    return await accepted(services, collection, job_id, wait=wait)


async def accepted(
    services: Services, collection: Collection, job_id: int, *, wait: bool
) -> Response[Accepted]:
    """The answer to documents that were taken in; with `wait` the job when it has ended."""
    if wait:
        job = await wait_for_job(services.database, collection, job_id, seconds=WAIT_SECONDS)
        # A job has the fields of `Accepted` and more; the framework describes one type only.
        return cast("Response[Accepted]", Response(job))
    return Response(Accepted(job_id))


@patch(
    "/collections/{name:str}/documents/{doc_id:path}",
    guards=[requires("index")],
    responses=WITH_BODY,
    summary="Change a document's metadata",
    tags=["documents"],
    opt={KEEPS_SURROGATES: True},
)
async def patch_document(
    doc_id: DocId,
    data: JSONBody[MetadataPatch],
    services: CurrentServices,
    collection: CurrentCollection,
) -> Patched:
    """Merge metadata into a document and its chunks; nothing is embedded again."""
    patched = await editing.patch_metadata(
        services.database,
        collection,
        doc_id,
        data.metadata,
        apply_to_chunks=data.apply_to_chunks,
    )
    return Patched(patched)


@delete(
    "/collections/{name:str}/documents/{doc_id:path}",
    guards=[requires("index")],
    responses=EVERYWHERE,
    status_code=200,
    summary="Delete a document",
    tags=["documents"],
)
async def delete_document(
    doc_id: DocId, services: CurrentServices, collection: CurrentCollection
) -> Deleted:
    """Delete a document, its chunks and its summary, and what of it still waits for indexing."""
    return Deleted(await editing.delete_document(services.database, collection, doc_id))
