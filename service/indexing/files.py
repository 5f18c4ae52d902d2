"""Files that wait to be indexed: each is converted to text by a process of its own."""

import asyncio
import os
import signal
import sys

import msgspec

from service.indexing.conversion import Converted, Limits
from service.indexing.payload import PendingDocument, PendingFile
from service.indexing.planning import UnfitDocumentError
from service.text import clean

GRACE_SECONDS = 15.0
"""Beyond its processor time, for a machine that is busy with other things."""
TITLE_CHARACTERS = 2_048


async def as_document(document: PendingDocument, limits: Limits) -> PendingDocument:
    """The document with the text of its file; raises `UnfitDocumentError`."""
    if document.file is None:
        return document
    found = await convert_file(document.file, limits)
    title = document.title or found.title or document.file.name
    return msgspec.structs.replace(
        document, text=found.text, title=clean(title[:TITLE_CHARACTERS])[0], file=None
    )


async def convert_file(file: PendingFile, limits: Limits) -> Converted:
    """The text of a file; raises `UnfitDocumentError` that says why there is none."""
    arguments = [sys.executable, "-m", "service.indexing.converter", file.name]
    process = await asyncio.create_subprocess_exec(
        *arguments,
        msgspec.json.encode(limits).decode(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        # Nothing of the service's environment: no secret can get into a file's text.
        env={"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limits.seconds + GRACE_SECONDS):
            answer, _ = await process.communicate(file.content)
    except TimeoutError as error:
        raise UnfitDocumentError(_too_slow(file, limits)) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise UnfitDocumentError(_ended(file, limits, process.returncode or 0))
    found = await asyncio.to_thread(_read, answer)
    if found.refused is not None:
        raise UnfitDocumentError(f"{file.name}: {found.refused}")
    return found


def _read(answer: bytes) -> Converted:
    """The answer of a conversion, without what cannot be stored."""
    found = msgspec.json.decode(answer, type=Converted)
    return msgspec.structs.replace(found, text=clean(found.text)[0])


def _ended(file: PendingFile, limits: Limits, status: int) -> str:
    """Why a conversion ended without an answer."""
    if status in (-signal.SIGXCPU, -signal.SIGKILL):
        return _too_slow(file, limits)
    if status > 0:  # out of memory where no answer could be made of it
        return f"{file.name}: can't be converted within {limits.memory_mb} MB of memory"
    return f"{file.name}: is damaged, or takes more than {limits.memory_mb} MB of memory"


def _too_slow(file: PendingFile, limits: Limits) -> str:
    return f"{file.name}: takes more than {limits.seconds} s to convert"
