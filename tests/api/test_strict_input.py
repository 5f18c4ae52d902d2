"""Nothing is converted, nothing unknown passes, and every refusal names its place."""

import contextlib
import json
from typing import Annotated, Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.api import pointers, problem

from service.api.strict import decode_body
from service.errors import InvalidRequestError

TEXT_ONLY = {"provider": "none"}


class Part(msgspec.Struct, forbid_unknown_fields=True):
    text: str | None = None
    vector: list[float] | None = None


class Body(msgspec.Struct, forbid_unknown_fields=True):
    part: Part
    k: Annotated[int, msgspec.Meta(ge=1, le=10)] = 1
    parts: list[Part] = []
    free: dict[str, Any] | None = None


def refused(body: bytes | str) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        decode_body(body.encode() if isinstance(body, str) else body, Body)
    return caught.value


@pytest.mark.parametrize(
    ("body", "pointer", "detail"),
    [
        ('{"part": {}, "k": 0}', "/k", "expected `int` >= 1"),
        ('{"part": {}, "k": "9"}', "/k", "expected `int`, got `str`"),
        ('{"part": {}, "k": true}', "/k", "expected `int`, got `bool`"),
        ('{"part": {}, "k": 1.0}', "/k", "expected `int`, got `float`"),
        ('{"part": {"vector": [1, "a"]}}', "/part/vector/1", "expected `float`, got `str`"),
        ('{"part": {}, "parts": [{}, {"text": 3}]}', "/parts/1/text", "expected `str | null`"),
        ('{"part": {"txet": "a"}}', "/part/txet", "unknown field"),
        ('{"part": {}, "a/b~c": 1}', "/a~1b~0c", "unknown field"),
        ('{"part": {}, "a` - at `$.k": 1}', "", ""),
        ("{}", "/part", "is required"),
        ("[]", "", "expected `object`, got `array`"),
        ("null", "", "expected `object`, got `null`"),
        ('{"part": {}, "free": {"a": 1e999}}', "/free", "number out of range"),
    ],
)
def test_a_bad_field_is_named_by_its_pointer(body: str, pointer: str, detail: str) -> None:
    (violation,) = refused(body).errors
    assert violation.pointer.startswith(pointer)
    assert violation.detail.startswith(detail)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"part": {}} x',
        b"\xef\xbb\xbf{}",
        b'{"part": {"text": "\xff"}}',
        b'{"part": {"vector": [NaN]}}',
        b'{"part": {"vector": [Infinity]}}',
        b'{"part": {"text": "\\ud800"}}',
        b'{"part": {"text": "\\udc00\\ud800"}}',
        b'{"part": {}, "free": {"\\ud800": 1}}',
        b'{"part": {}, "free": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b"[" * 1_000_000,
    ],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    assert refused(body).detail.startswith(("the body is not valid JSON", "the body"))


def test_of_a_key_given_twice_the_last_counts() -> None:
    assert decode_body(b'{"part": {}, "k": 1, "k": 7}', Body).k == 7


def test_lone_surrogates_can_be_left_to_the_handler() -> None:
    body = b'{"part": {"text": "a\\ud800b"}}'
    assert decode_body(body, Body, keep_surrogates=True).part.text == "a\ud800b"


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b'{"part": {"text": "\\ud800"}, "k": 0}', "/k"),
        (b'{"part": {"text": "\\ud800"}, "k": "9"}', "/k"),
        (b'{"part": {"text": "\\ud800"}, "x": 1}', "/x"),
    ],
)
def test_the_rest_of_a_body_with_surrogates_is_as_strict(body: bytes, pointer: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode_body(body, Body, keep_surrogates=True)
    assert caught.value.errors[0].pointer == pointer


@pytest.mark.parametrize(
    "body",
    [
        b'{"part": {"text": "\\ud800", "vector": [NaN]}}',
        b'{"part": {"text": "\\ud800"}, "free": {"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b'{"part": {"text": "\\ud800"}',
    ],
)
def test_a_body_with_surrogates_must_still_be_json(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode_body(body, Body, keep_surrogates=True)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: json.dumps(text).encode()))
def test_no_body_breaks_the_decoder(body: bytes) -> None:
    for keep in (False, True):
        with contextlib.suppress(InvalidRequestError):
            decode_body(body, Body, keep_surrogates=keep)


async def test_a_body_is_strict_over_http(client: httpx.AsyncClient) -> None:
    assert pointers(await client.post("/v1/teams", json={"name": 9})) == ["/name"]
    assert pointers(await client.post("/v1/teams", json={"name": "a", "nmae": "b"})) == ["/nmae"]
    assert pointers(await client.post("/v1/teams", json={})) == ["/name"]
    assert pointers(await client.post("/v1/teams")) == [""]


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "application/merge-patch+json",
        "*/*",
        "",
    ],
)
async def test_json_is_taken_under_its_names(client: httpx.AsyncClient, content_type: str) -> None:
    headers = {"content-type": content_type} if content_type else {}
    response = await client.post("/v1/teams", content=b'{"name": "a"}', headers=headers)
    assert response.status_code == 201, response.text


@pytest.mark.parametrize(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "nonsense",
    ],
)
async def test_another_content_type_is_refused(
    client: httpx.AsyncClient, content_type: str
) -> None:
    response = await client.post(
        "/v1/teams", content=b'{"name": "a"}', headers={"content-type": content_type}
    )
    assert "application/json" in problem(response, 400)["detail"]


async def test_a_body_past_the_limit_is_413(client: httpx.AsyncClient) -> None:
    async def chunks():  # type: ignore[no-untyped-def]
        for _ in range(11):
            yield b" " * 1_000_000

    announced = await client.post("/v1/teams", content=b" " * 10_000_001)
    assert "10 MB" in problem(announced, 413)["detail"]
    problem(await client.post("/v1/teams", content=chunks()), 413)
    within = b'{"name": "a"' + b" " * (10_000_000 - 13) + b"}"
    assert (await client.post("/v1/teams", content=within)).status_code == 201


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("limit=abc", "/limit"),
        ("limit=", "/limit"),
        ("limit=0", "/limit"),
        ("limit=1001", "/limit"),
        ("limit=9999999999999999999", "/limit"),
        ("limit=1.0", "/limit"),
        ("limit=%201", "/limit"),
        ("limit=%FF", "/limit"),
        ("limit=1&limit=2", "/limit"),
        ("offset=-1", "/offset"),
        ("ofset=1", "/ofset"),
        ("a/b=1", "/a~1b"),
        ("name=x", "/name"),
        ("principal=x", "/principal"),
    ],
)
async def test_a_bad_query_parameter_is_refused(
    client: httpx.AsyncClient, query: str, pointer: str
) -> None:
    assert pointers(await client.get(f"/v1/collections?{query}")) == [pointer]


@pytest.mark.parametrize("name", ["%00", "a%00", "a%0A", "%FF", "a.b", "a" * 65, "%20"])
async def test_a_name_that_can_be_none_is_refused(client: httpx.AsyncClient, name: str) -> None:
    assert pointers(await client.get(f"/v1/collections/{name}")) == ["/name"]


@pytest.mark.parametrize("key_id", ["abc", "0", "-1", "1.0", "9999999999999999999", "%00", "1%0A"])
async def test_an_id_that_can_be_none_is_refused(client: httpx.AsyncClient, key_id: str) -> None:
    assert pointers(await client.delete(f"/v1/keys/{key_id}")) == ["/key_id"]
