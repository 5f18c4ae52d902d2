"""How a model is asked about the chunks of a document: in which order, with what, how often."""

import asyncio
from collections.abc import Hashable, Iterator

import pytest
import stamina

from service.errors import CallTooLargeError, ProviderError
from service.indexing import situating
from service.indexing.context import window_start
from service.indexing.situating import Situated, Wish, Wishes, situate
from service.providers.base import ContextUsage, Header, Passage


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(situating, "SETTLE_SECONDS", 0.0)
    stamina.set_testing(True, attempts=2)
    yield
    stamina.set_testing(False)


class Model:
    """Remembers documents after a number of calls, and fails as it is told to."""

    def __init__(self, *, readable_after: int = 1, window: int = 10**9) -> None:
        self.readable_after = readable_after
        self.window = window
        self.fail_with: dict[str, ProviderError] = {}
        self.asked: list[tuple[str, str, bool]] = []
        self.together = self.most_together = 0

    async def situate(self, passage: Passage, *, cached: bool) -> Header:
        self.asked.append((passage.text, passage.document, cached))
        self.together += 1
        self.most_together = max(self.most_together, self.together)
        await asyncio.sleep(0)
        self.together -= 1
        if len(passage.document) > self.window:
            raise CallTooLargeError("too long")
        if error := self.fail_with.get(passage.text):
            raise error
        reads = len(self.asked) > self.readable_after
        usage = ContextUsage(cache_read=9) if reads else ContextUsage(cache_write=9)
        return Header(f"on {passage.text}", usage if cached else ContextUsage(input=9))


def wishes(count: int, *, size: int = 10) -> Wishes:
    texts = [f"c{at}".ljust(size, ".") for at in range(count)]
    chunks = [Wish(at, text, at * size, (at + 1) * size) for at, text in enumerate(texts)]
    return Wishes("doc", "".join(texts), None, chunks)


async def asked(model: Model, *documents: Wishes) -> Situated:
    kept: dict[Hashable, str] = {}

    async def keep(key: Hashable, header: Header) -> None:
        kept[key] = header.text

    situated = await situate(model, documents, keep)
    assert kept == situated.headers
    return situated


async def test_the_first_chunk_goes_alone_and_the_others_follow_once_the_cache_answers() -> None:
    model = Model(readable_after=2)
    situated = await asked(model, wishes(8))
    assert [text.strip(".") for text, _, _ in model.asked[:3]] == ["c0", "c1", "c2"]
    assert situated.headers[7] == f"on {'c7'.ljust(10, '.')}"
    assert model.most_together == 5
    assert all(cached for _, _, cached in model.asked)


async def test_one_chunk_alone_writes_nothing_to_the_cache() -> None:
    model = Model()
    await asked(model, wishes(1))
    assert [cached for _, _, cached in model.asked] == [False]


async def test_each_chunk_of_a_long_document_is_seen_with_what_is_around_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(situating, "WINDOW_TOKENS", 100)
    document = wishes(100)
    model = Model(readable_after=0)
    await asked(model, document)
    windows = {part for _, part, _ in model.asked}
    assert max(map(len, windows)) <= 400
    assert len(windows) == 4
    for at, wish in enumerate(document.chunks):
        part = next(part for text, part, _ in model.asked if text == wish.text)
        begin = document.text.index(part) if at else 0
        assert begin <= max(0, wish.start - 90)
        assert begin + len(part) >= min(len(document.text), wish.end + 90)


async def test_a_document_that_the_model_finds_too_long_is_shown_in_smaller_parts() -> None:
    model = Model(readable_after=0, window=100_000)
    situated = await asked(model, wishes(20, size=12_000))
    assert len(situated.headers) == 20
    assert max(len(part) for text, part, _ in model.asked[1:] if text) <= 320_000
    assert situated.failures == {}


async def test_a_model_out_of_reach_is_not_asked_about_every_chunk() -> None:
    model = Model(readable_after=0)
    document = wishes(50)
    for wish in document.chunks[1:]:
        model.fail_with[wish.text] = ProviderError("down", transient=True)
    situated = await asked(model, document)
    assert list(situated.headers) == [0]
    assert len(situated.failures) == 49
    assert len(model.asked) < 110
    documents = [Wishes(f"d{at}", one.text, None, one.chunks) for at, one in enumerate([document])]
    model.asked.clear()
    model.fail_with[document.chunks[0].text] = ProviderError("no such key")
    assert len((await asked(model, *documents)).failures) == 50
    assert len(model.asked) == 1


@pytest.mark.parametrize(
    ("start", "end", "begin"),
    [(0, 10, 0), (95, 105, 50), (490, 500, 400), (140, 150, 100)],
)
def test_windows_begin_half_a_window_apart(start: int, end: int, begin: int) -> None:
    assert window_start(500, 100, start, end) == begin
    assert window_start(80, 100, start, end) == 0
