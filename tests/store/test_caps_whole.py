"""Every kind of limit on real engines: devices, sessions, campaigns, placements, lifetimes, and strict slots."""

from __future__ import annotations

import random
from collections.abc import Callable

import asyncpg
import pytest

from handbill.caps.model import (
    ANY_LEASE,
    EPOCH_MS,
    FOREVER_MS,
    SESSION_MS,
    By,
    Kind,
    Limits,
    Rule,
    Viewer,
    Window,
    scope,
)
from handbill.caps.service import CapsService
from handbill.caps.views import SHARED_ROWS
from handbill.infra import sqlfiles
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.clock import from_ms
from handbill.kit.errors import Busy
from tests.kit.engines import Engines
from tests.kit.plans import plan_of
from tests.kit.show_caps import HOUR, CapsHouse, FakeBook
from tests.kit.show_model import allowed

Unique = Callable[[str], str]
BANNER, CAMPAIGN, PLACEMENT = scope(Kind.BANNER, 7), scope(Kind.CAMPAIGN, 3), scope(Kind.PLACEMENT, 4)


@pytest.fixture
async def house(redis: Redis, database: Database, tenant: int, unique: Unique) -> CapsHouse:
    made = CapsHouse(redis, database, tenant, unique("caps"), FakeBook())
    await made.caps.ensure("t")
    return made


def rule(by: By, of: int, *windows: tuple[int, int], known_from: int = 0) -> Rule:
    return Rule(by, of, Limits(tuple(Window(x, y) for x, y in windows), known_from))


async def test_a_device_is_one_viewer_whoever_holds_it(house: CapsHouse) -> None:
    rules = house.book.more = [rule(By.DEVICE, BANNER, (2, HOUR))]
    first, second = house.view("a", user="ann"), house.view("b", user="bob")
    await house.accept(first)
    await house.accept(second)
    assert not await house.free(house.viewer("cid"), rules)
    assert await house.free(house.viewer("ann", device="e"), rules)
    assert await house.free(house.viewer("ann", device=None), rules), "no device: the user's own views, of which none"
    nameless = house.view("c", user="ann", device=None)
    await house.accept(nameless)
    await house.commit(first, second, nameless)
    before = await house.raw("d", "device"), await house.raw("ann", "alone")
    assert all(before)
    await house.wipe()
    assert not await house.free(house.viewer("cid"), rules), "PostgreSQL finds a device by its users"
    await house.caps.rebuild("again")
    assert (await house.raw("d", "device"), await house.raw("ann", "alone")) == before


async def test_a_session_has_its_own_count_and_ends_by_itself(house: CapsHouse) -> None:
    rules = house.book.more = [rule(By.USER, BANNER, (5, HOUR)), rule(By.SESSION, BANNER, (1, SESSION_MS))]
    seen = house.view("a")
    await house.accept(seen)
    assert not await house.free(house.viewer(), rules)
    assert await house.free(house.viewer(session="t"), rules)
    assert await house.free(house.viewer(session=None), rules), "no session: the rule does not bind"
    await house.commit(seen)
    before = await house.raw("ann\0s", "session")
    await house.wipe()
    assert not await house.free(house.viewer(), rules)
    await house.caps.rebuild("again")
    assert await house.raw("ann\0s", "session") == before
    house.clock.advance(ms=SESSION_MS)
    assert await house.free(house.viewer(), rules)


async def test_campaign_and_placement_count_over_all_their_banners(house: CapsHouse) -> None:
    house.book.more = [
        rule(By.USER, BANNER, (5, HOUR)),
        rule(By.USER, scope(Kind.BANNER, 8), (5, HOUR)),
        rule(By.USER, CAMPAIGN, (2, 2 * HOUR)),
        rule(By.USER, PLACEMENT, (3, 2 * HOUR)),
    ]
    both = house.rules(7, 3, 4)
    for n, banner in enumerate((7, 8)):
        await house.accept(house.view(f"v{n}", banner, campaign=3, placement=4))
    caps = await house.look(house.viewer(), both)
    now = house.clock.now_ms()
    assert not caps.free(both, now)
    assert caps.verdict(both, now).next_eligible_at == now + 2 * HOUR
    assert caps.free(house.rules(7, None, 4), now), "the placement has one left"
    await house.accept(house.view("other", 9, placement=4))
    assert not await house.free(house.viewer(), house.rules(7, None, 4)), "a banner without limits fills it too"
    assert await house.free(house.viewer(), house.rules(7))


async def test_a_lifetime_of_campaigns_and_devices_outlives_their_rows(house: CapsHouse, engines: Engines) -> None:
    lasting = [rule(By.USER, CAMPAIGN, (3, FOREVER_MS)), rule(By.DEVICE, BANNER, (3, FOREVER_MS), (9, HOUR))]
    house.book.more = lasting
    rows = [house.view(f"v{n}", campaign=3) for n in range(2)]
    await house.commit(*rows)
    month = house.clock.now().date().replace(day=1)
    owner = await asyncpg.connect(engines.postgres_url)
    try:
        async with house.database.worker() as tx:  # what retention does with a month, in one transaction
            await house.caps.archive_month(tx, month)
        await owner.execute("delete from caps.user_views where tenant_id = $1", house.tenant)
    finally:
        await owner.close()
    for token in ("one", "two"):  # twice: what is archived is counted once
        await house.wipe()
        house.clock.advance(days=200)
        assert await house.free(house.viewer(), lasting), "two of three"
        await house.caps.rebuild(token)
        assert await house.free(house.viewer(), lasting)
    await house.caps.backfill(house.tenant)
    third = house.view("v3", campaign=3)
    await house.accept(third)
    assert not await house.free(house.viewer(), lasting[:1])
    assert not await house.free(house.viewer("bob"), lasting[1:])
    await house.commit(third)
    await house.caps.backfill(house.tenant)
    caps = await house.look(house.viewer(), lasting)
    assert caps.verdict(lasting, house.clock.now_ms()).next_eligible_at is None
    assert caps.seen(By.USER, CAMPAIGN) == caps.seen(By.DEVICE, BANNER) == 3
    cleared = await house.caps.erase(house.tenant, ["ann"])
    assert cleared["caps.cap_archive"] == 2


async def test_the_one_view_that_a_limit_needs_is_read_however_many_newer_ones_there_are(
    house: CapsHouse, engines: Engines
) -> None:
    year, other = 365 * 24 * HOUR, scope(Kind.BANNER, 9)
    limited = [
        rule(By.USER, BANNER, (1, year)), rule(By.USER, CAMPAIGN, (1, year)), rule(By.USER, PLACEMENT, (1, year)),
        rule(By.DEVICE, BANNER, (1, year)), rule(By.DEVICE, CAMPAIGN, (1, FOREVER_MS)),
        rule(By.USER, scope(Kind.BANNER, 8), (2, year)),
    ]  # fmt: skip
    house.book.more = [*limited, rule(By.USER, other, (3, HOUR)), rule(By.DEVICE, other, (3, HOUR))]
    nameless = [house.view("n8", 8), house.view("n7", 7, "bob", device=None)]
    await house.commit(house.view("old", 7), house.view("shared", 6, campaign=3, placement=4), *nameless)
    house.clock.advance(days=40)
    for part in range(6):
        house.clock.advance(ms=1_000)
        await house.commit(*(house.view(f"v{part}-{n}", 9) for n in range(1_000)))
    await house.commit(*(house.view(f"b{n}", 7, "bob", device="e") for n in range(20)))
    await house.wipe()
    for each in limited[:5]:
        assert not await house.free(house.viewer(), [each]), each
    assert await house.free(house.viewer(), limited[5:]), "one of two"
    assert not await house.free(house.viewer("bob", device=None), limited[3:4]), "twenty newer ones are of a device"
    assert not await house.free(house.viewer(), [rule(By.USER, other, (3, HOUR))])
    for lost in ("rebuilt", "mark"):
        await house.caps.rebuild(lost)
        for each in limited[:5]:
            assert not await house.free(house.viewer(), [each]), each
        await house.wipe()

    text = sqlfiles.load("handbill.caps").views_of_subject.text
    epoch = from_ms(EPOCH_MS)
    owner = await asyncpg.connect(engines.postgres_url)
    try:
        for mode in ("force_custom_plan", "force_generic_plan"):
            await owner.execute(f"set plan_cache_mode = {mode}")
            for kind, whose in (("user", ""), ("device", "d")):
                plan = await plan_of(
                    owner,
                    text,
                    house.tenant,
                    ["ann"],
                    kind,
                    whose,
                    [BANNER, other],
                    [1, 3],
                    [epoch, epoch],
                    SHARED_ROWS,
                )
                assert plan.rows_read("user_views") <= 10, (mode, kind)
                assert not {table for table in plan.whole_tables() if table.startswith("user_views")}, (mode, kind)
    finally:
        await owner.close()


async def test_every_window_of_every_rule_agrees_with_the_reference(house: CapsHouse) -> None:
    """Banner (two windows and a lifetime), campaign, session and device at once, over a long random life."""
    chance = random.Random(11)
    rules = house.book.more = [
        rule(By.USER, BANNER, (2, HOUR), (3, 6 * HOUR), (12, FOREVER_MS)),
        rule(By.SESSION, BANNER, (2, SESSION_MS)),
        rule(By.USER, CAMPAIGN, (4, 12 * HOUR)),
        rule(By.DEVICE, scope(Kind.BANNER, 8), (2, 3 * HOUR)),
    ]
    seen: list[tuple[Viewer, int, int]] = []
    waiting = []
    for step in range(160):
        house.clock.advance(ms=chance.choice([1, HOUR // 3, HOUR - 1, HOUR, 2 * HOUR]))
        now = house.clock.now_ms()
        viewer = house.viewer(chance.choice(["ann", "bob"]), chance.choice(["d", "e", None]), chance.choice("st"))
        banner = chance.choice([7, 8])
        if chance.random() < 0.5:
            row = house.view(
                f"e{step}", banner, viewer.user_id, device=viewer.device_id, session=viewer.session_id, campaign=3
            )
            await house.accept(row)
            waiting.append(row)
            seen.append((viewer, banner, now))
        elif waiting and chance.random() < 0.4:
            await house.commit(*waiting)
            waiting = []
        if not waiting and chance.random() < 0.1:
            await house.wipe()
            if chance.random() < 0.5:
                await house.caps.rebuild(f"r{step}")
        mine = house.rules(banner, 3)
        expected = all(
            allowed(
                [at for who, what, at in seen if who.subject(each.by) == viewer.subject(each.by)
                 and (each.scope == CAMPAIGN or each.scope == what)],
                [(window.x, window.y_ms) for window in each.limits.windows],
                now,
            )
            for each in mine
        )  # fmt: skip
        assert await house.free(viewer, mine) == expected, f"step {step}"
    assert len(rules) == 4


async def test_a_strict_slot_is_held_until_its_view_is_reported_or_its_time_is_over(house: CapsHouse) -> None:
    rules = house.book.more = [rule(By.USER, BANNER, (2, HOUR)), rule(By.USER, CAMPAIGN, (3, HOUR))]
    viewer = house.viewer()
    one, two = await house.lease(viewer, rules), await house.lease(viewer, rules)
    assert one
    assert two
    assert await house.lease(viewer, rules) is None
    caps = await house.look(viewer, rules)
    now = house.clock.now_ms()
    assert caps.free(rules, now), "a soft reader sees no leases"
    assert caps.verdict(rules, now, strict=True).next_eligible_at == now + 63_000
    await house.accept(house.view("a", campaign=3), lease=one)
    assert await house.lease(viewer, rules) is None, "the view took its own slot's place, nothing more"
    house.clock.advance(ms=63_000)
    three = await house.lease(viewer, rules)
    assert three, "the second was never reported: its slot is free again"
    late = house.view("b", campaign=3)
    await house.accept(late, lease=two)
    assert await house.lease(viewer, rules) is None, "a late report counts like any other"
    nameless = house.view("c", campaign=3)
    await house.accept(nameless, lease=ANY_LEASE)
    await house.accept(nameless, lease=ANY_LEASE)
    shelf = (await house.look(viewer, rules)).shelves[By.USER]
    assert (shelf.count(BANNER), shelf.leases(BANNER, house.clock.now_ms())) == (3, [])


async def test_two_processes_never_grant_the_same_last_slot(house: CapsHouse, database: Database) -> None:
    rules = house.book.more = [rule(By.USER, BANNER, (3, HOUR)), rule(By.SESSION, BANNER, (1, SESSION_MS))]
    other = CapsService(house.redis, database, house.book, house.clock, keys=house.keys)
    now = house.clock.now_ms()
    granted = 0
    for n in range(6):
        service = (house.caps, other)[n % 2]
        viewer = house.viewer(session="st"[n % 2])
        asked = [(key, rules) for key in ("x", "y")]
        granted += len(await service.lease(viewer, asked, now, now + 1_000, await service.look(viewer, tuple(By))))
    assert granted == 2, "one for each session"
    for session in "st":
        shelves = (await house.look(house.viewer(session=session), rules)).shelves
        assert len(shelves[By.SESSION].leases(BANNER, now)) == 1
        assert len(shelves[By.USER].leases(BANNER, now)) == 2, "the user's value gave back what a session refused"


async def test_strict_in_a_wiped_store_counts_what_postgresql_tells(house: CapsHouse) -> None:
    rules = house.book.more = [rule(By.USER, BANNER, (2, HOUR))]
    await house.commit(house.view("a"), house.view("b"))
    await house.wipe()
    assert not await house.free(house.viewer(), rules)
    assert await house.lease(house.viewer(), rules) is None
    house.clock.advance(hours=1)
    assert await house.lease(house.viewer(), rules)


async def test_without_redis_strict_grants_nothing_and_questions_are_bounded(house: CapsHouse) -> None:
    rules = house.book.more = [rule(By.USER, BANNER, (2, HOUR))]
    alone = CapsService(Redis("redis://127.0.0.1:1/0"), house.database, house.book, house.clock, asking=1)
    caps = await alone.look(house.viewer())
    now = house.clock.now_ms()
    assert caps.free(rules, now)
    assert await alone.lease(house.viewer(), [("it", rules)], now, now + 1, caps) == {}
    async with alone._asking:
        with pytest.raises(Busy) as caught:
            await alone.look(house.viewer())
    assert caught.value.code == "CAPS_BUSY"
