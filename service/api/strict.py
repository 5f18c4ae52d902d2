"""Strict input: nothing is converted, nothing unknown is passed over, errors name their place."""

import asyncio
import functools
import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from litestar import Request
from litestar.datastructures import State
from litestar.exceptions import InternalServerException

from service.api.fields import plain_reason
from service.errors import BraidError, InvalidRequestError, Violation

MAX_BODY_BYTES = 10_000_000
BODY_SECONDS = 30
KEEPS_SURROGATES = "keeps_surrogates"
"""Handler option: lone surrogates in the body are left for the handler to treat."""

_JSON_TYPE = re.compile(r"(application|text)/([\w.-]+\+)?json|[\w.-]+/\*|\*/\*", re.IGNORECASE)
_LONE_SURROGATE = re.compile(
    rb"\\u[dD][89aAbB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|(?<!\\u[dD][89aAbB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_STEP = re.compile(r"\.([A-Za-z_]\w*)|\[(\d+)\]|\[\.\.\.\]")
_NAMED = re.compile(r"object (missing required|contains unknown) field `(.*)`", re.DOTALL)
_INTEGER = re.compile(r"-?[0-9]+")
MAX_NAME_CHARACTERS = 200


class StrictRequest(Request[Any, Any, State]):
    """Decodes the body straight into the handler's `data` type."""

    async def json(self) -> Any:
        """The body as the type that the handler declares; raises `InvalidRequestError`."""
        self._check_content_type()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await self.body()
        except TimeoutError as error:
            raise InvalidRequestError(f"the body took longer than {BODY_SECONDS} s") from error
        handler = self.route_handler
        wanted = handler.parsed_fn_signature.parameters["data"].annotation
        return decode_body(body, wanted, keep_surrogates=bool(handler.opt.get(KEEPS_SURROGATES)))

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The body as it comes in; raises `InvalidRequestError` when its client leaves."""
        try:
            async for part in super().stream():
                yield part
        except InternalServerException as error:
            raise InvalidRequestError("the client left before the body was complete") from error

    def _check_content_type(self) -> None:
        given = self.headers.get("content-type", "").partition(";")[0].strip()
        if given and not _JSON_TYPE.fullmatch(given):
            raise InvalidRequestError("the body must be JSON: send content-type application/json")


@functools.cache
def _decoder(wanted: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(wanted, strict=True)


def decode_body(body: bytes, wanted: Any, *, keep_surrogates: bool = False) -> Any:
    """Decode JSON into `wanted`; raises `InvalidRequestError` with the place of what is wrong."""
    try:
        return _decoder(wanted).decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except RecursionError as error:
        raise InvalidRequestError("the body nests too deep") from error
    except msgspec.DecodeError as error:
        lone_surrogate = _LONE_SURROGATE.search(body) is not None
        if lone_surrogate and keep_surrogates:
            return _decode_with_surrogates(body, wanted)
        reason = "a string holds a lone surrogate" if lone_surrogate else str(error).lower()
        raise InvalidRequestError(f"the body is not valid JSON: {reason}") from error


def _decode_with_surrogates(body: bytes, wanted: Any) -> Any:
    try:
        return msgspec.convert(json.loads(body, parse_constant=_refuse_constant), wanted)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except RecursionError as error:
        raise InvalidRequestError("the body nests too deep") from error
    except ValueError as error:
        raise InvalidRequestError("the body is not valid JSON") from error


def _refuse_constant(name: str) -> None:
    raise InvalidRequestError(f"the body is not valid JSON: {name} is no number")


def _invalid(message: str) -> InvalidRequestError:
    """Turn `Expected ... - at `$.query.text`` into a pointer and a reason."""
    what, separator, place = message.rpartition(" - at `")
    if not separator:
        what, place = message, "$"
    pointer = _pointer(place)
    reason = plain_reason(what)
    if named := _NAMED.fullmatch(reason):
        name = named[2][:MAX_NAME_CHARACTERS]
        pointer += f"/{_escaped(name)}"
        reason = "is required" if named[1] == "missing required" else "unknown field"
    detail = f"{pointer}: {reason}" if pointer else f"the body: {reason}"
    return InvalidRequestError(detail, errors=(Violation(pointer, reason),))


def _pointer(place: str) -> str:
    steps = []
    for step in _STEP.finditer(place):
        if step[0] == "[...]":
            break  # a key of the client's own: msgspec does not say which
        steps.append(step[1] or step[2])
    return "".join(f"/{step}" for step in steps)


async def check_parameters(request: Request[Any, Any, State]) -> None:
    """Refuse a parameter that the route does not know, has twice, or would read leniently."""
    known = _declared(request.route_handler)
    in_path = request.path_params
    for name, value in in_path.items():
        _check_spelling(name, value, known.get(name))
    seen: set[str] = set()
    for name, value in request.query_params.multi_items():
        if name not in known or name in in_path:
            raise _refused(name, "unknown query parameter")
        if name in seen:
            raise _refused(name, "given more than once")
        seen.add(name)
        _check_spelling(name, value, known[name])


def _check_spelling(name: str, value: str, wanted: Any) -> None:
    if wanted in (int, int | None) and not _INTEGER.fullmatch(value):
        raise _refused(name, "must be an integer")
    if wanted in (bool, bool | None) and value not in ("true", "false"):
        raise _refused(name, "must be true or false")
    if "\x00" in value:
        raise _refused(name, "must not hold NUL")


def _refused(name: str, reason: str) -> BraidError:
    name = name[:MAX_NAME_CHARACTERS]
    return InvalidRequestError(
        f"{name}: {reason}", errors=(Violation(f"/{_escaped(name)}", reason),)
    )


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


@functools.cache
def _declared(handler: Any) -> dict[str, Any]:
    injected = {"data", "request", "scope", "state", *handler.resolve_dependencies()}
    return {
        getattr(field.kwarg_definition, "name", None) or name: field.annotation
        for name, field in handler.parsed_fn_signature.parameters.items()
        if name not in injected
    }
