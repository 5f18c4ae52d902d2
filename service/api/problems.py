"""Every error as `application/problem+json` (RFC 9457)."""

import re
import traceback
from collections.abc import Mapping
from typing import Any, cast

import msgspec
from litestar import MediaType, Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException, ValidationException
from litestar.openapi.datastructures import ResponseSpec
from litestar.types import ExceptionHandlersMap

from service.api.fields import plain_reason
from service.errors import (
    BraidError,
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    OverloadedError,
    ReindexRequiredError,
    TooLargeError,
    UnauthorizedError,
    UnavailableError,
    Violation,
)
from service.telemetry import log

PROBLEM_JSON = "application/problem+json"
UNAVAILABLE_RETRY_AFTER = "1"
TYPE_PREFIX = "urn:braid:problem:"
FIELD_OF_A_FORM = re.compile(r"(missing required|contains unknown) field `(.*)`", re.DOTALL)
MAX_NAME_CHARACTERS = 200
PLACE_IN_A_LIST = re.compile(r"\[(\d+)\]")
IN_WORDS = {
    "Request Entity Too Large": "the form has more than 1000 parts, or one with a header of more"
    " than 4096 bytes or more than 8 headers",
    "Invalid multipart/form-data": "the body is no complete multipart/form-data with its boundary",
    "Unsupported type: <class 'str'>": "must be a file: its part needs a filename",
    "Expected `str | null`, got `UploadFile`": "must be text: its part has no filename",
    "Expected `str | null`, got `array`": "is there more than once",
}
"""What the framework says of forms, in words that tell what to do."""

Problems = Mapping[int, ResponseSpec]
AnyRequest = Request[Any, Any, State]


class Problem(msgspec.Struct, frozen=True):
    """What went wrong; `errors` names each bad field by its JSON pointer (RFC 6901).

    `plan` is what a re-index that the request needs would do.
    """

    type: str
    title: str
    status: int
    detail: str
    errors: tuple[Violation, ...] | msgspec.UnsetType = msgspec.UNSET
    plan: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


def documented(*classes: type[BraidError]) -> Problems:
    """The errors of a handler, as its OpenAPI responses."""
    return {
        error.status: ResponseSpec(
            data_container=Problem,
            description=error.title,
            media_type=cast(MediaType, PROBLEM_JSON),
            generate_examples=False,
        )
        for error in classes
    }


EVERYWHERE = documented(
    InvalidRequestError,
    UnauthorizedError,
    ForbiddenError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)
WITH_BODY = {**EVERYWHERE, **documented(TooLargeError)}
ACTING = {**EVERYWHERE, **documented(ConflictError)}
CREATING = {**WITH_BODY, **documented(ConflictError)}
SEARCHING = WITH_BODY


def _answer(
    error: BraidError, *, status: int | None = None, headers: dict[str, str] | None = None
) -> Response[Problem]:
    status = status or error.status
    headers = headers or {}
    if isinstance(error, UnavailableError):
        headers["Retry-After"] = UNAVAILABLE_RETRY_AFTER
    problem = Problem(
        type=TYPE_PREFIX + error.type,
        title=error.title,
        status=status,
        detail=error.detail,
        errors=error.errors or msgspec.UNSET,
        plan=dict(error.plan) if isinstance(error, ReindexRequiredError) else msgspec.UNSET,
    )
    return Response(problem, status_code=status, media_type=PROBLEM_JSON, headers=headers)


def answer_known(_request: AnyRequest, error: BraidError) -> Response[Problem]:
    """Answer one of our own errors."""
    headers = {}
    if isinstance(error, UnauthorizedError):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, OverloadedError):
        headers["Retry-After"] = str(error.seconds)
    return _answer(error, headers=headers)


def answer_late(_request: AnyRequest, _error: TimeoutError) -> Response[Problem]:
    """Answer a request that took longer than any may."""
    return _answer(UnavailableError("the request took too long"))


def answer_framework(request: AnyRequest, error: HTTPException) -> Response[Problem]:
    """Answer an error that the framework found: no route, wrong method, bad parameter."""
    if isinstance(error, ValidationException):
        return _answer(_bad_parameters(error))
    if error.status_code == TooLargeError.status:
        most = request.route_handler.resolve_request_max_body_size() or 0
        return _answer(TooLargeError(f"the body is larger than {most // 1_000_000} MB"))
    if error.status_code == NotFoundError.status:
        return _answer(NotFoundError("no such route"))
    if error.status_code >= BraidError.status:
        return answer_unexpected(request, error)
    refused = InvalidRequestError(IN_WORDS.get(error.detail, error.detail.lower()))
    return _answer(refused, status=error.status_code, headers=dict(error.headers or {}))


def answer_unexpected(request: AnyRequest, error: Exception) -> Response[Problem]:
    """Log a bug once, tell nothing of it."""
    log_bug("unhandled exception", error, route=request.scope.get("path_template", ""))
    return _answer(BraidError("an unexpected error; it has been logged"))


def log_bug(event: str, error: Exception, **facts: str) -> None:
    """Log an exception by its class and frames: a message or a variable may hold text or a key."""
    frames = [
        f"{frame.filename}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    log.error(
        event,
        error=f"{type(error).__module__}.{type(error).__qualname__}",
        cause=type(error.__cause__).__qualname__ if error.__cause__ else None,
        frames=frames,
        **facts,
    )


def _bad_parameters(error: ValidationException) -> InvalidRequestError:
    found = error.extra if isinstance(error.extra, list) else []
    violations = tuple(_violation(one) for one in found)
    details = "; ".join(f"{one.pointer[1:] or 'the body'}: {one.detail}" for one in violations)
    return InvalidRequestError(details or "a required parameter is missing", errors=violations)


def _violation(found: Mapping[str, Any]) -> Violation:
    # A handler's parameter ends in an underscore where its name means something else in Python.
    name = str(found.get("key", "")).rstrip("_")
    if name == "data":
        # Of a form; a JSON body names its fields itself.
        if field := FIELD_OF_A_FORM.search(str(found["message"])):
            unknown = field[1] == "contains unknown"
            place = f"/{field[2][:MAX_NAME_CHARACTERS]}"
            return Violation(place, "unknown field" if unknown else "is required")
        return Violation("", "is required, as JSON")
    message = str(found["message"])
    place = PLACE_IN_A_LIST.sub(r"/\1", name)
    return Violation(f"/{place}", IN_WORDS.get(message) or plain_reason(message))


EXCEPTION_HANDLERS: ExceptionHandlersMap = {
    BraidError: answer_known,
    HTTPException: answer_framework,
    TimeoutError: answer_late,
    Exception: answer_unexpected,
}
