"""Requests that the server takes: bounded, complete, in order, each id once."""

import json

from hypothesis import given
from hypothesis import strategies as st

from service.api.strict import MAX_BODY_BYTES as SERVER_LIMIT
from service.cli import batches
from service.cli.batches import MAX_BODY_BYTES, MAX_BYTES, MAX_DOCUMENTS, Intake, request_body
from service.cli.reading import Unread
from service.models import IncomingDocument


def test_the_bounds_are_within_those_of_the_server():
    assert MAX_BYTES < MAX_BODY_BYTES <= SERVER_LIMIT


def test_a_request_holds_only_the_fields_that_a_document_has():
    (batch,) = Intake([IncomingDocument("a", text="t", metadata={"n": 1})])
    assert json.loads(request_body(batch)) == {
        "documents": [{"doc_id": "a", "text": "t", "metadata": {"n": 1}}]
    }


def test_a_lone_surrogate_travels_as_an_escape():
    (batch,) = Intake([IncomingDocument("a", text="x\ud800é")])
    assert json.loads(request_body(batch))["documents"][0]["text"] == "x\ud800é"


def test_the_second_use_of_an_id_is_a_failure_by_name():
    intake = Intake([IncomingDocument("a", text="1"), IncomingDocument("a", text="2")])
    (batch,) = intake
    assert [one.doc_id for one in batch] == ["a"]
    assert b'"1"' in batch[0].json
    (refused,) = intake.unread
    assert refused.failed
    assert refused.name == "a"


def test_a_document_larger_than_a_body_is_a_failure_by_name():
    intake = Intake([IncomingDocument("a", text="x" * MAX_BODY_BYTES)])
    assert list(intake) == []
    assert intake.unread == [Unread("a", "larger than 10 MB", failed=True)]


@given(st.lists(st.integers(0, 500), max_size=300))
def test_batches_hold_every_document_once_in_order_within_the_bounds(sizes):
    documents = [IncomingDocument(str(n), text="x" * size) for n, size in enumerate(sizes)]
    small = 1000
    original, batches.MAX_BYTES = batches.MAX_BYTES, small
    try:
        made = list(Intake(documents))
    finally:
        batches.MAX_BYTES = original
    assert [one.doc_id for batch in made for one in batch] == [one.doc_id for one in documents]
    for batch in made:
        assert 1 <= len(batch) <= MAX_DOCUMENTS
        assert len(batch) == 1 or sum(len(one.json) for one in batch) <= small
