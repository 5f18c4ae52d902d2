"""How the command line finds a server and a key, and what it says when either fails."""

import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import httpx
import pytest

from service.cli.client import AnswerError, Api, is_local, open_api
from service.cli.console import CommandError
from service.cli.rootkey import (
    FILE_NAME,
    SECRET_FILE_NAME,
    ensure_root_key,
    ensure_secret_key,
    read_root_key,
)
from service.sealing import parse_keys


class Handler(BaseHTTPRequestHandler):
    """Answers what the path says: /STATUS/BODY."""

    seen: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        self.seen.append({name.lower(): value for name, value in self.headers.items()})
        _, status, body = self.path.split("/", 2)
        content = {"problem": b'{"detail": "unknown collection"}', "html": b"<p>"}.get(body, b"{}")
        self.send_response(int(status))
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    Handler.seen.clear()
    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def failure(url: str, path: str, key: str | None = "k" * 16) -> str:
    async with Api(url, key) as api:
        with pytest.raises(CommandError) as raised:
            await api.get(path)
    return str(raised.value)


async def test_key_and_team_are_sent(url):
    async with Api(url, "k" * 16, team="blue") as api:
        assert await api.get("/200/ok") == {}
    assert Handler.seen[0]["x-api-key"] == "k" * 16
    assert Handler.seen[0]["x-team"] == "blue"


async def test_a_problem_is_told_in_the_servers_own_words(url):
    async with Api(url, None) as api:
        with pytest.raises(AnswerError, match=r"^unknown collection$") as raised:
            await api.get("/404/problem")
    assert raised.value.status == 404


async def test_what_is_no_braid_server_is_said_so(url):
    assert await failure(url, "/502/html") == f"{url} answered 502: is that a braid server?"


async def test_a_missing_key_is_said_so(url):
    assert await failure(url, "/401/problem", key=None) == f"{url} wants a key: set BRAID_API_KEY"


async def test_no_server_is_said_so_with_the_remedy():
    said = await failure("http://127.0.0.1:9", "/")
    assert said == "no server at http://127.0.0.1:9: start one with `braid up`"


@pytest.mark.parametrize("wrong", ["ftp://x", "no address", "http://", "http://[::1"])
async def test_an_address_that_is_none_is_one_line(wrong):
    with pytest.raises(CommandError):
        await Api(wrong, None).get("/")


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("http://127.0.0.1:8000", True),
        ("http://localhost:8000", True),
        ("http://[::1]:8000", True),
        ("http://127.0.0.1.example.org", False),
        ("https://braid.example.org", False),
        ("http://localhost.example.org", False),
        ("nonsense", False),
    ],
)
def test_servers_on_this_machine_are_told_from_others(url, local):
    assert is_local(url) is local


def sent_key(api: Api) -> str | None:
    return api._client.headers.get("x-api-key")


@pytest.fixture
def kept(tmp_path, monkeypatch) -> str:
    for name in ("BRAID_API_KEY", "BRAID_ROOT_API_KEY", "BRAID_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BRAID_DATA_DIR", str(tmp_path))
    return ensure_root_key(tmp_path)


async def test_the_kept_root_key_is_for_servers_on_this_machine_only(kept, monkeypatch):
    assert sent_key(open_api()) == kept
    monkeypatch.setenv("BRAID_URL", "https://braid.example.org")
    assert sent_key(open_api()) is None


async def test_a_given_key_goes_before_the_kept_one(kept, monkeypatch):
    monkeypatch.setenv("BRAID_ROOT_API_KEY", "r" * 16)
    assert sent_key(open_api()) == "r" * 16
    monkeypatch.setenv("BRAID_API_KEY", "a" * 16)
    assert sent_key(open_api()) == "a" * 16


def test_the_root_key_is_made_once_and_is_for_its_owner_only(tmp_path):
    folder = tmp_path / "new" / "place"
    assert read_root_key(folder) is None
    key = ensure_root_key(folder)
    assert ensure_root_key(folder) == read_root_key(folder) == key
    secret = ensure_secret_key(folder)
    assert ensure_secret_key(folder) == secret != key
    assert (folder / SECRET_FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert parse_keys(secret) == [secret]
    assert stat.S_IMODE((folder / FILE_NAME).stat().st_mode) == 0o600
    assert ensure_root_key(tmp_path) != key


def test_a_folder_that_cannot_hold_the_key_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CommandError, match="cannot keep a key in"):
        ensure_root_key(tmp_path / "file")


def test_loopback_is_never_asked_through_a_proxy(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert Api("http://127.0.0.1:8000", None)._client.trust_env is False
    assert isinstance(Api("http://braid.example.org", None)._client, httpx.AsyncClient)
