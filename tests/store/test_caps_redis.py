"""The script in Redis against its pure twin, byte by byte; the coalesced read; the generation mark."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from handbill.caps import ledger, script
from handbill.caps.model import ANY_LEASE, EPOCH_MS, FOREVER_MS, LEASED, Change, Limits, Subject, Verb, Window
from handbill.caps.packed import Shelf
from handbill.caps.store import CapsStore
from handbill.infra.redis import Keys, Redis
from handbill.kit import crashpoints
from handbill.kit.errors import Broken
from tests.kit.engines import Engines

NOW = EPOCH_MS + 90_000_000_000
SWEEP = 5_000
Unique = Callable[[str], str]


@pytest.fixture
def runner(engines: Engines) -> Iterator[tuple[asyncio.Runner, Redis]]:
    """Hypothesis drives plain functions: a loop of our own, and one connection for all examples."""
    with asyncio.Runner() as loop:
        client = Redis(engines.redis_url, timeout=30)
        loop.run(client.start())
        yield loop, client
        loop.run(client.stop())


numbers = st.sampled_from([0, 1, 2, 3, 4, (1 << 32) - 1])
views = st.builds(
    Change,
    verb=st.sampled_from(Verb),
    scope=st.sampled_from([1, 2, LEASED - 1]),
    at_ms=st.integers(-1_200, 5).map(lambda age: NOW + age),
    fingerprint=numbers,
    keep=st.integers(1, 3),
    horizon_ms=st.sampled_from([1_000, 1_000, 1_000, FOREVER_MS]),
    lease=st.sampled_from([0, 0, 1, 2, ANY_LEASE]),
)
leases = st.builds(
    Change,
    verb=st.sampled_from([Verb.MOVE, Verb.TAKE_BACK]),
    scope=st.sampled_from([1 | LEASED, ANY_LEASE]),
    at_ms=st.integers(0, 3_000).map(lambda ahead: NOW + ahead),
    fingerprint=numbers,
    keep=st.just(1),
    horizon_ms=st.just(0),
)
Asked = tuple[dict[int, tuple[Window, ...]], int, int]
windows = st.lists(st.builds(Window, st.integers(1, 4), st.sampled_from([300, 1_000, FOREVER_MS])), max_size=2)
asks = st.tuples(
    st.dictionaries(st.sampled_from([1, 2, 9]), windows.map(tuple), min_size=1), st.integers(1, 900), st.integers(1, 4)
)
steps = st.lists(
    st.tuples(st.one_of(st.lists(st.one_of(views, views, leases), max_size=6), asks), st.integers(0, 700)), max_size=14
)


def test_the_scripts_and_their_pure_twins_write_identical_bytes(
    runner: tuple[asyncio.Runner, Redis], unique: Unique
) -> None:
    loop, redis = runner
    store = CapsStore(redis, Keys(unique("caps")))

    @given(steps)
    @settings(max_examples=200)
    def agree(plan: list[tuple[list[Change] | Asked, int]]) -> None:
        subject = Subject(1, unique("user"))
        pure, now = b"", NOW
        for step, passed in plan:
            now += passed
            if isinstance(step, list):
                pure = ledger.apply(pure, step, now, SWEEP).value
                loop.run(store.run([store.command(subject, step, now, SWEEP)]))
            else:
                slots, lasts, number = list(step[0].items()), step[1], step[2]
                pure, granted = ledger.lease(pure, slots, now, now + lasts, number)
                held = loop.run(store.lease([store.lease_command(subject, slots, now, now + lasts, number)]))
                assert held == [granted]
            assert loop.run(store.raw(subject)) == pure

    agree()


async def test_a_lease_is_kept_until_it_ends_and_no_value_is_touched_that_cannot_be_read(
    redis: Redis, unique: Unique
) -> None:
    store = CapsStore(redis, Keys(unique("caps")))
    now = await redis.time_ms()
    user, bad = Subject(1, "u"), Subject(1, "bad")
    slot = [(7, (Window(1, 1_000),))]
    assert await store.lease([store.lease_command(user, slot, now, now + 900_000, 5)]) == [5]
    assert await redis.call("PTTL", store.key(user)) > 800_000
    assert await store.lease([store.lease_command(user, slot, now, now + 900_000, 6)]) == [0]
    await redis.call("SET", store.key(bad), b"\x01\x00\x00")
    assert await store.lease([store.lease_command(bad, slot, now, now + 1, 5)]) == [-1]
    assert await redis.call("GET", store.key(bad)) == b"\x01\x00\x00"


def test_many_times_in_one_scope_take_a_two_byte_count(runner: tuple[asyncio.Runner, Redis], unique: Unique) -> None:
    loop, redis = runner
    store = CapsStore(redis, Keys(unique("caps")))
    subject = Subject(1, "u")
    flood = [Change(Verb.MOVE, 7, NOW + n, n, 2, 100_000) for n in range(1_005)]
    random.Random(5).shuffle(flood)
    for start in range(0, len(flood), 100):
        loop.run(store.run([store.command(subject, flood[start : start + 100], NOW + 2_000, SWEEP)]))
    value = loop.run(store.raw(subject))
    assert value == ledger.apply(b"", flood, NOW + 2_000, SWEEP).value
    assert len(Shelf(value).times(7)) == 1_000


async def test_a_value_lives_as_long_as_its_longest_window(redis: Redis, unique: Unique) -> None:
    store = CapsStore(redis, Keys(unique("caps")))
    now = await redis.time_ms()
    day, hour = 86_400_000, 3_600_000
    user = Subject(1, "u")
    await store.run([store.command(user, [Change(Verb.MOVE, 1, now, 1, 2, day)], now, day)])
    await store.run([store.command(user, [Change(Verb.MOVE, 2, now, 2, 2, hour)], now, day)])
    assert await redis.call("PTTL", store.key(user)) > day - hour, "a shorter window does not shorten the longer one"
    await store.run([store.command(user, [Change(Verb.CONFIRM, 3, now, 3, 1, FOREVER_MS)], now, day)])
    assert await redis.call("PTTL", store.key(user)) == -1, "a lifetime limit keeps the value for ever"
    back = [Change(Verb.TAKE_BACK, 5, now, 5, 2, day)]
    other = Subject(1, "v")
    await store.run([store.command(other, [Change(Verb.MOVE, 5, now, 5, 2, day)], now, day)])
    await store.run([store.command(other, back, now, day)])
    assert await redis.call("EXISTS", store.key(other)) == 0


async def test_bytes_that_are_no_value_stop_nobody(redis: Redis, unique: Unique) -> None:
    store = CapsStore(redis, Keys(unique("caps")))
    bad, worse, good = (Subject(1, name) for name in ("bad", "worse", "good"))
    await redis.call("SET", store.key(bad), b"\x01\x00\x00")
    await redis.call("RPUSH", store.key(worse), b"x")
    await store.begin_rebuild("t")
    await store.end_rebuild("t")
    readings, _ = await store.read([bad, good])
    assert [(reading.shelf.scopes(), reading.sure) for reading in readings] == [([], False), ([], True)]
    move = [Change(Verb.MOVE, 7, NOW, 1, 2, 1_000)]
    await store.run([store.command(each, move, NOW, SWEEP) for each in (bad, worse, good)])
    values = [await store.raw(each) for each in (bad, worse, good)]
    assert values[0] == values[1] == values[2] == ledger.apply(b"", move, NOW, SWEEP).value


async def test_a_broken_argument_is_named_and_its_neighbours_are_done(redis: Redis, unique: Unique) -> None:
    store = CapsStore(redis, Keys(unique("caps")))
    good = Subject(1, "good")
    broken = redis.script(script.APPLY).command([store.key(Subject(1, "bad"))], [b"short"])
    move = store.command(good, [Change(Verb.MOVE, 7, NOW, 1, 2, 1_000)], NOW, SWEEP)
    with pytest.raises(Broken) as caught:
        await store.run([broken, move])
    assert caught.value.code == "CAPS_REFUSED"
    assert await store.raw(good)


async def test_readers_share_one_command_and_each_gets_its_own(redis: Redis, unique: Unique) -> None:
    store = CapsStore(redis, Keys(unique("caps")))
    people = [Subject(1, f"u{n}") for n in range(50)]
    moves = [store.command(p, [Change(Verb.MOVE, n, NOW, n, 2, 1_000)], NOW, SWEEP) for n, p in enumerate(people)]
    await store.run(moves)
    limits = Limits((Window(1, 1_000),))
    heard: list[str] = []
    crashpoints.install(heard.append)
    try:
        answers = await asyncio.gather(*(store.read([person, Subject(1, "nobody")]) for person in people))
        _, along = await store.read(people[:1], [store.key(people[0]), b"not-there"])
    finally:
        crashpoints.install(None)
    assert heard.count("before:redis:MGET") == 2
    assert along == (await store.raw(people[0]), None)
    for n, ((mine, nobodys), _) in enumerate(answers):
        assert mine.shelf.scopes() == [n]
        assert not mine.shelf.eligible(n, limits, NOW)
        assert nobodys.shelf.scopes() == []
        assert not mine.sure, "nobody has said that this store is whole"


async def test_the_mark_stands_only_if_the_store_was_not_wiped_meanwhile(redis: Redis, unique: Unique) -> None:
    keys = Keys(unique("caps"))
    store = CapsStore(redis, keys)
    assert not (await store.read([Subject(1, "u")]))[0][0].sure
    await store.begin_rebuild("one")
    await redis.call("DEL", keys.tagged("caps", "caps", "building"))  # what a wipe does
    assert not await store.end_rebuild("one")
    await store.begin_rebuild("one")
    await store.begin_rebuild("two")
    assert not await store.end_rebuild("one")
    assert await store.end_rebuild("two")
    assert (await store.read([Subject(1, "u")]))[0][0].sure


async def test_a_read_that_fails_tells_everybody_who_asked(unique: Unique) -> None:
    away = Redis("redis://127.0.0.1:1/0")
    store = CapsStore(away, Keys(unique("caps")))
    answers = await asyncio.gather(*(store.read([Subject(1, "u")]) for _ in range(3)), return_exceptions=True)
    assert all(getattr(answer, "code", "") == "REDIS_AWAY" for answer in answers)
