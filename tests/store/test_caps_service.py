"""Caps whole, on real engines: the edge, the commit, a loss, a raised limit, two people who are one."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from handbill.caps.model import FOREVER_MS, By, Limits, Rule, Window
from handbill.caps.service import CapEntry, CapMove, CapsService, moves_of
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import Busy
from tests.kit.engines import Engines
from tests.kit.show_caps import HOUR, CapsHouse, FakeBook, event_key
from tests.kit.show_model import allowed

Unique = Callable[[str], str]


@pytest.fixture
def house(redis: Redis, database: Database, tenant: int, unique: Unique) -> CapsHouse:
    book = FakeBook(b7=Limits((Window(2, 24 * HOUR),)), b8=Limits((Window(5, HOUR),)))
    return CapsHouse(redis, database, tenant, unique("caps"), book)


async def test_seen_twice_and_not_shown_again_until_the_day_is_over(house: CapsHouse) -> None:
    await house.caps.ensure("t")
    first = house.view("a")
    await house.accept(first)
    assert await house.shown()
    house.clock.advance(hours=1)
    second = house.view("b")
    await house.accept(second)
    assert not await house.shown(), "the accepted view closes it; nobody waits for the commit"
    await house.commit(first, second)
    house.clock.advance(hours=23, ms=-1)
    assert not await house.shown()
    house.clock.advance(ms=1)
    assert await house.shown()
    full = [Rule(By.USER, 7, Limits((Window(1, 24 * HOUR),)))]
    caps = await house.look(house.viewer(), full)
    assert caps.verdict(full, house.clock.now_ms()).next_eligible_at == second.event.at + 24 * HOUR


async def test_a_copy_is_taken_back_and_the_first_stays(house: CapsHouse) -> None:
    await house.caps.ensure("t")
    first = house.view("a")
    await house.accept(first)
    house.clock.advance(ms=5)
    copy = house.view("a")
    await house.accept(copy)
    await house.commit(first, refused=(copy,))
    assert await house.shown()
    poison = house.view("p")
    await house.accept(poison)
    assert not await house.shown()
    await house.sink.project([], [poison])
    assert await house.shown()
    await house.sink.project([first], [copy, poison])
    assert await house.shown(), "telling it again changes nothing"


async def test_a_wiped_store_is_rebuilt_to_the_same_bytes(house: CapsHouse) -> None:
    await house.caps.ensure("t")
    rows = []
    for n in range(7):
        house.clock.advance(minutes=7)
        rows.append(house.view(f"e{n}", banner=7 + n % 2, user=("ann", "bob")[n % 3 == 0]))
        await house.accept(rows[-1])
    await house.commit(*rows, house.view("uncounted", counted=False))
    before = {user: await house.raw(user) for user in ("ann", "bob")}
    pairs = [(banner, user) for banner in (7, 8) for user in ("ann", "bob")]
    shown = [await house.shown(*pair) for pair in pairs]
    assert all(before.values())
    assert set(shown) == {True, False}
    await house.wipe()
    assert [await house.shown(*pair) for pair in pairs] == shown, "PostgreSQL answers meanwhile"
    assert await house.caps.ensure("again") is not None
    assert {user: await house.raw(user) for user in ("ann", "bob")} == before
    assert await house.caps.ensure("third") is None
    assert await house.caps.rebuild("fourth") >= 7
    assert {user: await house.raw(user) for user in ("ann", "bob")} == before


async def test_without_the_mark_a_value_is_not_believed_alone(house: CapsHouse) -> None:
    old = house.view("a")
    await house.commit(old)
    await house.wipe()
    house.clock.advance(hours=1)
    await house.accept(house.view("b"))
    assert not await house.shown(), "one view in Redis, one more in PostgreSQL"


async def test_a_raised_limit_counts_what_the_old_one_let_go(house: CapsHouse) -> None:
    await house.caps.ensure("t")
    rows = []
    for n in range(4):
        house.clock.advance(minutes=1)
        rows.append(house.view(f"e{n}"))
        await house.accept(rows[-1])
    await house.commit(*rows)
    house.book.scopes[7] = Limits((Window(4, 24 * HOUR),), known_from_ms=house.clock.now_ms())
    assert not await house.shown(), "four were shown; Redis had kept two"
    house.book.scopes[7] = Limits((Window(5, 24 * HOUR),), known_from_ms=house.clock.now_ms())
    assert await house.shown()
    await house.caps.rebuild("back-fill")
    house.book.scopes[7] = Limits((Window(4, 24 * HOUR),))
    assert not await house.shown(), "after the back-fill Redis knows it by itself"


async def test_a_raised_limit_is_exact_while_nothing_is_committed(house: CapsHouse) -> None:
    await house.caps.ensure("t")
    for n in range(4):
        await house.accept(house.view(f"e{n}"))
    house.book.scopes[7] = Limits((Window(4, 24 * HOUR),))
    assert not await house.shown()
    house.book.scopes[7] = Limits((Window(5, 24 * HOUR),))
    assert await house.shown()


async def test_a_lifetime_limit_outlives_the_rows(house: CapsHouse, engines: Engines) -> None:
    house.book.scopes[7] = Limits((Window(3, FOREVER_MS),))
    await house.caps.ensure("t")
    rows = [house.view(f"e{n}") for n in range(2)]
    await house.commit(*rows)
    owner = await asyncpg.connect(engines.postgres_url)
    try:  # what retention does to a month
        await owner.execute("delete from caps.user_views where tenant_id = $1", house.tenant)
    finally:
        await owner.close()
    house.clock.advance(days=400)
    assert await house.shown()
    await house.wipe()
    await house.caps.rebuild("again")
    assert await house.shown(), "two of three"
    await house.caps.rebuild("and again")
    assert await house.shown(), "ancient views are not counted twice"
    last = house.view("last")
    await house.accept(last)
    assert not await house.shown()
    await house.commit(last)
    await house.caps.rebuild("more")
    caps = await house.look(house.viewer(), house.rules())
    assert caps.seen(By.USER, 7) == 3
    assert caps.verdict(house.rules(), house.clock.now_ms()).next_eligible_at is None


async def test_redis_away_asks_postgresql_and_both_away_is_busy(house: CapsHouse) -> None:
    await house.commit(house.view("a"), house.view("b"))
    away = Redis("redis://127.0.0.1:1/0")
    alone = CapsService(away, house.database, house.book, house.clock)
    caps = await alone.look(house.viewer())
    assert not caps.free(house.rules(), house.clock.now_ms())
    with pytest.raises(Busy):
        await alone.move(house.tenant, "ann", [CapMove(7, 1, house.clock.now_ms())])


async def test_scopes_without_limits_keep_nothing(house: CapsHouse) -> None:
    assert house.caps.move_commands(house.tenant, "ann", moves_of(event_key("x"), house.clock.now_ms(), 99)) == []
    await house.caps.confirm([CapEntry(house.tenant, "ann", moves_of(event_key("x"), house.clock.now_ms(), 99))])
    assert await house.raw() == b""


async def test_erasing_forgets_who_it_was_and_keeps_the_count(house: CapsHouse, engines: Engines) -> None:
    await house.commit(house.view("a"), house.view("b", user="bob"))
    cleared = await house.caps.erase(house.tenant, ["ann"])
    assert cleared == {"caps.user_views": 1, "caps.cap_totals": 1, "caps.cap_archive": 0, "caps.users": 1}
    assert await house.raw() == b""
    owner = await asyncpg.connect(engines.postgres_url)
    try:
        rows = await owner.fetch("select user_id from caps.user_views where tenant_id = $1", house.tenant)
    finally:
        await owner.close()
    assert sorted(row["user_id"] for row in rows) == ["", "bob"]
    assert sum((await house.caps.erase(house.tenant, ["ann"])).values()) == 0


class Model:
    """Who saw what when; the reference says what that allows."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], dict[str, int]] = {}

    def shown(self, user: str, banner: int, limits: Limits, now: int) -> bool:
        times = self.seen.get((user, banner), {}).values()
        return allowed(times, [(window.x, window.y_ms) for window in limits.windows], now)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_a_long_random_life_agrees_with_the_model(house: CapsHouse, seed: int) -> None:
    chance = random.Random(seed)
    model = Model()
    waiting: list[Any] = []
    done: list[Any] = []
    await house.caps.ensure("t")
    for step in range(220):
        house.clock.advance(ms=chance.choice([1, 60_000, HOUR // 2, HOUR, 5 * HOUR]))
        roll = chance.random()
        if roll < 0.45:
            row = house.view(f"{seed}-{step}", chance.choice([7, 8]), chance.choice(["ann", "bob"]))
            await house.accept(row)
            model.seen.setdefault((row.event.user, row.event.banner), {})[row.event.id] = row.event.at
            waiting.append(row)
        elif roll < 0.60 and waiting:
            await house.commit(*waiting)
            done += waiting
            waiting = []
        elif roll < 0.68 and waiting:  # refused by the pipeline
            row = waiting.pop(chance.randrange(len(waiting)))
            await house.sink.project([], [row])
            del model.seen[row.event.user, row.event.banner][row.event.id]
        elif roll < 0.76 and done:  # a client repeats itself: accepted again, found to be a duplicate, taken back
            old = chance.choice(done[-6:])
            copy = house.view(old.event.id, old.event.banner, old.event.user)
            await house.accept(copy)
            await house.sink.project([], [copy])
        elif roll < 0.80 and done:  # a crash after the commit: the projection comes once more
            await house.sink.project(done[-4:], [])
        elif roll < 0.84 and not waiting:
            await house.wipe()
            if chance.random() < 0.7:
                await house.caps.rebuild(f"r{step}")
        elif roll < 0.90:  # another limit, either way
            new = Window(chance.randint(1, 6), chance.choice([1, 6, 24, 72]) * HOUR)
            house.book.scopes[chance.choice([7, 8])] = Limits((new,), known_from_ms=house.clock.now_ms() + 1)
        for user in ("ann", "bob"):
            for banner in (7, 8):
                expected = model.shown(user, banner, house.book.scopes[banner], house.clock.now_ms())
                assert await house.shown(banner, user) == expected, f"step {step}: {user}, banner {banner}"
