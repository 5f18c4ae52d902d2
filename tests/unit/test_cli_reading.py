"""What becomes a document, what does not, and that nothing is lost without a word."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.cli.batches import Intake
from service.cli.reading import MAX_FILE_BYTES, Unread, WholeFile, read_documents
from service.cli.records import RecordError, as_document
from service.models import IncomingChunk, IncomingDocument


def write_lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def only(path: Path) -> IncomingDocument:
    (document,) = read_documents(path)
    assert isinstance(document, IncomingDocument)
    return document


def test_beir_lines_become_documents(tmp_path):
    path = write_lines(tmp_path / "corpus.jsonl", {"_id": "d1", "title": "T", "text": "words"})
    assert only(path) == IncomingDocument("d1", text="words", title="T")


def test_an_empty_title_is_no_title(tmp_path):
    path = write_lines(tmp_path / "corpus.jsonl", {"_id": "d1", "title": "", "text": "words"})
    assert only(path).title is None


def test_content_is_a_name_for_text_and_the_first_name_of_an_id_counts():
    document = as_document({"id": 7, "_id": "x", "content": "words"})
    assert (document.doc_id, document.text, document.metadata) == ("7", "words", {"_id": "x"})


def test_unknown_fields_become_metadata_and_the_given_metadata_wins():
    document = as_document(
        {"id": "a", "text": "t", "year": 1999, "lang": "x", "metadata": {"lang": "de"}}
    )
    assert document.metadata == {"year": 1999, "lang": "de"}


def test_a_list_of_chunk_ids_is_metadata_and_the_text_is_chunked_by_the_server():
    document = as_document({"doc_id": "a", "text": "t", "chunks": ["a_0", "a_1"]})
    assert document.text == "t"
    assert document.chunks is None
    assert document.metadata == {"chunks": ["a_0", "a_1"]}


def test_chunks_that_were_made_already_are_kept_as_they_are():
    document = as_document(
        {
            "doc_id": "a",
            "content": "one two",
            "chunks": [
                {"chunk_id": "a_0", "content": "one", "original_index": 0},
                {"id": "a_1", "text": "two", "vector": [1.0, 0.5], "position": 4},
            ],
        }
    )
    assert document.text is None
    assert document.chunks == [
        IncomingChunk("a_0", text="one", metadata={"original_index": 0}),
        IncomingChunk("a_1", text="two", vector=[1.0, 0.5], position=4),
    ]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (17, "is no JSON object"),
        ({"text": "t"}, "has no doc_id, id or _id"),
        ({"id": "", "text": "t"}, "has no doc_id, id or _id"),
        ({"id": True, "text": "t"}, "has no doc_id, id or _id"),
        ({"id": "a"}, "has no text or content"),
        ({"id": "a", "text": ["t"]}, "has no text or content"),
        ({"id": "a", "text": "t", "metadata": []}, "metadata must be an object"),
        ({"id": "a", "chunks": [{"text": "t"}]}, "chunk 0 has no id, _id or chunk_id"),
    ],
)
def test_a_record_that_is_no_document_says_why(record, reason):
    with pytest.raises(RecordError, match=reason):
        as_document(record)


def test_a_bad_line_is_named_by_its_number_and_the_others_are_read(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text('\ufeff{"id": 1, "text": "a"}\n\n{"id": 2, \n{"id": 3, "text": "c"}\n[]')
    found = list(read_documents(path))
    assert [one.doc_id for one in found if isinstance(one, IncomingDocument)] == ["1", "3"]
    assert [one for one in found if isinstance(one, Unread)] == [
        Unread("corpus.jsonl:3", "is not valid JSON", failed=True),
        Unread("corpus.jsonl:5", "is no JSON object", failed=True),
    ]


def test_a_json_array_of_documents_is_read_and_other_json_is_text(tmp_path):
    array = tmp_path / "a.json"
    array.write_text('[{"id": "x", "text": "t"}, {"id": "y"}]')
    assert list(read_documents(array)) == [
        IncomingDocument("x", text="t"),
        Unread("a.json[1]", "has no text or content", failed=True),
    ]
    settings_file = tmp_path / "b.json"
    settings_file.write_text('{"compilerOptions": {}} // a comment')
    assert only(settings_file).text == settings_file.read_text()


def test_a_text_file_is_named_by_its_path_and_titled_by_its_first_heading(tmp_path):
    folder = tmp_path / "docs" / "deep"
    folder.mkdir(parents=True)
    (folder / "a.md").write_text("```sh\n# not this\n```\n\n## The *title* ##\n\ntext\n# later\n")
    (folder / "b.py").write_text("# a comment\n")
    first, second = read_documents(tmp_path / "docs")
    assert (first.doc_id, first.title) == ("deep/a.md", "The *title*")
    assert first.source == str(folder / "a.md")
    assert (second.doc_id, second.title) == ("deep/b.py", "b.py")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.png", b"\x89PNG\0\0", "binary"),
        ("a.txt", b"text\0text", "binary"),
        ("a.txt", b" \n\t", "empty"),
        ("a.txt", b"", "empty"),
        ("a.jsonl", b"\n \n", "empty"),
    ],
)
def test_what_is_no_text_is_skipped_with_the_reason(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    assert list(read_documents(tmp_path)) == [Unread(name, reason, failed=False)]


def test_text_that_is_not_in_unicode_is_left_to_the_server(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("Grün".encode("latin-1"))
    assert list(read_documents(tmp_path)) == [WholeFile("a.txt", path)]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_byte_order_marks_are_understood(tmp_path, encoding):
    path = tmp_path / "a.txt"
    path.write_bytes("Grün".encode(encoding))
    assert only(path).text == "Grün"


def test_folders_of_tools_links_and_hidden_folders_are_named_not_entered(tmp_path):
    for name in (".git", "node_modules", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("words")
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(tmp_path / "pipe")
    found = list(read_documents(tmp_path))
    assert [one.doc_id for one in found if isinstance(one, IncomingDocument)] == ["kept/a.txt"]
    assert {one.name: one.reason for one in found if isinstance(one, Unread)} == {
        ".git": "hidden folder",
        "node_modules": "folder of tools",
        "link": "link to a folder",
        "pipe": "no regular file",
    }


def test_a_file_that_is_gone_is_a_failure(tmp_path):
    (tmp_path / "a.txt").symlink_to(tmp_path / "nowhere")
    (found,) = read_documents(tmp_path)
    assert found == Unread("a.txt", "no such file or directory", failed=True)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
field_names = st.sampled_from(
    ["doc_id", "id", "_id", "text", "content", "title", "source", "metadata", "summary", "chunks"]
)
records = st.dictionaries(field_names | st.text(max_size=5), json_values, max_size=8) | json_values


@given(records)
def test_any_json_is_a_document_or_a_reason(record):
    try:
        document = as_document(record)
    except RecordError:
        return
    assert document.doc_id
    assert (document.text is None) != (document.chunks is None)


@given(st.dictionaries(st.text(min_size=1), json_values, max_size=5), st.text(min_size=1))
def test_no_field_of_a_record_is_lost(extra, text):
    taken = {"doc_id", "id", "_id", "text", "content", "title", "source", "summary", "metadata"}
    extra = {name: value for name, value in extra.items() if name not in {*taken, "chunks"}}
    document = as_document({**extra, "doc_id": "a", "text": text})
    assert document.metadata == (extra or None)


@settings(max_examples=50)
@given(content=st.binary(max_size=300))
def test_any_bytes_are_documents_or_reasons(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("bytes")
    for name in ("a.jsonl", "a.json", "a.md"):
        (folder / name).write_bytes(content)
    found = list(read_documents(folder))
    assert len(found) >= 3
    assert all(one.reason if isinstance(one, Unread) else one.doc_id for one in found)


def test_what_the_server_converts_is_sent_whole_and_alone(tmp_path):
    (tmp_path / "a.txt").write_text("words")
    (tmp_path / "b.HTML").write_text("<p>words</p>")
    (tmp_path / "c.pdf").write_bytes(b"%PDF-")
    (tmp_path / "d.docx").write_bytes(b"")
    (tmp_path / "e.pdf").touch()
    os.truncate(tmp_path / "e.pdf", MAX_FILE_BYTES + 1)
    (tmp_path / "f.txt").write_text("words")
    intake = Intake(read_documents(tmp_path))
    batches = [[(one.doc_id, one.file) for one in batch] for batch in intake]
    assert batches == [
        [("b.HTML", tmp_path / "b.HTML")],
        [("c.pdf", tmp_path / "c.pdf")],
        [("a.txt", None), ("f.txt", None)],
    ]
    assert intake.unread == [
        Unread("d.docx", "empty", failed=False),
        Unread("e.pdf", "larger than 100 MB", failed=True),
    ]
