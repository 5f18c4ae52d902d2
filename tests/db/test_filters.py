"""Filters in SQL mean what the grammar says: every case against a model in Python."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.db.filter_sql import filter_sql
from service.db.pool import Connection, Database
from service.errors import InvalidRequestError
from service.models import AllOf, AnyOf, Condition, Filter, Not
from service.search.filters import parse_filter

MISSING = object()


def holds(condition: Filter, row: dict[str, Any]) -> bool:
    """The grammar of design rule 9, row by row."""
    match condition:
        case AllOf(parts):
            return all(holds(part, row) for part in parts)
        case AnyOf(parts):
            return any(holds(part, row) for part in parts)
        case Not(part):
            return not holds(part, row)
        case Condition(key, operator, value):
            on_column = key in ("doc_id", "title", "source")
            stored = row[key] if on_column else row["metadata"].get(key, MISSING)
            if on_column and stored is None:
                stored = MISSING
            return _compare(operator, stored, value)
    raise AssertionError(condition)


def _compare(operator: str, stored: Any, value: Any) -> bool:
    if operator == "exists":
        return (stored is not MISSING) == value
    if stored is MISSING:
        return False
    if operator in ("eq", "in"):
        wanted = [value] if operator == "eq" else value
        held = [stored, *stored] if isinstance(stored, list) else [stored]
        return any(_same(one, other) for one in held for other in wanted)
    if operator in ("contains", "starts_with"):
        strings = stored if isinstance(stored, list) else [stored]
        return any(_text_test(operator, one, value) for one in strings if isinstance(one, str))
    if _kind(stored) != _kind(value) or _kind(value) not in ("number", "string"):
        return False
    left, right = (stored, value)
    if isinstance(value, str):
        left, right = stored.encode(), value.encode()
    return {"gt": left > right, "gte": left >= right, "lt": left < right, "lte": left <= right}[
        operator
    ]


def _text_test(operator: str, stored: str, value: str) -> bool:
    return value.lower() in stored.lower() if operator == "contains" else stored.startswith(value)


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds = {str: "string", int: "number", float: "number", list: "list", dict: "object"}
    return kinds.get(type(value), "null")


def _same(one: Any, other: Any) -> bool:
    return _kind(one) == _kind(other) and one == other


KEYS = ["a", "b.c", "a/b", "", "doc_id", "title", "source"]
words = st.sampled_from(
    ["", "x", "X", "xy", "Straße", "%", "_", "'", '"', "\\", "né", "NÉ", "1", "ж", "\U0001f600"]
)
numbers = st.sampled_from([0, 1, -1, 1.0, 1.5, 10**12, 2**63, 1e300, -1e300, 5e-324])
scalars = st.one_of(words, numbers, st.booleans(), st.none())
objects = st.dictionaries(st.sampled_from(["x", "a"]), scalars, max_size=2)
stored_values = st.one_of(
    scalars,
    st.lists(st.one_of(scalars, st.lists(scalars, max_size=2), objects), max_size=3),
    objects,
)
metadata = st.dictionaries(st.sampled_from(["a", "b.c", "a/b"]), stored_values, max_size=3)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "metadata": metadata,
            "doc_id": words.filter(bool),
            "title": st.none() | words,
            "source": st.none() | words,
        }
    ),
    min_size=1,
    max_size=6,
)
ordered = st.one_of(words, numbers)
operators = st.one_of(
    st.tuples(st.sampled_from(["eq", "ne"]), scalars),
    st.tuples(st.sampled_from(["gt", "gte", "lt", "lte"]), ordered),
    st.tuples(st.sampled_from(["in", "nin"]), st.lists(scalars, min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["contains", "starts_with"]), words),
    st.tuples(st.just("exists"), st.booleans()),
)
conditions = st.one_of(
    scalars,
    st.lists(scalars, min_size=1, max_size=3),
    st.lists(operators, min_size=1, max_size=3).map(dict),
)
keys = st.sampled_from([key for key in KEYS if key])
filters = st.recursive(
    st.dictionaries(keys, conditions, max_size=2),
    lambda inner: st.one_of(
        st.builds(lambda parts: {"and": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda parts: {"or": parts}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda part: {"not": part}, inner),
    ),
    max_leaves=6,
)


@pytest.fixture
async def connection(database: Database) -> AsyncIterator[Connection]:
    async with database.administer() as opened:
        await opened.execute(
            "CREATE TEMP TABLE rows (number int, metadata jsonb,"
            ' doc_id text COLLATE "C", title text, source text);'
            "CREATE INDEX ON rows USING gin (metadata jsonb_path_ops);"
            "CREATE INDEX ON rows (doc_id)"
        )
        yield opened


async def matching(connection: Connection, raw: dict[str, Any]) -> set[int]:
    arguments: list[object] = []
    condition = filter_sql(parse_filter(raw), arguments)
    statement = f"SELECT number FROM rows WHERE {condition}"
    scanned = {number for (number,) in await connection.fetch(statement, *arguments)}
    await connection.execute("SET LOCAL enable_seqscan = off")
    by_index = {number for (number,) in await connection.fetch(statement, *arguments)}
    await connection.execute("SET LOCAL enable_seqscan = on")
    assert by_index == scanned
    return scanned


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=rows, raw=filters)
async def test_sql_and_model_agree(
    connection: Connection, rows: list[dict[str, Any]], raw: dict[str, Any]
) -> None:
    await connection.execute("TRUNCATE rows")
    await connection.executemany(
        "INSERT INTO rows VALUES ($1, $2, $3, $4, $5)",
        [
            (number, json.dumps(row["metadata"]), row["doc_id"], row["title"], row["source"])
            for number, row in enumerate(rows)
        ],
    )
    parsed = parse_filter(raw)
    expected = {number for number, row in enumerate(rows) if holds(parsed, row)}
    assert await matching(connection, raw) == expected


@pytest.mark.parametrize(
    ("raw", "pointer", "words"),
    [
        ({"a": {"in": []}}, "/filter/a/in", "1 to 1000 values"),
        ({"a": []}, "/filter/a", "1 to 1000 values"),
        ({"a": {"like": "x"}}, "/filter/a/like", "unknown operator"),
        ({"a": {}}, "/filter/a", "names no operator"),
        ({"a/b~": {"gt": True}}, "/filter/a~1b~0/gt", "number or a string"),
        ({"a": {"eq": {"b": 1}}}, "/filter/a/eq", "string, number, boolean or null"),
        ({"a": {"exists": 1}}, "/filter/a/exists", "true or false"),
        ({"or": []}, "/filter/or", "at least one filter"),
        ({"not": 3}, "/filter/not", "must be an object"),
        ({"and": [{"a": 1}, {"b": {"contains": 2}}]}, "/filter/and/1/b/contains", "a string"),
        ({"a": "x\x00"}, "/filter/a", "NUL"),
        ({"a\ud800": 1}, "/filter/a\ud800", "lone surrogate"),
        ({f"k{number}": 1 for number in range(101)}, "/filter/k100", "at most 100 conditions"),
    ],
)
def test_a_filter_without_meaning_is_refused_by_name(
    raw: dict[str, Any], pointer: str, words: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_filter(raw)
    assert [error.pointer for error in caught.value.errors] == [pointer]
    assert words in caught.value.detail


def test_a_filter_nests_at_most_eight_deep() -> None:
    raw: dict[str, Any] = {"a": 1}
    for _ in range(7):
        raw = {"not": raw}
    parse_filter(raw)
    with pytest.raises(InvalidRequestError, match="8 deep"):
        parse_filter({"not": raw})
