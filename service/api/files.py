"""Files as they are sent: taken in whole, converted to text when they are indexed."""

import asyncio
from typing import Annotated

import msgspec
from litestar import Response, post
from litestar.datastructures import UploadFile
from litestar.enums import RequestEncodingType
from litestar.params import Body

from service.api.access import CurrentCollection, requires
from service.api.documents import Accepted, Wait, accepted
from service.api.problems import (
    WITH_BODY,
    AnyRequest,
    Problem,
    answer_known,
    answer_unexpected,
)
from service.api.services import CurrentServices
from service.errors import InvalidRequestError
from service.indexing.bounds import MAX_FILE_BYTES
from service.indexing.file_intake import IncomingFile, submit_files
from service.models import Metadata

FORM_BYTES = 1_000_000
"""For what a form holds beside its files."""
Sent = Annotated[UploadFile, msgspec.Meta(extra_json_schema={"type": "string", "format": "binary"})]
ALONE = "names one document: send it with one file"


class FilesForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Files to index; what a field says goes for each of them."""

    file: list[Sent]
    doc_id: str | None = None
    """Of one file; its name otherwise."""
    title: str | None = None
    """Of one file; otherwise the one it has, its first heading or its name."""
    source: str | None = None
    """Of one file; its name otherwise."""
    language: str | None = None
    metadata: str | None = None
    """A JSON object."""


def _answer_undecodable(request: AnyRequest, error: Exception) -> Response[Problem]:
    """Answer a form whose text is not in the character set that its part names."""
    if type(error) not in (UnicodeDecodeError, LookupError):  # a KeyError is a bug
        return answer_unexpected(request, error)
    words = "a field of the form is not text in the charset of its part (UTF-8 unless it says so)"
    return answer_known(request, InvalidRequestError(words))


@post(
    "/collections/{name:str}/files",
    exception_handlers={
        UnicodeDecodeError: _answer_undecodable,
        LookupError: _answer_undecodable,
    },
    guards=[requires("index")],
    responses=WITH_BODY,
    status_code=202,
    request_max_body_size=MAX_FILE_BYTES + FORM_BYTES,
    summary="Index files",
    tags=["documents"],
)
async def post_files(
    data: Annotated[FilesForm, Body(media_type=RequestEncodingType.MULTI_PART)],
    services: CurrentServices,
    collection: CurrentCollection,
    wait: Wait = False,
) -> Response[Accepted]:
    """Take files in (Markdown, HTML, PDF, Word, plain text, source code), each as one document.

    They and their job are stored before the answer; text is made of them by the worker, and a file
    that gives none fails by name. With `wait=true` the answer comes when the job has ended, or
    after 30 s, and is the job.
    """
    files = await _incoming(data)
    job_id = await submit_files(services.database, collection, files)
    return await accepted(services, collection, job_id, wait=wait)


async def _incoming(form: FilesForm) -> list[IncomingFile]:
    if len(form.file) > 1:
        for field in ("doc_id", "title", "source"):
            if getattr(form, field) is not None:
                raise InvalidRequestError.at(f"/{field}", ALONE)
    metadata = None if form.metadata is None else _metadata(form.metadata)
    files = []
    for sent in form.file:
        name = _relative_name(sent.filename)
        files.append(
            IncomingFile(
                doc_id=form.doc_id or name,
                name=name,
                content=await sent.read(),
                title=form.title,
                source=form.source or name,
                language=form.language,
                metadata=metadata,
            )
        )
        await asyncio.sleep(0)  # other requests are served between large files
    return files


def _relative_name(name: str) -> str:
    """The path as a browser or client sends it, without what leads out of a folder."""
    return name.replace("\\", "/").lstrip("/")


def _metadata(given: str) -> Metadata:
    try:
        return msgspec.json.decode(given, type=Metadata)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequestError.at("/metadata", "must be a JSON object") from error
