"""Talks to a server over HTTP; every failure is one clear line."""

import ipaddress
import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import httpx
import msgspec

from service.cli.console import CommandError
from service.cli.rootkey import data_dir, read_root_key
from service.settings import Settings, load_settings

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 120.0
NOT_FOUND = 404
CONFLICT = 409


class AnswerError(CommandError):
    """The server refused; its own words, and the status."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Api:
    """The API of the server at `url`, for one key and, with the root key, one team."""

    def __init__(self, url: str, key: str | None, *, team: str | None = None) -> None:
        self.url = url.rstrip("/")
        self._has_key = key is not None
        headers = {"x-api-key": key} if key else {}
        headers |= {"x-team": team} if team else {}
        try:
            self._client = httpx.AsyncClient(
                base_url=self.url,
                headers=headers,
                timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
                # A proxy of the environment has no way to this machine's own servers.
                trust_env=not is_local(self.url),
            )
        except httpx.InvalidURL as error:
            raise CommandError(f"{url} is no address of a server") from error

    async def __aenter__(self) -> "Api":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def get(self, path: str) -> Any:
        """The answer of a GET, decoded."""
        return msgspec.json.decode(await self.call("GET", path))

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer of a POST, decoded."""
        return msgspec.json.decode(await self.call("POST", path, encode(body)))

    async def delete(self, path: str) -> None:
        """A DELETE."""
        await self.call("DELETE", path)

    async def upload(
        self, path: str, name: str, content: bytes, fields: Mapping[str, str]
    ) -> bytes:
        """The answer of a POST of a file as a form."""
        form = httpx.Request("POST", self.url, data=fields, files={"file": (name, content)})
        return await self.call("POST", path, form.read(), form.headers["content-type"])

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        """The body of an answer; raises `AnswerError` and `CommandError`."""
        try:
            response = await self._client.request(
                method, path, content=body, headers={"content-type": content_type}
            )
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise CommandError(f"no server at {self.url}: start one with `braid up`") from error
        except httpx.TimeoutException as error:
            raise CommandError(f"{self.url} did not answer in time") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise CommandError(f"cannot talk to {self.url}: {error}") from error
        if response.is_error:
            raise AnswerError(response.status_code, self._reason(response))
        return response.content

    def _reason(self, response: httpx.Response) -> str:
        if response.status_code == httpx.codes.UNAUTHORIZED and not self._has_key:
            return f"{self.url} wants a key: set BRAID_API_KEY"
        try:
            return str(response.json()["detail"])
        except (ValueError, KeyError, TypeError):
            return f"{self.url} answered {response.status_code}: is that a braid server?"


def open_api(team: str | None = None) -> Api:
    """The server and the key that the settings name.

    Without a key, and for a server on this machine only, the one that `braid up` keeps.
    """
    settings = load_settings()
    return Api(settings.url, _key(settings), team=team)


def _key(settings: Settings) -> str | None:
    for given in (settings.api_key, settings.root_api_key):
        if given is not None:
            return given.get_secret_value()
    return read_root_key(data_dir(settings)) if is_local(settings.url) else None


def is_local(url: str) -> bool:
    """Whether a server is on this machine."""
    try:
        host = httpx.URL(url).host
    except httpx.InvalidURL:
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def encode(body: Any) -> bytes:
    """JSON; lone surrogates, which UTF-8 has no form for, stay escapes."""
    try:
        return msgspec.json.encode(body)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(body)).encode()
