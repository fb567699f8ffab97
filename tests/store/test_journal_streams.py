"""The journal on Redis Streams: the conformance suite, then what only this engine can do wrong."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from handbill.caps.model import EPOCH_MS, Change, Subject, Verb
from handbill.caps.store import CapsStore
from handbill.infra.journal.appender import LaneAppender
from handbill.infra.journal.lanes import later
from handbill.infra.journal.port import START, Lag
from handbill.infra.journal.streams import StreamsJournal
from handbill.infra.redis import Keys, Redis
from handbill.infra.redis.client import opened
from handbill.infra.redis.url import parse
from handbill.kit.errors import Busy
from tests.conftest import OwnEngine
from tests.kit import slow_fsync
from tests.kit.cluster import one_node_cluster
from tests.kit.waiting import eventually
from tests.store.journal_conformance import JournalConformance, bodies_of, read_all

Unique = Callable[[str], str]
FSYNC_MS = 150


@pytest.fixture
async def journal(redis: Redis, unique: Unique) -> AsyncIterator[StreamsJournal]:
    made = StreamsJournal(redis, Keys(unique("journal")))
    await made.start()
    yield made
    await made.stop()


class TestStreams(JournalConformance):
    """Every promise of the port, on this adapter."""


async def test_commands_ride_along_after_the_append(journal: StreamsJournal, redis: Redis, unique: Unique) -> None:
    lane, key = unique("lane"), unique("key")
    await asyncio.gather(*(journal.append(lane, [b"x"], [("INCR", key)]) for _ in range(10)))
    assert await redis.call("GET", key) == b"10"
    assert len(bodies_of(await read_all(journal, lane))) == 10


async def test_a_failed_command_beside_the_append_is_nobodys_answer(
    journal: StreamsJournal, redis: Redis, unique: Unique
) -> None:
    lane, key = unique("lane"), unique("list")
    await redis.call("RPUSH", key, "x")
    answers = await asyncio.gather(
        journal.append(lane, [b"a"], [("PING",), ("INCR", key)]),
        journal.append(lane, [b"b"], [("PING",)]),
        journal.append(lane, [b"c"]),
    )
    assert len(set(answers)) == 1, "one entry, which is durable"
    assert bodies_of(await read_all(journal, lane)) == [b"a", b"b", b"c"]


async def _past(redis: Redis, cursor: str) -> bool:
    return await redis.time_ms() > int(cursor.partition("-")[0])


async def test_a_wiped_store_is_reported_as_a_gap_once(redis: Redis, unique: Unique) -> None:
    keys, lane = Keys(unique("journal")), unique("lane")
    journal = StreamsJournal(redis, keys)
    await journal.append(lane, [b"a", b"b"])
    cursor = await journal.append(lane, [b"c"])
    names = [keys.tagged("journal", lane), keys.tagged("journal", lane, "meta")]
    await redis.call("DEL", *names)
    assert (await journal.lag(lane, cursor)).gap, "empty where there was something"
    await eventually(lambda: _past(redis, cursor))  # nobody loses a store and fills it again within a millisecond
    again = await journal.append(lane, [b"d"])
    entries = await journal.read(lane, cursor, events=9)
    assert bodies_of(entries) == [b"d"]
    lag = await journal.lag(lane, again)
    assert lag.gap, "the reader has passed it, and is told nevertheless"
    assert not (await journal.lag(lane, again)).gap
    fresh = StreamsJournal(redis, keys)
    assert not (await fresh.lag(lane, START)).gap


async def test_an_older_copy_of_the_store_is_a_gap(redis: Redis, unique: Unique) -> None:
    keys, lane = Keys(unique("journal")), unique("lane")
    journal = StreamsJournal(redis, keys)
    await journal.append(lane, [b"a"])
    names = [keys.tagged("journal", lane), keys.tagged("journal", lane, "meta")]
    copies = [await redis.call("DUMP", name) for name in names]
    cursor = await journal.append(lane, [b"b"])
    for name, copy in zip(names, copies, strict=True):
        await redis.call("RESTORE", name, 0, copy, "REPLACE")
    assert (await journal.lag(lane, cursor)).gap
    assert bodies_of(await journal.read(lane, cursor, events=9)) == [b"a"], (
        "told again behind the cursor; it counts once"
    )
    assert (await journal.lag(lane, cursor)).gap


@pytest.mark.parametrize("held", ["an older copy", "nothing"])
async def test_a_restored_copy_is_no_gap_once_adopted(redis: Redis, unique: Unique, held: str) -> None:
    keys, lane = Keys(unique("journal")), unique("lane")
    journal = StreamsJournal(redis, keys)
    before = await journal.append(lane, [b"a"])
    if held == "nothing":
        await redis.call("DEL", keys.tagged("journal", lane), keys.tagged("journal", lane, "meta"))
    cursor = f"{await redis.time_ms() + 5_000}-3"
    await journal.adopt(lane, cursor)
    assert (await journal.lag(lane, cursor)) == Lag(0, 0.0, gap=False)
    assert await journal.read(lane, cursor, events=9) == []
    await journal.append(lane, [b"b"])
    assert bodies_of(await journal.read(lane, cursor, events=9)) == [b"b"]
    assert (await journal.lag(lane, cursor)).events == 1
    await journal.adopt(lane, before)  # a copy that goes further than the cursor stays as it is
    assert bodies_of(await journal.read(lane, cursor, events=9)) == [b"b"]


async def test_a_new_store_whose_clock_is_behind_goes_on_behind_the_cursor(redis: Redis, unique: Unique) -> None:
    journal, lane = StreamsJournal(redis, Keys(unique("journal"))), unique("lane")
    ahead = f"{await redis.time_ms() + 3_600_000}-7"  # where the reader stood, by the old store's clock
    assert await journal.read(lane, ahead, events=9) == []
    first = await journal.append(lane, [b"a"])
    assert later(first, ahead)
    assert bodies_of(await journal.read(lane, ahead, events=9)) == [b"a"]
    other = unique("lane")
    early = [await journal.append(other, [b"%d" % n]) for n in range(3)]
    assert not later(early[-1], ahead)
    entries = await journal.read(other, ahead, events=9)
    assert bodies_of(entries) == [b"0", b"1", b"2"]
    assert await journal.read(other, entries[-1].id, events=9) == []
    assert (await journal.lag(other, entries[-1].id)).gap
    late = await journal.append(other, [b"3"])
    assert bodies_of(await journal.read(other, entries[-1].id, events=9)) == [b"3"]
    assert not (await journal.lag(other, late)).gap


async def test_on_a_cluster_lanes_and_caps_need_nothing_of_each_other() -> None:
    async with one_node_cluster() as url, opened(url, timeout=30, cluster_allowed=True) as redis:
        journal, store = StreamsJournal(redis), CapsStore(redis, Keys())
        people = [Subject(1, f"u{n}") for n in range(8)]
        now = EPOCH_MS + 1_000_000
        moves = [store.command(p, [Change(Verb.MOVE, 7, now, n, 2, 1_000)], now, 1_000) for n, p in enumerate(people)]
        ids = await asyncio.gather(*(journal.append(str(n % 3), [b"x"], [move]) for n, move in enumerate(moves)))
        assert len(ids) == 8
        lags = [await journal.lag(str(lane), START) for lane in range(3)]
        assert [lag.events for lag in lags] == [3, 3, 2]
        readings, _ = await store.read(people)
        assert [reading.shelf.times(7) for reading in readings] == [[now]] * 8
        await store.begin_rebuild("t")
        assert await store.end_rebuild("t")
        assert all(reading.sure for reading in (await store.read(people))[0])
        assert await journal.trim("0", ids[6], older_s=0) >= 0
        await journal.wait("0", START, 60)
        await journal.stop()


async def test_a_full_buffer_says_busy_and_goes_on_when_there_is_room() -> None:
    gate, written = asyncio.Event(), list[bytes]()

    async def write(bodies: list[bytes], extra: object, tenant_ids: object) -> tuple[str, list[object]]:
        await gate.wait()
        written.extend(bodies)
        return "1-1", []

    appender = LaneAppender("0", write, buffer_bytes=100)
    first = appender.add([b"x" * 80], [])
    with pytest.raises(Busy) as caught:
        appender.add([b"y" * 80], [])
    assert caught.value.code == "JOURNAL_FULL"
    gate.set()
    assert await first == "1-1"
    await appender.drain()
    assert await appender.add([b"z" * 80], []) == "1-1"
    await appender.drain()
    assert [body[:1] for body in written] == [b"x", b"z"]


async def test_redis_away_is_busy_and_back_again(own_redis: OwnEngine, short_tmp: Path) -> None:
    engine = await own_redis(at=short_tmp / "r")
    redis = Redis(engine.url, timeout=30)
    await redis.start()
    journal = StreamsJournal(redis)
    try:
        await journal.append("0", [b"before"])
        waiting = asyncio.create_task(journal.wait("0", "99999999999999-0", 120))
        os.kill(engine.pid, signal.SIGKILL)
        await engine.wait()
        with pytest.raises(Busy):
            await waiting
        with pytest.raises(Busy) as caught:
            await journal.append("0", [b"lost"])
        assert caught.value.code == "JOURNAL_AWAY"
        again = await own_redis(at=short_tmp / "r")
        redis.address = parse(again.url)  # its old port may be somebody else's by now

        async def back() -> bool:
            try:
                await journal.append("0", [b"after"])
            except Busy:
                return False
            return True

        await eventually(back)
        assert bodies_of(await read_all(journal, "0")) == [b"before", b"after"]
        await journal.wait("0", START, 60)
    finally:
        await journal.stop()
        await redis.stop()


async def test_an_answered_append_survives_kill_9_when_fsync_is_slow(
    own_redis: OwnEngine, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as slow:
        for name, value in slow_fsync.environment(FSYNC_MS).items():
            slow.setenv(name, value)
        engine = await own_redis(at=short_tmp / "r")
    maps = Path(f"/proc/{engine.pid}/maps")
    assert not maps.exists() or "slow_fsync" in maps.read_text(), "fsync is as fast as ever: this would prove nothing"
    redis = Redis(engine.url, timeout=30)
    await redis.start()
    journal = StreamsJournal(redis)
    answered: list[bytes] = []
    waits: list[float] = []
    stop = False

    async def sender(name: int) -> None:
        n = 0
        while not stop:
            body = b"%d:%d:" % (name, n) + b"x" * 2_000
            began = time.monotonic()
            try:
                await journal.append(str(name % 2), [body])
            except Busy:
                return
            waits.append(time.monotonic() - began)
            answered.append(body)
            n += 1

    senders = [asyncio.create_task(sender(name)) for name in range(40)]

    async def enough() -> bool:
        return len(answered) >= 400

    await eventually(enough)
    os.kill(engine.pid, signal.SIGKILL)
    await engine.wait()
    await asyncio.gather(*senders)
    stop = True
    await redis.stop()
    # A lower bound, which a slow machine only makes truer: whoever answers sooner has not waited for the disk. The kill
    # alone proves little: a Redis that syncs once a second survives most of them.
    assert min(waits) >= 0.9 * FSYNC_MS / 1000
    again = await own_redis(at=short_tmp / "r")
    redis = Redis(again.url, timeout=30)
    await redis.start()
    try:
        kept: set[bytes] = set()
        for lane in ("0", "1"):
            kept |= set(bodies_of(await read_all(StreamsJournal(redis), lane)))
        assert set(answered) <= kept
        for number in range(40):
            mine = sorted(int(body.split(b":")[1]) for body in kept if body.startswith(b"%d:" % number))
            assert mine == list(range(len(mine))), "no hole in any sender's events"
    finally:
        await redis.stop()
