"""What surrounds the hits: all of it for all hits in one statement, and the right rows."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from asyncpg.connection import LoggedQuery
from litestar import Litestar
from support.searching import chunk, document, filled, ids, search

from service.db.pool import Connection

DOCUMENTS, CHUNKS = 4, 7
EVERYTHING = {"siblings_topk": 3, "neighbours": 2, "summary": True}


@pytest.fixture
async def books(client: httpx.AsyncClient) -> None:
    made = [
        document(
            f"d{book}",
            *(chunk(f"d{book}-{n}", f"part {n}", [1, n / 10, book / 10]) for n in range(CHUNKS)),
            **({"summary": f"book {book}"} if book else {}),
        )
        for book in range(DOCUMENTS)
    ]
    await filled(client, "books", made)


@pytest.fixture
def statements(app: Litestar, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement of a reading session, as it is sent."""
    seen: list[str] = []
    database = app.state.services.database
    read = database.read

    def note(query: LoggedQuery) -> None:
        seen.append(query.query)

    @contextlib.asynccontextmanager
    async def logged(*arguments: Any, **options: Any) -> AsyncIterator[Connection]:
        async with read(*arguments, **options) as connection:
            with connection.query_logger(note):
                yield connection

    monkeypatch.setattr(database, "read", logged)
    return seen


async def ask(client: httpx.AsyncClient, k: int, **expand: Any) -> dict[str, Any]:
    query = {"vector": [1, 0.3, 0.1]}
    return await search(client, "books", query=query, mode="vector", k=k, expand=expand)


@pytest.mark.usefixtures("books")
@pytest.mark.parametrize("expand", [EVERYTHING, {"siblings_all": True}, {"summary": True}])
async def test_expansion_costs_one_statement_however_many_hits(
    client: httpx.AsyncClient, statements: list[str], expand: dict[str, Any]
) -> None:
    costs = []
    for k, wanted in ((1, {}), (1, expand), (20, expand)):
        statements.clear()
        answer = await ask(client, k, **wanted)
        assert len(answer["hits"]) == k
        costs.append(len([one for one in statements if "braid.searchable" in one]))
    assert costs == [costs[0], costs[0] + 1, costs[0] + 1]


@pytest.mark.usefixtures("books")
async def test_each_hit_gets_what_surrounds_it(client: httpx.AsyncClient) -> None:
    answer = await ask(client, DOCUMENTS * CHUNKS, **EVERYTHING)
    assert len(answer["hits"]) == DOCUMENTS * CHUNKS
    ranked = ids(answer)
    for hit in answer["hits"]:
        book, n = hit["doc_id"], hit["position"]
        around = [at for at in range(n - 2, n + 3) if at != n and 0 <= at < CHUNKS]
        # Siblings are ordered as the query orders the whole document.
        others = [one for one in ranked if one.startswith(book) and one != hit["id"]]
        expansion = hit["expansion"]
        assert [one["id"] for one in expansion["neighbours"]] == [f"{book}-{at}" for at in around]
        assert [one["id"] for one in expansion["siblings"]] == others[:3]
        summary = expansion["summary"]
        assert (summary and summary["text"]) == (None if book == "d0" else f"book {book[1:]}")
