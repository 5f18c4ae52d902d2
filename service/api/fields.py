"""Fields that several requests share; their bounds are those of the schema's CHECKs."""

import contextlib
from collections.abc import Iterator
from typing import Annotated

from litestar.params import PathParameter, QueryParameter
from msgspec import Meta

from service.errors import InvalidRequestError, ProviderError
from service.providers.outbound import UnknownProviderError

MAX_ID = 2**53 - 1
"""Largest integer that every JSON reader keeps exact."""

# Python's `$` also matches before a last newline, which the schema's CHECK does not.
END = r"$(?!\n)"

NAME_PATTERN = r"^[a-zA-Z0-9_-]{1,64}" + END
NAME_WORDS = "must be 1 to 64 of a-z A-Z 0-9 _ -"
Name = Annotated[str, Meta(pattern=NAME_PATTERN)]
PathName = Annotated[str, PathParameter(pattern=NAME_PATTERN, description="name of the collection")]
PRINTABLE = r"^[^\x00-\x1f\x7f]+" + END
Label = Annotated[str, Meta(min_length=1, max_length=128, pattern=PRINTABLE)]
ModelName = Annotated[str, Meta(min_length=1, max_length=256, pattern=PRINTABLE)]
GIVEN_KEY_PATTERN = r"^[!-~]{16,128}" + END
GivenKey = Annotated[str, Meta(pattern=GIVEN_KEY_PATTERN)]
SECRET_PATTERN = r"^[!-~]{1,4096}" + END
Secret = Annotated[str, Meta(pattern=SECRET_PATTERN)]
Share = Annotated[float, Meta(ge=0, le=1)]
Count = Annotated[int, Meta(ge=1, le=1000)]

Limit = Annotated[int, QueryParameter(ge=1, le=1000, description="rows to return at most")]
MAX_OFFSET = 1_000_000_000
Offset = Annotated[int, QueryParameter(ge=0, le=MAX_OFFSET, description="rows to skip")]
RowId = Annotated[int, PathParameter(ge=1, le=MAX_ID)]

_IN_WORDS = {
    f"expected `str` matching regex {pattern!r}": words
    for pattern, words in {
        NAME_PATTERN: NAME_WORDS,
        PRINTABLE: "must hold no control characters",
        SECRET_PATTERN: "must be 1 to 4096 printable ASCII characters without spaces",
        GIVEN_KEY_PATTERN: "must be 16 to 128 printable ASCII characters without spaces",
    }.items()
}


@contextlib.contextmanager
def provider_at(pointer: str, allowed: str) -> Iterator[None]:
    """Say where a provider is named that does not exist, or is no good for this."""
    try:
        yield
    except UnknownProviderError as error:
        raise InvalidRequestError.at(pointer, f"must be {allowed}") from error
    except ProviderError as error:
        raise InvalidRequestError.at(pointer, str(error)) from error


def plain_reason(message: str) -> str:
    """What a decoder says is wrong, in words instead of a pattern."""
    reason = message[:1].lower() + message[1:]
    return _IN_WORDS.get(reason, reason)
