"""Reads the filter grammar of a request into `Filter`; refuses what has no meaning."""

from typing import Any

from service.errors import InvalidRequestError
from service.models import AllOf, AnyOf, Condition, Filter, Not

MAX_DEPTH = 8
MAX_CONDITIONS = 100
MAX_MEMBERS = 1000
MAX_KEY_CHARACTERS = 256
MAX_STRING_CHARACTERS = 8192

Scalar = str | int | float | bool | None


def parse_filter(raw: dict[str, Any], pointer: str = "/filter") -> Filter:
    """Read one filter object; its keys are ANDed. Raises `InvalidRequestError`."""
    return _Parser().object(raw, pointer, depth=1)


def conjuncts(raw: dict[str, Any], pointer: str = "/filter") -> list[tuple[str, Filter]]:
    """The parts of a valid filter that must all hold, each with its pointer."""
    parts: list[tuple[str, Filter]] = []
    for key, value in raw.items():
        at = f"{pointer}/{_escape(key)}"
        if key == "and":
            for index, part in enumerate(value):
                parts += conjuncts(part, f"{at}/{index}")
        elif isinstance(value, dict) and key not in ("or", "not"):
            for operator, operand in value.items():
                condition = parse_filter({key: {operator: operand}})
                parts.append((f"{at}/{_escape(operator)}", condition))
        else:
            parts.append((at, parse_filter({key: value})))
    return parts


class _Parser:
    def __init__(self) -> None:
        self._conditions = 0

    def object(self, raw: Any, pointer: str, depth: int) -> AllOf:
        if not isinstance(raw, dict):
            raise InvalidRequestError.at(pointer, "a filter must be an object")
        if depth > MAX_DEPTH:
            raise InvalidRequestError.at(pointer, f"a filter nests at most {MAX_DEPTH} deep")
        parts = [
            self._member(key, value, f"{pointer}/{_escape(key)}", depth)
            for key, value in raw.items()
        ]
        return AllOf(tuple(parts))

    def _member(self, key: str, value: Any, pointer: str, depth: int) -> Filter:
        if key == "not":
            return Not(self.object(value, pointer, depth + 1))
        if key in ("and", "or"):
            if not isinstance(value, list) or not value:
                raise InvalidRequestError.at(
                    pointer, f"`{key}` takes a list of at least one filter"
                )
            parts = tuple(
                self.object(part, f"{pointer}/{index}", depth + 1)
                for index, part in enumerate(value)
            )
            return AllOf(parts) if key == "and" else AnyOf(parts)
        _check_text(key, pointer, MAX_KEY_CHARACTERS, "a key")
        if isinstance(value, list):
            return self._condition(key, "in", value, pointer)
        if isinstance(value, dict):
            return self._operators(key, value, pointer)
        return self._condition(key, "eq", value, pointer)

    def _operators(self, key: str, operators: dict[str, Any], pointer: str) -> Filter:
        if not operators:
            raise InvalidRequestError.at(pointer, "names no operator")
        return AllOf(
            tuple(
                self._condition(key, operator, value, f"{pointer}/{_escape(operator)}")
                for operator, value in operators.items()
            )
        )

    def _condition(self, key: str, operator: str, value: Any, pointer: str) -> Filter:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise InvalidRequestError.at(
                pointer, f"a filter has at most {MAX_CONDITIONS} conditions"
            )
        if operator == "ne":
            return Not(self._condition(key, "eq", value, pointer))
        if operator == "nin":
            return Not(self._condition(key, "in", value, pointer))
        check = _OPERANDS.get(operator)
        if check is None:
            known = ", ".join(sorted({*_OPERANDS, "ne", "nin"}))
            raise InvalidRequestError.at(pointer, f"unknown operator; known are {known}")
        check(value, pointer)
        return Condition(key, operator, value)  # type: ignore[arg-type]


def _check_scalar(value: Any, pointer: str) -> None:
    if not isinstance(value, Scalar):
        raise InvalidRequestError.at(pointer, "must be a string, number, boolean or null")
    if isinstance(value, str):
        _check_text(value, pointer, MAX_STRING_CHARACTERS, "a value", minimum=0)


def _check_members(value: Any, pointer: str) -> None:
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_MEMBERS:
        raise InvalidRequestError.at(pointer, f"must be a list of 1 to {MAX_MEMBERS} values")
    for index, member in enumerate(value):
        _check_scalar(member, f"{pointer}/{index}")


def _check_ordered(value: Any, pointer: str) -> None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise InvalidRequestError.at(pointer, "must be a number or a string")
    _check_scalar(value, pointer)


def _check_string(value: Any, pointer: str) -> None:
    if not isinstance(value, str):
        raise InvalidRequestError.at(pointer, "must be a string")
    _check_scalar(value, pointer)


def _check_boolean(value: Any, pointer: str) -> None:
    if not isinstance(value, bool):
        raise InvalidRequestError.at(pointer, "must be true or false")


_OPERANDS = {
    "eq": _check_scalar,
    "in": _check_members,
    "gt": _check_ordered,
    "gte": _check_ordered,
    "lt": _check_ordered,
    "lte": _check_ordered,
    "contains": _check_string,
    "starts_with": _check_string,
    "exists": _check_boolean,
}


def _check_text(text: str, pointer: str, maximum: int, what: str, minimum: int = 1) -> None:
    if not minimum <= len(text) <= maximum:
        raise InvalidRequestError.at(pointer, f"{what} has {minimum} to {maximum} characters")
    if "\x00" in text or (not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)):
        raise InvalidRequestError.at(pointer, f"{what} holds a NUL or a lone surrogate")


def _escape(key: str) -> str:
    """A reference token of RFC 6901."""
    return key.replace("~", "~0").replace("/", "~1")
