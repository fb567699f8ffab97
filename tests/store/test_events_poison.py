"""Law 8 and 12: what cannot be counted is alone, parked with its bytes and reason, and has a way back."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import date, timedelta

import asyncpg
import pytest

from handbill.caps.model import Subject
from handbill.events.model import Dropped, Event, Impression, View, encode
from handbill.events.policy import ConsumerPolicy
from handbill.events.service import Chosen
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.clock import from_ms
from handbill.kit.errors import Broken
from tests.conftest import MakeTenant
from tests.kit import ledger
from tests.kit.engines import Engines
from tests.kit.loop import Loop, loop
from tests.kit.waiting import eventually

NOBODYS = Sql(
    "select reason, body from events.parked where lane = any ($1::text[]) and tenant_id is null order by id", "nobodys"
)
PARKED = Sql("select event_id, reason from events.parked where tenant_id = $1 order by id", "parked")
UNPROJECTED = Sql("update events.lanes set projected = '0-0' where lane = any ($1::text[])", "unprojected")
DAY_MS = 86_400_000


@asynccontextmanager
async def owner(engines: Engines) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(engines.postgres_url)
    try:
        yield connection
    finally:
        await connection.close()


async def put(house: Loop, bodies: Sequence[bytes]) -> None:
    """Straight into the first lane, in this order, as one entry."""
    await house.journal.append(house.lanes.all()[0][0], bodies)


async def parked(database: Database, tenant: int) -> list[tuple[str, str]]:
    async with database.worker() as tx:
        return [tuple(row) for row in await tx.fetch(PARKED, tenant)]


@pytest.mark.parametrize("places", [(0,), (39,), (0, 1, 20, 38, 39), tuple(range(0, 40, 2))])
async def test_poison_in_any_place_is_parked_alone(
    database: Database, redis: Redis, tenant: int, places: tuple[int, ...]
) -> None:
    async with loop(database, redis, main=1) as house:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        good = ledger.events(random.Random(1), [shop], 40, now)
        book = ledger.Ledger()
        mixed: list[Event] = []
        for place, event in enumerate(good):
            if place in places:
                mixed.append(Impression(tenant, f"bad{place}", now, now, shop.banners[0], page="zero\0byte"))
            mixed.append(event)
        book.note(good)
        await put(house, [encode(event) for event in mixed])
        await house.consumer()
        await house.drained()
        await ledger.check(database, book, copies=False)
        assert sorted(await parked(database, tenant)) == sorted((f"bad{place}", "REJECTED") for place in places)
        assert await ledger.dropped(database, [tenant]) == {(tenant, "REJECTED"): len(places)}


async def test_bytes_tenants_and_ids_that_fit_nowhere_stop_nobody(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis, main=1) as house:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        good = ledger.events(random.Random(2), [shop], 20, now)
        book = ledger.Ledger()
        book.note(good)
        stranger = encode(Impression(2**31 - 1, "nobody's", now, now, 1))
        refused = encode(Dropped(2**31 - 1, "x", now, now, "view", "DO_NOT_TRACK"))
        odd = encode(Impression(tenant, "odd\0id", now, now, shop.banners[0], page="\0"))
        long = encode(View(tenant, "long", now, now, shop.banners[0], user=random.Random(5).randbytes(9_000).hex()))
        rubbish = [b"", b"\xc1rubbish", encode(good[0])[:-2]]
        bodies = [stranger, odd, refused, long, *rubbish, *(encode(event) for event in good)]
        random.Random(3).shuffle(bodies)
        await put(house, bodies)
        await house.consumer()
        await house.drained()
        await ledger.check(database, book, copies=False)
        async with database.worker() as tx:
            nobodys = {(row["reason"], row["body"]) for row in await tx.fetch(NOBODYS, [house.lanes.all()[0][0]])}
        assert nobodys == {("REJECTED", stranger), *(("UNREADABLE", body) for body in rubbish)}
        assert sorted(await parked(database, tenant)) == [("long", "REJECTED"), ("odd\ufffdid", "REJECTED")]


async def test_a_flood_stops_the_lane_instead_of_being_parked(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    """Half of everything refused is no poison: the installation is at fault. Mended, all of it is counted."""
    async with loop(database, redis, main=1) as house, owner(engines) as boss:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        sent = [Impression(tenant, f"e{n}", now, now, shop.banners[0], page="/flood") for n in range(60)]
        book = ledger.Ledger()
        book.note(sent)
        await boss.execute(
            "alter table banners.banner_impressions add constraint flood check (page_url <> '/flood') not valid"
        )
        try:
            await house.events.accept(sent)
            consumer = await house.consumer()
            await eventually(
                lambda: "POISON_FLOOD" in flooded(str([health.last_error for health in consumer.healths()])),
                what="the lane waits",
            )
            assert await parked(database, tenant) == []
        finally:
            await boss.execute("alter table banners.banner_impressions drop constraint flood")
        await house.drained()
        await ledger.check(database, book)


@pytest.mark.parametrize("seed", range(3))
async def test_a_flood_of_one_tenant_leaves_the_others_counted(
    database: Database, redis: Redis, make_tenant: MakeTenant, seed: int
) -> None:
    """Several tenants, one with nothing but poison: all others are counted, and all of the poison is parked."""
    rng = random.Random(seed)
    bad_tenant, *good_tenants = [await make_tenant() for _ in range(rng.randint(2, 4))]
    async with loop(database, redis, main=1) as house:
        bad_shop = await house.shop(bad_tenant)
        shops = [await house.shop(tenant_id) for tenant_id in good_tenants]
        now = house.clock.now_ms()
        good = ledger.events(rng, shops, 60, now)
        poison = [
            Impression(bad_tenant, f"bad{n}", now, now, bad_shop.banners[0], page="\0")
            for n in range(rng.randint(300, 400))
        ]
        book = ledger.Ledger()
        book.note(good)
        mixed = [*good, *poison]
        rng.shuffle(mixed)
        while mixed:
            size = rng.randint(100, 200)
            await put(house, [encode(event) for event in mixed[:size]])
            del mixed[:size]
        await house.consumer(ConsumerPolicy(batch_events=150, batch_wait_ms=1))
        await house.drained()
        await ledger.check(database, book, copies=False)
        rows = await parked(database, bad_tenant)
        assert sorted(event_id for event_id, _ in rows) == sorted(event.id for event in poison)
        assert {reason for _, reason in rows} == {"REJECTED", "TOO_MANY_REJECTED"}
        assert sum((await ledger.dropped(database, [bad_tenant])).values()) == len(poison)


async def test_a_tenant_behind_a_flood_is_proof_that_the_installation_works(
    database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    """The whole batch is one tenant's poison, as after a restart: the lane looks further before it waits."""
    bad_tenant, good_tenant = await make_tenant(), await make_tenant()
    async with loop(database, redis, main=1) as house:
        bad_shop, good_shop = await house.shop(bad_tenant), await house.shop(good_tenant)
        now = house.clock.now_ms()
        for part in range(4):
            poison = [
                Impression(bad_tenant, f"bad{part}-{n}", now, now, bad_shop.banners[0], page="\0") for n in range(50)
            ]
            await put(house, [encode(event) for event in poison])
        good = ledger.events(random.Random(5), [good_shop], 20, now)
        book = ledger.Ledger()
        book.note(good)
        await put(house, [encode(event) for event in good])
        await house.consumer(ConsumerPolicy(batch_events=50, batch_wait_ms=1))
        await house.drained()
        await ledger.check(database, book, copies=False)
        assert len(await parked(database, bad_tenant)) == 200


def flooded(error: str) -> str:
    return "POISON_FLOOD" if "fault of the installation" in error else error


async def test_a_right_that_is_missing_is_nobodys_poison(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis, main=1) as house, owner(engines) as boss:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        sent = [Impression(tenant, f"e{n}", now, now, shop.banners[0]) for n in range(3)]
        book = ledger.Ledger()
        book.note(sent)
        await boss.execute("revoke insert on banners.banner_impressions from handbill_worker")
        try:
            await house.events.accept(sent)
            consumer = await house.consumer()
            await eventually(lambda: any(health.errors for health in consumer.healths()), what="the lane waits")
            assert await parked(database, tenant) == []
        finally:
            await boss.execute("grant insert on banners.banner_impressions to handbill_worker")
        await house.drained()
        assert await parked(database, tenant) == []
        await ledger.check(database, book)


async def test_parked_events_come_back_once_and_only_once(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    """The cause is mended, the rest is replayed; what is still bad is parked anew and not sent round for ever."""
    async with loop(database, redis, main=1) as house, owner(engines) as boss:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        head = (now, now, shop.banners[0])
        curable: list[Event] = [View(tenant, f"v{n}", *head, user="ada", session="/curable") for n in range(5)]
        hopeless = Impression(tenant, "hopeless", *head, page="\0")
        await boss.execute("alter table caps.user_views add constraint ill check (session_id <> '/curable') not valid")
        try:
            await put(house, [encode(event) for event in (*curable, hopeless)])
            await house.consumer()
            await house.drained()
        finally:
            await boss.execute("alter table caps.user_views drop constraint ill")
        assert len(await parked(database, tenant)) == 6
        assert await house.caps._store.raw(Subject(tenant, "ada")) == b""
        dry = await house.events.dead.replay(Chosen(tenant), dry_run=True)
        assert (dry.matched, dry.sent) == (6, 0)
        told = await house.events.dead.replay(Chosen(tenant))
        assert (told.matched, told.sent, told.unreadable) == (6, 6, 0)
        await house.drained()
        book = ledger.Ledger()
        book.note(curable)
        await ledger.check(database, book, copies=False)
        waiting = await house.events.parked(tenant, reason=None, replayed=False, after=None, limit=100)
        assert [row.event_id for row in waiting] == ["hopeless"]
        assert (await house.events.explain(tenant, "v3")).outcome == "counted"
        banner = house.catalogue.tenant(tenant).banners[0]
        assert not await house.allowed(tenant, "ada", banner, now)


async def test_too_old_and_dropped_at_the_edge_are_counted_by_day(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        old = now - 35 * DAY_MS - 1
        fresh = Impression(tenant, "fresh", now - 34 * DAY_MS, now, shop.banners[0])
        await house.events.accept([Impression(tenant, f"o{n}", old, now, shop.banners[0]) for n in range(7)])
        await house.events.accept([Dropped(tenant, f"d{n}", now, now, "view", "DO_NOT_TRACK") for n in range(3)])
        await house.events.accept([fresh])
        await house.consumer()
        await house.drained()
        drops = await house.events.drops(tenant, date(2000, 1, 1), date(2100, 1, 1))
        assert [(drop.day, drop.kind, drop.reason, drop.events) for drop in drops] == [
            (from_ms(old).date(), "impression", "TOO_OLD", 7),
            (from_ms(now).date(), "view", "DO_NOT_TRACK", 3),
        ]
        book = ledger.Ledger()
        book.note([fresh])
        await ledger.check(database, book, copies=False)


async def test_a_thousand_events_for_a_deleted_banner_still_count(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        made = await house.banner(tenant)
        number = house.catalogue.tenant(tenant).banners[0].id
        await house.banners.editor.delete_banner(tenant, made.banner_id, version=None, actor="test")
        await house.catalogue.refresh()
        assert not house.catalogue.tenant(tenant).banners
        dice = random.Random(8)
        sent = ledger.events(dice, [ledger.Shop(tenant, (number,))], 1_000, house.clock.now_ms())
        book = ledger.Ledger()
        book.note(sent)
        await house.consumer()
        await house.events.accept(sent)
        await house.drained()
        await ledger.check(database, book)


async def test_a_spoilt_cap_value_holds_up_nobody(database: Database, redis: Redis, tenant: int) -> None:
    async with loop(database, redis, main=1) as house:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        await redis.call("LPUSH", house.caps._store.key(Subject(tenant, "spoilt")), "no value of ours")
        users = ("ada", "spoilt", "bob")
        sent = [
            View(tenant, f"{user}{n}", now - n, now, shop.banners[0], user=user) for user in users for n in range(2)
        ]
        book = ledger.Ledger()
        book.note(sent)
        await put(house, [encode(event) for event in sent])
        await house.consumer()
        await house.drained()
        await ledger.check(database, book)
        banner = house.catalogue.tenant(tenant).banners[0]
        for user in ("ada", "bob"):
            assert not await house.allowed(tenant, user, banner, now)


async def test_a_projection_that_is_broken_is_told_and_passed_over(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL has counted: what Redis cannot take is rebuilt from there, and the lane goes on meanwhile."""

    async def refused(*_: object) -> None:
        raise Broken("A value could not be changed.", code="CAPS_REFUSED")

    async with loop(database, redis, main=1) as house:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        monkeypatch.setattr(house.caps, "settle", refused)
        sent = [View(tenant, f"v{n}", now - n, now, shop.banners[0], user="ada") for n in range(4)]
        book = ledger.Ledger()
        book.note(sent)
        consumer = await house.consumer()
        for event in sent:
            await house.events.accept([event])
        await house.drained()
        await ledger.check(database, book)
        assert "could not be changed" in str([health.last_error for health in consumer.healths()])


async def test_a_projection_that_redis_refuses_does_not_stop_the_lane(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of the wrong type is an error reply of Redis: in the lane, and again for its next owner."""
    async with loop(database, redis, main=1) as house:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        wrong = house.keys.tagged("wrong-type", str(tenant))
        await redis.call("LPUSH", wrong, "a list")

        async def increment_list(*_: object) -> None:
            await redis.call("INCR", wrong)

        monkeypatch.setattr(house.caps, "settle", increment_list)
        book = ledger.Ledger()
        for turn in range(2):
            sent = [View(tenant, f"v{turn}-{n}", now - n, now, shop.banners[0], user="ada") for n in range(4)]
            book.note(sent)
            consumer = await house.consumer()
            for event in sent:
                await house.events.accept([event])
            await house.drained()
            assert "WRONGTYPE" in str([health.last_error for health in consumer.healths()])
            await consumer.stop()
            async with database.worker() as tx:
                await tx.execute(UNPROJECTED, house.lane_names())
        await ledger.check(database, book)


async def test_keys_are_forgotten_behind_the_horizon_and_no_others(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    """Rows of different partitions share their places in the file: only the old ones may go."""
    async with loop(database, redis) as house, owner(engines) as boss:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        sent = [Impression(tenant, f"e{n}", now, now, shop.banners[0]) for n in range(300)]
        await house.consumer()
        await house.events.accept(sent)
        await house.drained()
        await house.events.forget_keys(house.clock.now())  # other tests of this database may have left old ones
        aged = await boss.execute(
            "update events.event_keys set stored_time = stored_time - interval '37 days'"
            " where tenant_id = $1 and get_byte(key, 0) < 100",
            tenant,
        )
        old = int(aged.rpartition(" ")[2])
        assert 0 < old < 300
        await boss.execute("delete from events.key_ranges")  # keys that the test has aged are no keys that were stored
        assert await house.events.forget_keys(house.clock.now(), pages=1) == old
        async with database.worker() as tx:
            assert await tx.fetchval(ledger.KEYS, [tenant]) == 300 - old
        assert await house.events.forget_keys(house.clock.now() - timedelta(days=1)) == 0


async def test_a_lane_of_small_batches_and_large_ones_is_the_same(
    database: Database, redis: Redis, tenant: int
) -> None:
    """One entry may hold more events than a batch should: it is never cut in two."""
    async with loop(database, redis, main=1) as house:
        shop = await house.shop(tenant)
        sent = ledger.events(random.Random(4), [shop], 700, house.clock.now_ms())
        book = ledger.Ledger()
        book.note(sent)
        await put(house, [encode(event) for event in sent[:600]])
        await put(house, [encode(event) for event in sent[600:]])
        await house.consumer(ConsumerPolicy(batch_events=10, batch_wait_ms=1))
        await house.drained()
        await ledger.check(database, book)
