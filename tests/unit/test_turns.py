"""Ordinary work side by side, suspicious work alone."""

import asyncio

from service.indexing.turns import Turns


class Room:
    """Notes who was there together with whom."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.inside: set[str] = set()
        self.seen: list[set[str]] = []

    async def visit(self, name: str, *, alone: bool) -> None:
        async with self.turns.take(alone=alone):
            self.inside.add(name)
            for _ in range(3):
                self.seen.append(set(self.inside))
                await asyncio.sleep(0)
            self.inside.remove(name)


async def test_whoever_asks_to_be_alone_is_alone() -> None:
    room = Room()
    async with asyncio.TaskGroup() as group:
        for number in range(20):
            alone = number % 4 == 0
            name = f"{'alone' if alone else 'beside'} {number}"
            group.create_task(room.visit(name, alone=alone))
    together = [seen for seen in room.seen if any(name.startswith("alone") for name in seen)]
    assert together
    assert all(len(seen) == 1 for seen in together)
    assert max(map(len, room.seen)) > 1


async def test_whoever_gives_up_waiting_blocks_nobody() -> None:
    room = Room()
    async with room.turns.take(alone=False):
        waiting = asyncio.create_task(room.visit("alone", alone=True))
        await asyncio.sleep(0)
        behind = asyncio.create_task(room.visit("beside", alone=False))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait_for(behind, 1)
    await asyncio.wait_for(room.visit("alone", alone=True), 1)
