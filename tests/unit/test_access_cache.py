"""What is remembered of keys and collections, and when it counts no more."""

import math

import pytest

from service.api.access_cache import MAX_AGE_SECONDS, AccessCache, Asked
from service.db.changes import DEAF_SECONDS, Changes
from service.db.keys import Access
from service.models import Collection, Generation, Principal, SearchDefaults

ASKED: Asked = (b"hash", "docs")
GENERATION = Generation(
    1, 1, 1, "none", None, 3, None, "simple", "language", 512, 64, 1.2, 0.75, 8000, 100.0
)
COLLECTION = Collection(1, 1, "docs", SearchDefaults(), GENERATION)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Table:
    """The database as the cache sees it: an answer, and how often it was asked."""

    def __init__(self, access: Access | None) -> None:
        self.access = access
        self.asked = 0

    async def look_up(self) -> Access | None:
        self.asked += 1
        return self.access


class Hearing(Changes):
    """Changes whose hearing the test decides."""

    def hear_until(self, moment: float) -> None:
        self._current_until = moment


def access(
    *, collection: Collection | None = COLLECTION, unused: int | None = None, left: float = math.inf
) -> Access:
    return Access(Principal(1, frozenset(("search",))), "default", collection, unused, left)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def changes(clock: Clock) -> Hearing:
    changes = Hearing("unused", clock)
    changes.hear_until(clock.now + 10_000)
    return changes


@pytest.fixture
def cache(changes: Hearing, clock: Clock) -> AccessCache:
    return AccessCache(changes, clock)


async def test_an_access_is_looked_up_once(cache: AccessCache) -> None:
    table = Table(access())
    for _ in range(3):
        assert await cache.get(ASKED, table.look_up) is table.access
    assert table.asked == 1


async def test_a_change_makes_it_look_again(cache: AccessCache, changes: Hearing) -> None:
    table = Table(access())
    await cache.get(ASKED, table.look_up)
    table.access = None
    changes._heard()
    assert await cache.get(ASKED, table.look_up) is None


async def test_an_answer_overtaken_by_a_change_is_not_kept(cache: AccessCache) -> None:
    table = Table(access())

    async def overtaken() -> Access | None:
        found = await table.look_up()
        cache.forget()
        return found

    await cache.get(ASKED, overtaken)
    table.access = None
    assert await cache.get(ASKED, table.look_up) is None


async def test_nothing_counts_while_changes_are_not_heard(
    cache: AccessCache, changes: Hearing, clock: Clock
) -> None:
    table = Table(access())
    changes.hear_until(clock.now + DEAF_SECONDS)
    await cache.get(ASKED, table.look_up)
    clock.now += DEAF_SECONDS
    table.access = None
    assert await cache.get(ASKED, table.look_up) is None


async def test_a_key_is_not_remembered_past_its_end(cache: AccessCache, clock: Clock) -> None:
    table = Table(access(left=5.0))
    await cache.get(ASKED, table.look_up)
    clock.now += 4.9
    assert await cache.get(ASKED, table.look_up) is not None
    table.access = None
    clock.now += 0.2
    assert await cache.get(ASKED, table.look_up) is None


async def test_an_access_is_looked_up_about_once_a_minute(cache: AccessCache, clock: Clock) -> None:
    table = Table(access())
    await cache.get(ASKED, table.look_up)
    clock.now += MAX_AGE_SECONDS + 0.1
    await cache.get(ASKED, table.look_up)
    assert table.asked == 2


@pytest.mark.parametrize("found", [None, access(collection=None), access(unused=7)])
async def test_what_may_be_there_the_next_time_is_not_remembered(
    cache: AccessCache, found: Access | None
) -> None:
    table = Table(found)
    await cache.get(ASKED, table.look_up)
    await cache.get(ASKED, table.look_up)
    assert table.asked == 2


async def test_each_key_and_each_collection_has_its_own_access(cache: AccessCache) -> None:
    tables = {
        asked: Table(access(collection=None if asked[1] is None else COLLECTION))
        for asked in (ASKED, (b"other", "docs"), ("default", "docs"), (b"hash", None))
    }
    for _ in range(2):
        for asked, table in tables.items():
            assert await cache.get(asked, table.look_up) is table.access
    assert [table.asked for table in tables.values()] == [1, 1, 1, 1]
