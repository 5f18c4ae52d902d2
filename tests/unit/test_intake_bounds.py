"""What indexing refuses, and where it says the mistake is."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import InvalidRequestError
from service.indexing.bounds import validate_documents
from service.indexing.editing import merge_patch
from service.indexing.payload import (
    PendingChunk,
    PendingDocument,
    pack,
    pack_vector,
    unpack,
    unpack_vector,
)
from service.models import Generation, IncomingDocument

DIM = 3


def generation(dim: int | None = DIM) -> Generation:
    return Generation(
        id=1, team_id=1, collection_id=1, provider="none", model=None, dim=dim, base_url=None,
        language="simple", analyzer="language", chunk_size=512, chunk_overlap=64, k1=1.2,
        b=0.75, row_budget=8000, average_length=100.0,
    )  # fmt: skip


def check(*documents: dict[str, Any], dim: int | None = DIM) -> list[tuple[str, str]]:
    """Pointer and message of everything that is wrong."""
    try:
        validate_documents(
            msgspec.convert(list(documents), list[IncomingDocument]), generation(dim)
        )
    except InvalidRequestError as error:
        return [(one.pointer, one.detail) for one in error.errors]
    return []


def pointers(*documents: dict[str, Any], dim: int | None = DIM) -> list[str]:
    return [pointer for pointer, _ in check(*documents, dim=dim)]


def doc(doc_id: str = "a", **fields: Any) -> dict[str, Any]:
    return {"doc_id": doc_id, "text": "text", **fields}


def with_chunk(**fields: Any) -> dict[str, Any]:
    return {"doc_id": "a", "chunks": [{"id": "0", **fields}]}


def nested(depth: int) -> Any:
    return {"k": nested(depth - 1)} if depth else 1


@pytest.mark.parametrize(
    "document",
    [
        doc(),
        doc("x" * 512),
        doc("каталог/файл №1.md"),
        doc(metadata={"a": [1, 2.5, None, True, {"b": "c"}]}),
        doc(metadata=nested(16)),
        doc(text="\0"),
        doc(summary="s"),
        {"doc_id": "a", "summary": "only a summary"},
        with_chunk(text="t"),
        with_chunk(vector=[1, 0, 0]),
        with_chunk(text="", vector=[0, -65504, 0.5]),
        with_chunk(text="t", position=2**31 - 1),
    ],
)
def test_what_is_within_the_bounds_is_taken(document: dict[str, Any]) -> None:
    assert check(document) == []


@pytest.mark.parametrize(
    ("document", "pointer"),
    [
        (doc(""), "/documents/0/doc_id"),
        (doc("x" * 513), "/documents/0/doc_id"),
        (doc("a\0b"), "/documents/0/doc_id"),
        (doc("a\nb"), "/documents/0/doc_id"),
        (doc("a\x85b"), "/documents/0/doc_id"),
        (doc("a\ud800b"), "/documents/0/doc_id"),
        ({"doc_id": "a"}, "/documents/0"),
        ({"doc_id": "a", "chunks": []}, "/documents/0"),
        (doc(title="x" * 2049), "/documents/0/title"),
        (doc(source="x" * 2049), "/documents/0/source"),
        (doc(text="x" * 10_000_001), "/documents/0/text"),
        (doc(metadata={"k": "x" * 65_536}), "/documents/0/metadata"),
        (doc(metadata=nested(17)), "/documents/0/metadata"),
        (doc(metadata={"a": {"k\0": 1}}), "/documents/0/metadata"),
        (doc(metadata={"a": [{"\udfff": 1}]}), "/documents/0/metadata"),
        (doc(metadata={"a": 2**64}), "/documents/0/metadata"),
        (doc(metadata={"a": float("inf")}), "/documents/0/metadata"),
        (with_chunk(), "/documents/0/chunks/0"),
        (with_chunk(text=""), "/documents/0/chunks/0"),
        (with_chunk(text="t", position=-1), "/documents/0/chunks/0/position"),
        (with_chunk(text="t", position=2**31), "/documents/0/chunks/0/position"),
        (with_chunk(text="t", metadata=nested(17)), "/documents/0/chunks/0/metadata"),
        (with_chunk(vector=[]), "/documents/0/chunks/0/vector"),
        (with_chunk(vector=[1, 2]), "/documents/0/chunks/0/vector"),
        (with_chunk(vector=[0, 0, 0]), "/documents/0/chunks/0/vector"),
        (with_chunk(vector=[1e-9, 0, 0]), "/documents/0/chunks/0/vector"),
        (with_chunk(vector=[float("nan"), 0, 1]), "/documents/0/chunks/0/vector"),
        (with_chunk(vector=[1, 0, float("inf")]), "/documents/0/chunks/0/vector"),
        (with_chunk(vector=[1, 0, 1e300]), "/documents/0/chunks/0/vector"),
        (with_chunk(vector=[1, 0, 65505]), "/documents/0/chunks/0/vector"),
    ],
)
def test_what_breaks_a_bound_is_named(document: dict[str, Any], pointer: str) -> None:
    assert pointers(document) == [pointer]


def test_a_collection_without_dimension_takes_no_vectors() -> None:
    assert pointers(with_chunk(text="t", vector=[1.0]), dim=None) == [
        "/documents/0/chunks/0/vector"
    ]


def test_the_same_id_twice_is_refused() -> None:
    assert pointers(doc("a"), doc("b"), doc("a")) == ["/documents/2/doc_id"]
    twice = {"doc_id": "a", "chunks": [{"id": "0", "text": "t"}, {"id": "0", "text": "u"}]}
    assert pointers(twice) == ["/documents/0/chunks/1/id"]


def test_every_mistake_is_named_up_to_a_bound() -> None:
    assert pointers(doc(""), with_chunk(), doc("b", title="x" * 3000)) == [
        "/documents/0/doc_id",
        "/documents/1/chunks/0",
        "/documents/2/title",
    ]
    assert len(pointers(*(doc("") for _ in range(100)))) == 20


def test_a_request_has_one_to_a_thousand_documents() -> None:
    assert pointers() == ["/documents"]
    assert pointers(*(doc(str(n)) for n in range(1000))) == []
    assert pointers(*(doc(str(n)) for n in range(1001))) == ["/documents"]


def test_a_document_has_at_most_ten_thousand_chunks() -> None:
    chunks = [{"id": str(n), "text": "t"} for n in range(10_001)]
    assert pointers({"doc_id": "a", "chunks": chunks}) == ["/documents/0/chunks"]
    assert pointers({"doc_id": "a", "chunks": chunks[1:]}) == []


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text()),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
)


@given(
    text=st.none() | st.text(),
    metadata=st.none() | st.dictionaries(st.text(), json_values),
    vector=st.none() | st.lists(st.floats(-60000, 60000, width=16), min_size=1),
)
def test_a_payload_reads_back_as_it_was_packed(
    text: str | None, metadata: dict[str, Any] | None, vector: list[float] | None
) -> None:
    packed = None if vector is None else pack_vector(vector)
    document = PendingDocument(
        text=text, metadata=metadata, chunks=[PendingChunk("0", "", packed, metadata, 3)]
    )
    read = unpack(pack(document))
    assert read == document
    if read.chunks[0].vector is not None:
        assert unpack_vector(read.chunks[0].vector).tolist() == vector


def test_a_vector_takes_two_bytes_a_dimension() -> None:
    document = PendingDocument(chunks=[PendingChunk("0", "", pack_vector([0.5] * 1024))])
    assert len(pack(document)) < 2100


@pytest.mark.parametrize(
    ("target", "patch", "merged"),
    [
        # The examples of RFC 7396, appendix A.
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patch_follows_rfc_7396(target: Any, patch: Any, merged: Any) -> None:
    assert merge_patch(target, patch) == merged


@pytest.mark.parametrize("doc_id", [".", "..", "../a", "a/..", "a/../b", "./a", "a/./b", "/.."])
def test_an_id_that_clients_would_resolve_as_a_path_is_refused(doc_id: str) -> None:
    assert pointers(doc(doc_id)) == ["/documents/0/doc_id"]


@pytest.mark.parametrize("doc_id", ["...", ".git/config", "a..b", "a/..b", "v1.", "a//b"])
def test_dots_within_a_name_are_fine(doc_id: str) -> None:
    assert check(doc(doc_id)) == []


def test_a_chunk_may_have_any_name() -> None:
    assert check({"doc_id": "a", "chunks": [{"id": "..", "text": "t"}]}) == []
