"""Connects to a database at several hosts: one that does not answer must not hide the others."""

import asyncio
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import asyncpg

HOST_SECONDS = 0.8
"""For each host: two of them fit into the time that a search waits for a connection."""
DEFAULT_PORT = 5432

_first: dict[str, int] = {}
"""By address, the host to ask first: the one that answered last, else the next one."""


async def connect(dsn: str, **options: Any) -> Any:
    """A connection as `asyncpg.connect` makes it; the host that answered last is asked first."""
    hosts = hosts_of(dsn)
    if len(hosts) < 2:
        return await asyncpg.connect(dsn, **options)
    first = _first.get(dsn, 0)
    failure: Exception | None = None
    for at in range(first, first + len(hosts)):
        host, port = hosts[at % len(hosts)]
        _first[dsn] = (at + 1) % len(hosts)
        try:
            async with asyncio.timeout(HOST_SECONDS):
                connection = await asyncpg.connect(dsn, host=host, port=port, **options)
        except (OSError, asyncpg.PostgresError, asyncpg.InternalClientError) as error:
            failure = error
        else:
            _first[dsn] = at % len(hosts)
            return connection
    assert failure is not None
    raise failure


def hosts_of(dsn: str) -> list[tuple[str, int]]:
    """Hosts and ports of an address; none where the environment says what is missing."""
    url = urlsplit(dsn)
    given = parse_qs(url.query)
    if "host" in given:
        names = given["host"][0].split(",")
        ports = given.get("port", [str(DEFAULT_PORT)])[0].split(",")
        ports = ports * len(names) if len(ports) == 1 else ports
        return [(name, int(port)) for name, port in zip(names, ports, strict=True)]
    places = url.netloc.rpartition("@")[2]
    return [_split(place) for place in places.split(",") if place]


def _split(place: str) -> tuple[str, int]:
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, str(DEFAULT_PORT)
    return unquote(host.strip("[]")), int(port)
