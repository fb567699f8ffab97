"""Who may run now."""

from __future__ import annotations

import asyncio

import pytest

from handbill.infra.embedded.face.faults import Fault
from handbill.infra.embedded.face.lanes import Lanes


async def test_reads_and_writes_wait_in_lines_of_their_own_and_in_order() -> None:
    lanes = Lanes(reads=1, writes=1, waiting=2)
    leave = await lanes.enter(writes=False)
    (await lanes.enter(writes=True))(None)

    order: list[str] = []

    async def visit(name: str) -> None:
        done = await lanes.enter(writes=False)
        order.append(name)
        done(None)

    visits = [asyncio.create_task(visit(name)) for name in ("first", "second")]
    while lanes.waiting(writes=False) < 2:
        await asyncio.sleep(0)
    with pytest.raises(Fault) as caught:
        await lanes.enter(writes=False)
    assert caught.value.status == 503
    leave(None)
    await asyncio.gather(*visits)
    assert order == ["first", "second"]


async def test_one_who_stops_waiting_takes_nobodys_place() -> None:
    lanes = Lanes(reads=1, writes=1)
    leave = await lanes.enter(writes=False)
    waiting = asyncio.create_task(lanes.enter(writes=False))
    while not lanes.waiting(writes=False):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert lanes.waiting(writes=False) == 0
    leave(None)
    await lanes.enter(writes=False)
