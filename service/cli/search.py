"""`braid search`: asks a collection and shows the ranked hits."""

import asyncio
from typing import Any

import msgspec

from service.cli.client import NOT_FOUND, AnswerError, open_api
from service.cli.console import CommandError, out, write
from service.cli.jobs import collection_path
from service.cli.parser import Arguments
from service.cli.render import render
from service.search.response import SearchResponse


def run(arguments: Arguments) -> int:
    """Search and show; status 0 also when nothing was found."""
    answer = asyncio.run(_ask(arguments))
    if arguments.json:
        write(msgspec.json.format(answer).decode())
        return 0
    found = msgspec.json.decode(answer, type=SearchResponse)
    for part in render(found, arguments.query, explain=arguments.explain):
        out.print(part)
    return 0


async def _ask(arguments: Arguments) -> bytes:
    body = search_body(arguments)
    async with open_api() as api:
        path = collection_path(arguments.collection) + "/search"
        try:
            return await api.call("POST", path, msgspec.json.encode(body))
        except AnswerError as error:
            if error.status != NOT_FOUND:
                raise
            raise CommandError(
                f"{error} {arguments.collection}: fill one with `braid index PATH`"
            ) from error


def search_body(arguments: Arguments) -> dict[str, Any]:
    """The request that the command line asks for; the table needs the ranks of the legs."""
    body: dict[str, Any] = {
        "query": {"text": arguments.query},
        "k": arguments.k,
        "group_by": arguments.group_by,
        "explain": arguments.explain or not arguments.json,
    }
    if arguments.mode:
        body["mode"] = arguments.mode
    if arguments.filter is not None:
        body["filter"] = arguments.filter
    return body
