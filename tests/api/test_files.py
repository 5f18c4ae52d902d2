"""Files over HTTP: sent, converted by the worker, found; bad ones fail by name, alone."""

import json
import random
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from litestar import Litestar
from support.api import new_collection, new_key, pointers, problem
from support.made_files import archive, docx, encrypted_pdf, paragraph, pdf

from service.cli.client import Api
from service.cli.index import index_path
from service.cli.jobs import Failure

PATH = "/v1/collections/docs/files"
GUIDE = "# Keys\n\nHow to rotate a key.\n\n## Expiry\n\nKeys expire after a year.\n"


@pytest.fixture(autouse=True)
async def docs(client: httpx.AsyncClient) -> None:
    await new_collection(client, "docs", embedding={"provider": "local"})


async def sent(
    client: httpx.AsyncClient, *files: tuple[str, bytes], **fields: str
) -> dict[str, Any]:
    parts = [("file", file) for file in files]
    response = await client.post(f"{PATH}?wait=true", files=parts, data=fields)
    assert response.status_code == 202, response.text
    job: dict[str, Any] = response.json()
    return job


async def hits(client: httpx.AsyncClient, text: str) -> list[dict[str, Any]]:
    body = {"query": {"text": text}, "mode": "text"}
    response = await client.post("/v1/collections/docs/search", json=body)
    found: list[dict[str, Any]] = response.json()["hits"]
    return found


async def test_files_of_every_kind_are_found_with_title_and_source(
    client: httpx.AsyncClient,
) -> None:
    job = await sent(
        client,
        ("guide.md", GUIDE.encode()),
        ("limits.html", b"<title>Limits</title><h1>Bounds</h1><p>quotas of tenants</p>"),
        ("manual.pdf", pdf(["installing turbines"], title="The manual")),
        ("letter.docx", docx(paragraph("Greetings", "Heading1") + paragraph("dear gardeners"))),
        ("notes.txt", "schöne Grüße".encode("utf-16")),
        ("tools.py", b"def measure_voltage():\n    return 230\n"),
    )
    assert job["status"] == "done", job
    assert job["counts"] == {"documents": 6, "indexed": 6, "failed": 0, "superseded": 0}
    for words, doc_id, title in (
        ("expire", "guide.md", "Keys"),
        ("quotas", "limits.html", "Limits"),
        ("turbines", "manual.pdf", "The manual"),
        ("gardeners", "letter.docx", "Greetings"),
        ("Grüße", "notes.txt", "notes.txt"),
        ("measure_voltage", "tools.py", "tools.py"),
    ):
        (hit,) = await hits(client, words)
        assert (hit["doc_id"], hit["title"], hit["source"]) == (doc_id, title, doc_id)


async def test_a_hit_points_into_the_text_of_its_file(client: httpx.AsyncClient) -> None:
    await sent(client, ("guide.md", GUIDE.encode()))
    (hit,) = await hits(client, "expire")
    assert hit["text"] == GUIDE[hit["start"] : hit["end"]]
    assert hit["headings"] == ["Keys"]


async def test_one_file_may_be_filed_as_the_client_says(client: httpx.AsyncClient) -> None:
    await sent(
        client,
        ("guide.md", GUIDE.encode()),
        doc_id="handbook/keys",
        title="On keys",
        source="https://docs.example.com/keys",
        metadata=json.dumps({"area": "security"}),
    )
    (hit,) = await hits(client, "expire")
    assert (hit["doc_id"], hit["title"]) == ("handbook/keys", "On keys")
    assert hit["source"] == "https://docs.example.com/keys"
    assert hit["metadata"] == {"area": "security"}


async def test_a_file_sent_again_replaces_its_document(client: httpx.AsyncClient) -> None:
    await sent(client, ("a.txt", b"about apples"))
    await sent(client, ("a.txt", b"about oranges"))
    assert await hits(client, "apples") == []
    assert len(await hits(client, "oranges")) == 1


async def test_bad_files_fail_by_name_and_the_rest_is_indexed(client: httpx.AsyncClient) -> None:
    chance = random.Random(5)
    words = " ".join(f"{chance.getrandbits(32):08x}" for _ in range(4_000))
    job = await sent(
        client,
        ("empty.txt", b""),
        ("scan.pdf", pdf([""])),
        ("closed.pdf", encrypted_pdf()),
        ("bomb.docx", archive({"word/document.xml": b"0" * 210_000_000})),
        ("page.html", b"<script>steal()</script><p>harmless words</p>"),
        ("words.txt", words.encode()),
        ("token.txt", b"a" * 3_000),
    )
    assert job["status"] == "done"
    assert job["counts"] == {"documents": 7, "indexed": 3, "failed": 4, "superseded": 0}
    failures = {one["doc_id"]: one["reason"] for one in job["failures"]}
    assert failures == {
        "empty.txt": "empty.txt: holds no text",
        "scan.pdf": "scan.pdf: has no text on its 1 pages: a scan needs text recognition first",
        "closed.pdf": "closed.pdf: is encrypted",
        "bomb.docx": "bomb.docx: expands to more than 200 MB",
    }
    assert await hits(client, "steal") == []
    assert len(await hits(client, "harmless")) == 1
    assert len(await hits(client, words.split()[1_234])) == 1


async def test_a_job_whose_every_file_fails_ends_with_an_error(client: httpx.AsyncClient) -> None:
    job = await sent(client, ("a.pdf", b"no pdf"))
    assert job["status"] == "error"


@pytest.mark.parametrize(
    ("files", "fields", "pointer"),
    [
        ([], {}, "/file"),
        ([("a.txt", b"x"), ("a.txt", b"y")], {}, "/file/1"),
        ([("a.txt", b"x"), ("b.txt", b"y")], {"doc_id": "both"}, "/doc_id"),
        ([("a.txt", b"x")], {"metadata": "[1]"}, "/metadata"),
        ([("a.txt", b"x")], {"language": "klingon"}, "/language"),
        ([("a.txt", b"x")], {"colour": "red"}, "/colour"),
        ([("..", b"x")], {}, "/file/0/doc_id"),
        ([("x" * 600, b"x")], {}, "/file/0/doc_id"),
    ],
)
async def test_what_is_wrong_with_a_form_is_named(
    client: httpx.AsyncClient, files: list[tuple[str, bytes]], fields: dict[str, str], pointer: str
) -> None:
    parts = [("file", file) for file in files] or [("title", (None, b"1"))]
    response = await client.post(PATH, files=parts, data=fields)
    assert response.status_code == 400, response.text
    assert pointer in pointers(response)


async def test_a_body_that_is_no_form_is_refused(client: httpx.AsyncClient) -> None:
    for headers, body in (
        ({"content-type": "application/json"}, b"{}"),
        ({"content-type": "multipart/form-data"}, b"no boundary"),
        ({"content-type": "multipart/form-data; boundary=x"}, b"--x\r\nbroken"),
    ):
        response = await client.post(PATH, content=body, headers=headers)
        problem(response, 400)


def part(disposition: bytes, content: bytes = b"words", headers: bytes = b"") -> bytes:
    head = b"--x\r\nContent-Disposition: form-data; " + disposition + b"\r\n" + headers
    return head + b"\r\n" + content + b"\r\n"


FILE = part(b'name="file"; filename="a.txt"')


@pytest.mark.parametrize(
    ("form", "pointer", "reason"),
    [
        (part(b'name="file"'), "/file/0", "must be a file: its part needs a filename"),
        (FILE + part(b'filename="b.txt"'), "/", "unknown field"),
        (FILE + part(b'name="title"') * 2, "/title", "is there more than once"),
        (FILE + part(b'name="title"; filename="t"'), "/title", "must be text"),
        (FILE + part(b'name="' + b"n" * 300 + b'"'), "/" + "n" * 200, "unknown field"),
        (FILE + part(b'name="title"', b"\xff\xfe"), None, "charset of its part"),
        (
            FILE + part(b'name="title"', b"t", b"Content-Type: text/plain; charset=no\r\n"),
            None,
            "ch",
        ),
        (FILE * 1_001, None, "more than 1000 parts"),
        (part(b'name="file"; filename="' + b"n" * 5_000 + b'"'), None, "more than 4096 bytes"),
        (FILE[:-4], None, "complete multipart/form-data"),
    ],
)
async def test_a_form_that_is_put_together_wrongly_is_told_what_is_wrong(
    client: httpx.AsyncClient, form: bytes, pointer: str | None, reason: str
) -> None:
    end = b"" if form == FILE[:-4] else b"--x--\r\n"
    headers = {"content-type": "multipart/form-data; boundary=x"}
    response = await client.post(PATH, content=form + end, headers=headers)
    found = problem(response, 400)
    assert reason in found["detail"]
    assert pointer is None or pointers(response) == [pointer]


async def test_more_than_100_mb_are_refused(client: httpx.AsyncClient) -> None:
    response = await client.post(
        PATH,
        content=b"",
        headers={"content-type": "multipart/form-data; boundary=x", "content-length": "200000000"},
    )
    problem(response, 413)
    assert "101 MB" in response.text


async def test_a_key_for_searching_may_not_send_files(client: httpx.AsyncClient) -> None:
    key = await new_key(client, "search")
    response = await client.post(PATH, files={"file": ("a.txt", b"x")}, headers=key)
    assert response.status_code == 403


async def test_braid_index_sends_files_that_need_converting_as_they_are(
    app: Litestar, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    await new_collection(client, "folder")
    (tmp_path / "page.html").write_text("<h1>Owls</h1><p>hoot</p><script>secret()</script>")
    (tmp_path / "notes.md").write_text("# Cats\n\npurr")
    (tmp_path / "broken.pdf").write_bytes(b"no document")
    api = Api("http://braid", None)
    api._client = client
    report = await index_path(api, "folder", tmp_path)
    assert (report.indexed, report.failures) == (
        2,
        [Failure("broken.pdf", "broken.pdf: is no PDF file")],
    )
    page = (await client.get("/v1/collections/folder/documents/page.html")).json()
    assert [chunk["text"] for chunk in page["chunks"]] == ["# Owls\n\nhoot"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [("files", "multipart/form-data; boundary=x"), ("documents", "application/json")],
)
async def test_a_client_that_leaves_in_the_middle_of_a_body_leaves_nothing(
    app: Litestar, client: httpx.AsyncClient, path: str, kind: str
) -> None:
    url = f"/v1/collections/docs/{path}"
    headers = {**client.headers, "content-type": kind, "content-length": "1000"}
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": url,
        "raw_path": url.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1),
        "server": ("braid", 80),
    }
    messages = [
        {"type": "http.request", "body": FILE, "more_body": True},
        {"type": "http.disconnect"},
    ]
    answers: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if len(messages) > 1 else messages[0]

    async def send(message: Any) -> None:
        answers.append(message)

    await app(cast(Any, scope), receive, send)
    assert answers[0]["status"] == 400
    assert b"the client left" in answers[1]["body"]
    assert (await client.get("/v1/collections/docs/jobs")).json()["total"] == 0
