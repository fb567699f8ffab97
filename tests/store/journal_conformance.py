"""What every journal must do, whichever engine is behind it. An adapter's test inherits this and makes one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest

from handbill.infra.journal.lanes import later
from handbill.infra.journal.port import START, Entry, Journal
from handbill.kit.errors import TooLarge

Unique = Callable[[str], str]


def bodies_of(entries: list[Entry]) -> list[bytes]:
    return [body for entry in entries for body in entry.bodies]


async def read_all(journal: Journal, lane: str, after: str = START, step: int = 1_000) -> list[Entry]:
    found: list[Entry] = []
    while entries := await journal.read(lane, after, events=step):
        found += entries
        after = entries[-1].id
    return found


class JournalConformance:
    """Subclasses give the fixture `journal`."""

    async def test_an_empty_lane_has_nothing_and_no_lag(self, journal: Journal, unique: Unique) -> None:
        lane = unique("lane")
        assert await journal.read(lane, START, events=10) == []
        lag = await journal.lag(lane, START)
        assert (lag.events, lag.seconds, lag.gap) == (0, 0.0, False)
        assert await journal.trim(lane, START) == 0

    async def test_what_one_caller_appends_stays_together_and_in_order(self, journal: Journal, unique: Unique) -> None:
        lane = unique("lane")
        first = await journal.append(lane, [b"a", b"b"])
        second = await journal.append(lane, [b"c"])
        assert later(second, first)
        assert bodies_of(await read_all(journal, lane)) == [b"a", b"b", b"c"]
        assert bodies_of(await journal.read(lane, first, events=10)) == [b"c"]
        assert await journal.read(lane, second, events=10) == []

    async def test_concurrent_callers_share_entries_and_nobody_is_split_or_lost(
        self, journal: Journal, unique: Unique
    ) -> None:
        lane = unique("lane")
        calls = [[f"{n}.{k}".encode() for k in range(1 + n % 7)] for n in range(300)]
        ids = await asyncio.gather(*(journal.append(lane, call) for call in calls))
        entries = await read_all(journal, lane, step=100)
        by_id = {entry.id: entry.bodies for entry in entries}
        for call, where in zip(calls, ids, strict=True):
            at = by_id[where].index(call[0])
            assert by_id[where][at : at + len(call)] == call
        assert sorted(bodies_of(entries)) == sorted(body for call in calls for body in call)
        assert len(entries) < len(calls), "many requests' events share one append"

    async def test_a_sender_that_waits_for_each_answer_keeps_its_order(self, journal: Journal, unique: Unique) -> None:
        lane = unique("lane")

        async def sender(name: str) -> None:
            for n in range(30):
                await journal.append(lane, [f"{name}:{n}".encode()])

        await asyncio.gather(*(sender(name) for name in "abcde"))
        seen = bodies_of(await read_all(journal, lane, step=7))
        for name in "abcde":
            mine = [body for body in seen if body.startswith(name.encode())]
            assert mine == [f"{name}:{n}".encode() for n in range(30)]

    async def test_any_cut_of_the_reading_gives_the_same_events(self, journal: Journal, unique: Unique) -> None:
        lane = unique("lane")
        chance = random.Random(11)
        written: list[bytes] = []
        for n in range(60):
            batch = [f"{n}-{k}".encode() for k in range(chance.randint(1, 40))]
            written += batch
            await journal.append(lane, batch)
        for _ in range(5):
            after, seen = START, list[bytes]()
            while entries := await journal.read(lane, after, events=chance.randint(1, 300)):
                seen += bodies_of(entries)
                after = entries[-1].id
            assert seen == written

    async def test_a_read_gives_whole_entries_and_stops_when_there_is_enough(
        self, journal: Journal, unique: Unique
    ) -> None:
        lane = unique("lane")
        for _ in range(20):
            await journal.append(lane, [b"x"] * 10)
        assert len(bodies_of(await journal.read(lane, START, events=25))) == 30
        assert len(bodies_of(await journal.read(lane, START, events=1))) == 10
        assert len(bodies_of(await journal.read(lane, START, events=10_000))) == 200

    async def test_lag_counts_events_and_seconds_behind_a_cursor(self, journal: Journal, unique: Unique) -> None:
        lane = unique("lane")
        first = await journal.append(lane, [b"x"] * 7)
        last = await journal.append(lane, [b"x"] * 5)
        assert (await journal.lag(lane, START)).events == 12
        behind = await journal.lag(lane, first)
        assert behind.events == 5
        assert behind.seconds >= 0
        assert not behind.gap
        assert (await journal.lag(lane, last)).events == 0

    async def test_trimming_forgets_what_is_behind_and_never_what_is_young(
        self, journal: Journal, unique: Unique
    ) -> None:
        lane = unique("lane")
        ids = [await journal.append(lane, [b"%d" % n]) for n in range(5)]
        assert await journal.trim(lane, ids[3]) == 0, "ten minutes have not passed"
        assert await journal.trim(lane, ids[3], older_s=0) == 3
        assert bodies_of(await read_all(journal, lane)) == [b"3", b"4"]
        lag = await journal.lag(lane, ids[3])
        assert (lag.events, lag.gap) == (1, False)
        assert not (await journal.lag(lane, ids[2])).gap, "trimmed behind the cursor is no loss"

    async def test_waiting_ends_when_something_comes(self, journal: Journal, unique: Unique) -> None:
        lane = unique("lane")
        cursor = await journal.append(lane, [b"old"])
        waiting = asyncio.create_task(journal.wait(lane, cursor, 60))
        await asyncio.sleep(0)
        assert not waiting.done()
        await journal.append(lane, [b"new"])
        await asyncio.wait_for(waiting, 60)
        assert bodies_of(await journal.read(lane, cursor, events=9)) == [b"new"]
        await journal.wait(lane, cursor, 60)  # something is there already: no wait at all
        newest = (await journal.read(lane, cursor, events=9))[-1].id
        await journal.wait(lane, newest, 0.01)  # nothing comes: the time ends it

    async def test_a_wait_that_is_given_up_can_begin_again(self, journal: Journal, unique: Unique) -> None:
        lane = unique("lane")
        waiting = asyncio.create_task(journal.wait(lane, START, 60))
        for _ in range(20):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await journal.append(lane, [b"x"])
        await asyncio.wait_for(journal.wait(lane, START, 60), 60)

    async def test_a_body_too_large_is_refused_and_nothing_of_its_call_is_kept(
        self, journal: Journal, unique: Unique
    ) -> None:
        lane = unique("lane")
        with pytest.raises(TooLarge):
            await journal.append(lane, [b"small", b"x" * 300_000])
        with pytest.raises(TooLarge):
            await journal.append(lane, [b"x"] * 10_001)
        with pytest.raises(TooLarge):
            await journal.append(lane, [b"x" * 200_000] * 50)
        assert await read_all(journal, lane) == []

    async def test_large_bodies_make_several_entries_and_come_back_whole(
        self, journal: Journal, unique: Unique
    ) -> None:
        lane = unique("lane")
        sent = [bytes([n]) * 200_000 for n in range(12)]
        await asyncio.gather(*(journal.append(lane, [body]) for body in sent))
        entries = await read_all(journal, lane)
        assert sorted(bodies_of(entries)) == sent
        assert len(entries) > 1
