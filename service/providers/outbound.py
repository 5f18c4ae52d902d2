"""Calls to providers over HTTP: one client a process, an account a credential."""

import asyncio
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol
from weakref import WeakValueDictionary

import httpx
import msgspec

from service import __version__
from service.errors import CallTooLargeError, ProviderError, ProviderRefusalError
from service.models import Credential
from service.providers.addresses import Address, is_allowed, parse_address
from service.providers.measured import Prices, calling
from service.providers.registry import REMOTES, remote_kind

Purpose = Literal["index", "search", "rerank"]

OPERATORS_LIST = "BRAID_ALLOWED_BASE_URLS"
MAX_ANSWER_BYTES = 256 * 2**20
CONNECT_SECONDS = 10.0
CALL_SECONDS = 300.0
MAX_RETRY_AFTER = 3600.0
PASSING_STATUS = frozenset((408, 409, 425, 429))
REFUSING_STATUS = {
    401: "the provider refuses the key",
    402: "the provider asks for payment",
    403: "the provider forbids the call",
    404: "the provider knows no such model or address",
}
TOO_LARGE = re.compile(
    r"too many tokens|number of tokens|allowed tokens|token limit|tokens per|max_tokens"
    r"|context length|less than \d+ tokens|too long|too large|batch size",
    re.IGNORECASE,
)
CODE = re.compile(r"[a-z][a-z0-9_]{0,63}")


class CredentialSource(Protocol):
    """Opens the credentials of a team."""

    async def find(self, team_id: int, name: str) -> Credential | None:
        """The team's credential of this name; raises `ProviderError`."""
        ...


class UnknownProviderError(ProviderError):
    """A collection names a provider that its team has not registered."""


class Account:
    """Calls in the name of one credential, bounded with all others of its team."""

    def __init__(self, outbound: "Outbound", credential: Credential, base_url: str) -> None:
        self._outbound = outbound
        self._base_url = base_url
        self.credential = credential

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        purpose: Purpose = "search",
        seconds: float | None = None,
    ) -> bytes:
        """The body of a successful answer; raises `ProviderError`.

        `seconds` bound the call itself, not the wait for a place.
        """
        async with self.place(purpose):
            if purpose == "index":
                self._outbound.respect_pause(self.credential.id)
            if seconds is None:
                return await self.send(method, path, body, purpose=purpose)
            try:
                async with asyncio.timeout(seconds):
                    return await self.send(method, path, body, purpose=purpose)
            except TimeoutError as error:
                raise ProviderError(
                    f"the provider did not answer in {seconds:g} s", transient=True
                ) from error

    def place(self, purpose: Purpose) -> asyncio.Semaphore:
        """The places of the team for calls in flight."""
        return self._outbound.place(self.credential.team_id, purpose)

    def count(self, kind: str, tokens: int) -> None:
        """Count tokens that the provider says it has read or written."""
        self._outbound.prices.count(self.credential.kind, kind, tokens)

    async def send(self, method: str, path: str, body: Any = None, *, purpose: Purpose) -> bytes:
        """The body of a successful answer, without waiting for a place."""
        try:
            with calling(self.credential.kind, purpose) as traced:
                headers = {**self._headers(), **traced}
                return await self._outbound.send(method, self._base_url + path, headers, body)
        except ProviderError as error:
            if error.retry_after is not None:
                self._outbound.pause(self.credential.id, error.retry_after)
            raise

    def _headers(self) -> dict[str, str]:
        secret = self.credential.secret
        if secret is None:
            return {}
        return remote_kind(self.credential.kind).headers(secret.get_secret_value())


class Outbound:
    """The HTTP client, the addresses it may go to, and the calls in flight of each team."""

    def __init__(
        self,
        allowed: Iterable[Address] = (),
        *,
        calls_per_team: int = 8,
        prices: Prices | None = None,
    ) -> None:
        self.allowed = tuple(allowed)
        self.prices = prices or Prices()
        self._calls_per_team = calls_per_team
        self._places: WeakValueDictionary[tuple[int, Purpose], asyncio.Semaphore] = (
            WeakValueDictionary()
        )
        self._pauses: dict[int, float] = {}
        self._client: httpx.AsyncClient | None = None
        self._opening = asyncio.Lock()

    def account(self, credential: Credential, team_id: int) -> Account:
        """The account of a credential, for its own team; raises `ProviderError`."""
        if credential.team_id != team_id:
            raise ProviderRefusalError("the provider belongs to another team")
        return Account(self, credential, self._address(credential))

    def _address(self, credential: Credential) -> str:
        if credential.kind not in REMOTES:
            return ""
        if credential.base_url is None:
            return remote_kind(credential.kind).base_url
        try:
            address = parse_address(credential.base_url)
        except ValueError as error:
            raise ProviderRefusalError("the provider's address is no longer valid") from error
        if not is_allowed(address, self.allowed):
            raise ProviderRefusalError(f"the provider's address is not in {OPERATORS_LIST}")
        return address.url

    def place(self, team_id: int, purpose: Purpose) -> asyncio.Semaphore:
        """A team's places for calls in flight; indexing never takes those of searches."""
        key = (team_id, purpose)
        places = self._places.get(key)
        if places is None:
            places = self._places[key] = asyncio.Semaphore(self._calls_per_team)
        return places

    def pause(self, credential_id: int, seconds: float) -> None:
        """Let indexing make no call in the name of a credential for a while."""
        self._pauses[credential_id] = time.monotonic() + seconds

    def respect_pause(self, credential_id: int) -> None:
        """Raise `ProviderError` with the rest of a pause, if there is one."""
        left = self._pauses.get(credential_id, 0.0) - time.monotonic()
        if left > 0:
            raise ProviderError(
                "the provider asked for a pause", transient=True, retry_after=round(left, 3)
            )

    async def send(self, method: str, url: str, headers: Mapping[str, str], body: Any) -> bytes:
        """Send one request and read its answer; nothing is repeated and no redirect followed."""
        content = None if body is None else msgspec.json.encode(body)
        if content is not None:
            headers = {**headers, "Content-Type": "application/json"}
        try:
            client = await self.open()
            async with client.stream(method, url, headers=headers, content=content) as response:
                answer = await _read(response)
        except httpx.HTTPError as error:
            raise ProviderError(
                f"the provider does not answer: {type(error).__name__}", transient=True
            ) from None
        except httpx.InvalidURL:
            raise ProviderRefusalError("the provider's address is not valid") from None
        if response.is_success:
            return answer
        raise failure(response.status_code, response.headers, answer)

    async def open(self) -> httpx.AsyncClient:
        """The client; loading the certificates of its first use takes a while."""
        async with self._opening:
            if self._client is None:
                self._client = await asyncio.to_thread(_new_client)
        return self._client

    async def close(self) -> None:
        """Close every connection."""
        if self._client is not None:
            await self._client.aclose()


def _new_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(
        timeout=httpx.Timeout(CALL_SECONDS, connect=CONNECT_SECONDS),
        limits=httpx.Limits(max_connections=256, max_keepalive_connections=64),
        headers={"User-Agent": f"braid/{__version__}"},
        follow_redirects=False,
    )


class Accounts:
    """The accounts that a team's collections may use, by the name of the provider."""

    def __init__(self, credentials: CredentialSource, outbound: Outbound) -> None:
        self._credentials = credentials
        self._outbound = outbound

    async def find(self, team_id: int, name: str) -> Account:
        """The account of a registered provider; raises `ProviderError`."""
        credential = await self._credentials.find(team_id, name)
        if credential is None:
            raise UnknownProviderError("no provider of this name is registered", transient=True)
        return self._outbound.account(credential, team_id)


async def _read(response: httpx.Response) -> bytes:
    answer = bytearray()
    async for part in response.aiter_bytes():
        answer += part
        if len(answer) > MAX_ANSWER_BYTES:
            raise ProviderError("the provider's answer is too large")
    return bytes(answer)


def failure(status: int, headers: Mapping[str, str], answer: bytes) -> ProviderError:
    """What an error answer means; its own words stay out, for they may quote a text or a key."""
    code = _code(answer)
    if status in REFUSING_STATUS:
        return ProviderRefusalError(REFUSING_STATUS[status] + code)
    if status in PASSING_STATUS or status >= 500:
        reason = "the provider is busy" if status == 429 else f"the provider answers {status}"
        return ProviderError(reason + code, transient=True, retry_after=_retry_after(headers))
    if status == 413 or TOO_LARGE.search(answer[:4096].decode("utf-8", "replace")):
        return CallTooLargeError("the text is too long for the provider")
    return ProviderError(f"the provider answers {status}{code}")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    try:
        seconds = float(headers.get("retry-after", ""))
    except ValueError:
        return None
    return min(seconds, MAX_RETRY_AFTER) if seconds >= 0 else None


def _code(answer: bytes) -> str:
    """The error's code, when it is nothing but a name."""
    try:
        body = msgspec.json.decode(answer[:65_536])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    error = body.get("error") if isinstance(body, dict) else None
    named = [error.get("code"), error.get("type")] if isinstance(error, dict) else []
    for name in named:
        if isinstance(name, str) and CODE.fullmatch(name):
            return f" ({name})"
    return ""
