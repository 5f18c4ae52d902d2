"""Renders a `Filter` as SQL: keys and values are always bind parameters."""

from typing import assert_never

import msgspec

from service.models import AllOf, AnyOf, Condition, Filter, Not

COLUMNS = frozenset({"doc_id", "title", "source"})
COMPARISONS = {"gt": ">", "gte": ">=", "lt": "<", "lte": "<="}


def filter_sql(condition: Filter, arguments: list[object]) -> str:
    """SQL that is true exactly for the matching rows; appends its values to `arguments`.

    A part may be NULL where a key is missing, so a complement is `IS NOT TRUE`, never `NOT`.
    """
    match condition:
        case AllOf(parts):
            return _join(parts, " AND ", "true", arguments)
        case AnyOf(parts):
            return _join(parts, " OR ", "false", arguments)
        case Not(part):
            return f"(({filter_sql(part, arguments)}) IS NOT TRUE)"
        case Condition(key):
            on_column = key in COLUMNS
            return _column(condition, arguments) if on_column else _metadata(condition, arguments)
        case _:
            assert_never(condition)


def _join(parts: tuple[Filter, ...], word: str, empty: str, arguments: list[object]) -> str:
    return "(" + word.join(filter_sql(part, arguments) for part in parts) + ")" if parts else empty


def _bind(arguments: list[object], value: object, cast: str) -> str:
    arguments.append(value)
    return f"${len(arguments)}::{cast}"


def _column(condition: Condition, arguments: list[object]) -> str:
    name, operator, value = condition.key, condition.operator, condition.value
    if operator == "exists":
        return f"({name} IS NOT NULL)" if value else f"({name} IS NULL)"
    if operator == "in":
        strings = [member for member in value if isinstance(member, str)]
        return f"({name} = ANY({_bind(arguments, strings, 'text[]')}))"
    if not isinstance(value, str):
        return "false"
    bound = _bind(arguments, value, "text")
    if operator == "eq":
        return f"({name} = {bound})"
    if operator in COMPARISONS:
        return f'({name} COLLATE "C" {COMPARISONS[operator]} {bound})'
    # doc_id is stored in the C collation, whose lower() knows ASCII only.
    return _string_test(operator, f'({name} COLLATE "default")', bound)


def _metadata(condition: Condition, arguments: list[object]) -> str:
    key, operator, value = condition.key, condition.operator, condition.value
    if operator in ("eq", "in"):
        return _membership(key, value if operator == "in" else [value], arguments)
    bound_key = _bind(arguments, key, "text")
    if operator == "exists":
        found = f"(metadata ? {bound_key})"
        return found if value else f"(NOT {found})"
    field = f"metadata -> {bound_key}"
    if operator in COMPARISONS:
        return _ordering(field, COMPARISONS[operator], value, arguments)
    bound = _bind(arguments, value, "text")
    single = _string_test(operator, f"({field} #>> '{{}}')", bound)
    element = _string_test(operator, "(element #>> '{}')", bound)
    return (
        f"(CASE jsonb_typeof({field}) WHEN 'string' THEN {single} WHEN 'array' THEN EXISTS ("
        f"SELECT FROM jsonb_array_elements({field}) AS element"
        f" WHERE jsonb_typeof(element) = 'string' AND {element}) END)"
    )


def _membership(key: str, values: list[object], arguments: list[object]) -> str:
    # Containment is typed, finds a value inside a list, and the GIN index serves it.
    shapes = [
        msgspec.json.encode({key: shape}).decode() for value in values for shape in (value, [value])
    ]
    return f"(metadata @> ANY({_bind(arguments, shapes, 'text[]')}::jsonb[]))"


def _ordering(field: str, operator: str, value: object, arguments: list[object]) -> str:
    if isinstance(value, str):
        bound = _bind(arguments, value, "text")
        return (
            f"(jsonb_typeof({field}) = 'string'"
            f" AND ({field} #>> '{{}}') COLLATE \"C\" {operator} {bound})"
        )
    bound = _bind(arguments, msgspec.json.encode(value).decode(), "text")
    return f"(jsonb_typeof({field}) = 'number' AND {field} {operator} {bound}::jsonb)"


def _string_test(operator: str, subject: str, bound: str) -> str:
    if operator == "contains":
        return f"(strpos(lower({subject}), lower({bound})) > 0)"
    return f"starts_with({subject}, {bound})"
