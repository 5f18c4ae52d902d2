"""Which addresses providers may be called at: their own, and those that the operator allows."""

import re
from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

import msgspec

from service.errors import ConfigurationError

DEFAULT_PORTS = {"http": 80, "https": 443}
MAX_CHARACTERS = 2048
UNFIT = re.compile(r"[\x00-\x20\x7f-\U0010ffff\\]")
HOST_NAME = re.compile(r"[a-z0-9_.-]+")
ENCODED = re.compile(r"%(?:2e|2f|5c)", re.IGNORECASE)


class Address(msgspec.Struct, frozen=True):
    """A parsed base URL; `port` None means any, in an entry of the allow-list only."""

    scheme: str
    host: str
    port: int | None
    path: str

    def allows(self, other: "Address") -> bool:
        """Whether the other is at this place or below it."""
        return (
            self.scheme == other.scheme
            and self.host == other.host
            and self.port in (None, other.port)
            and (other.path == self.path or other.path.startswith(self.path.rstrip("/") + "/"))
        )

    @property
    def url(self) -> str:
        """The address in its one spelling, without a slash at the end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


def parse_address(url: str) -> Address:
    """Parse a base URL; raises `ValueError` with the reason when it is not a plain one."""
    return _parse(url, any_port=False)


def parse_allowed(listed: str) -> tuple[Address, ...]:
    """The entries of `BRAID_ALLOWED_BASE_URLS`; raises `ConfigurationError`."""
    entries = [entry.strip() for entry in listed.split(",") if entry.strip()]
    try:
        return tuple(_parse(entry, any_port=True) for entry in entries)
    except ValueError as error:
        raise ConfigurationError(f"BRAID_ALLOWED_BASE_URLS: {error}") from error


def is_allowed(address: Address, allowed: Iterable[Address]) -> bool:
    """Whether an entry covers the address."""
    return any(entry.allows(address) for entry in allowed)


def _parse(url: str, *, any_port: bool) -> Address:
    if len(url) > MAX_CHARACTERS:
        raise ValueError(f"must have at most {MAX_CHARACTERS} characters")
    if UNFIT.search(url):
        raise ValueError("must be ASCII without spaces, control characters and backslashes")
    if any_port and (wild := re.fullmatch(r"(https?://[^/*]+):\*(/[^*]*)?", url)):
        plain = _parse(wild[1] + (wild[2] or ""), any_port=False)
        return msgspec.structs.replace(plain, port=None)
    parts = urlsplit(url)
    _check(url, parts)
    # `.hostname` and `.port` raise ValueError for what is none.
    host = (parts.hostname or "").rstrip(".")
    if not HOST_NAME.fullmatch(host) and ":" not in host:
        raise ValueError("must name a host")
    port = parts.port or DEFAULT_PORTS[parts.scheme]
    return Address(parts.scheme, host, port, parts.path.rstrip("/"))


def _check(url: str, parts: SplitResult) -> None:
    if parts.scheme not in DEFAULT_PORTS:
        raise ValueError("must begin with https:// or http://")
    if "@" in parts.netloc:
        raise ValueError("must hold no user name or password")
    if "?" in url or "#" in url:
        raise ValueError("must have no query and no fragment")
    if ENCODED.search(url) or "%" in parts.netloc:
        raise ValueError("must not hide dots, slashes or backslashes")
    segments = parts.path.split("/")[1:]
    if {".", ".."} & set(segments) or "" in segments[:-1]:
        raise ValueError("must have a plain path")
