"""From events to decisions: people's hours are the same in whatever order they came, and go when they should."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from handbill.active_hours import store
from handbill.active_hours.model import AVERAGE, COUNT_MAX, HOUR_MS, QUARTERS, WEEK_MS, Activity, Profile
from handbill.active_hours.service import SETTLE_AFTER, ActiveHoursService
from handbill.banners.model import DecidingPatch
from handbill.events.model import CapturedEvent, Edge, EdgeKind
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit import crashpoints
from handbill.kit.fast import FastRequest
from handbill.segments.projection import ACTIVE_HOURS, ProjectionKeys, opened
from handbill.tenants.model import NewKey, TenantPatch
from tests.conftest import MakeTenant
from tests.kit.clocks import FakeClock
from tests.kit.loop import Loop, loop

DAY_MS = 24 * HOUR_MS
ROWS = Sql(
    "select distinct_id, week, counts, first_at, last_at, zone, zone_at, zone_key from active_hours.activity"
    " where tenant_id = $1 order by distinct_id, week",
    "test_activity",
)


@dataclass
class Stage:
    loop: Loop
    tenant: int
    clock: FakeClock
    keys: dict[str, str]

    async def switch(self, tenant: int | None = None, *, on: bool = True, **more: Any) -> None:
        patch = DecidingPatch(smart_scheduling=on, **more)
        await self.loop.banners.editor.change_deciding(tenant or self.tenant, patch, version=None, actor="test")
        await self.loop.catalogue.refresh()

    async def send(self, events: Sequence[CapturedEvent]) -> None:
        await self.loop.events.accept(list(events))

    async def settled(self) -> None:
        """Until the pipeline has taken everything and the profiles are written."""
        await self.loop.drained()
        self.clock.advance(seconds=SETTLE_AFTER.total_seconds() + 1)
        while await self.loop.segments.keeper.turn():
            continue

    async def rows(self, tenant: int | None = None) -> list[tuple[Any, ...]]:
        async with self.loop.database.worker() as tx:
            return [tuple(row.values()) for row in await tx.fetch(ROWS, tenant or self.tenant)]

    async def profile(self, who: str, tenant: int | None = None) -> Profile | None:
        key = ProjectionKeys(self.loop.keys).value(tenant or self.tenant, who)
        found = opened(await self.loop.redis.call("GET", key), (ACTIVE_HOURS,))
        profile: Profile | None = found.get(ACTIVE_HOURS)
        return profile

    async def decide(self, who: str = "ann", *, explain: bool = False) -> Any:
        headers = {b"x-write-key": self.keys["write"].encode()}
        if explain:
            headers = {b"authorization": b"Bearer " + self.keys["secret"].encode()}
        body = json.dumps({"user_id": who, "limit": 20}).encode()
        query = b"explain=1" if explain else b""
        request = FastRequest("POST", "/v1/decide", query, headers, body, "1.2.3.4", "r")
        reply = await self.loop.banners.serving.decide(request)
        assert reply.status == 200
        return json.loads(reply.body)

    async def shown(self, who: str = "ann") -> list[str]:
        told = await self.decide(who)
        return [each["banner_id"] for each in told["decisions"][0]["banners"]]

    async def why(self, banner: str, who: str = "ann") -> tuple[str, str | None, str | None]:
        told = await self.decide(who, explain=True)
        verdict = next(each for each in told["explain"] if each["banner_id"] == banner)
        return verdict["reason"], verdict["rule"], verdict["next_eligible_at"]


@pytest.fixture
async def stage(database: Database, redis: Redis, tenant: int) -> AsyncIterator[Stage]:
    clock = FakeClock()
    async with loop(database, redis, clock=clock) as made:
        await made.consumer()
        keys = {}
        for kind in ("write", "secret"):
            new = NewKey(name=kind, kind=kind, scopes=["banners:read"] if kind == "secret" else [])
            keys[kind] = (await made.tenants.create_key(tenant, new, actor="test")).key
        yield Stage(made, tenant, clock, keys)


def evenings(
    stage: Stage, who: str = "ann", days: int = 25, *, hour: int = 20, tenant: int | None = None, **fields: Any
) -> list[CapturedEvent]:
    """One event each day in this hour of UTC, the last of them yesterday."""
    first = stage.clock.now_ms() // DAY_MS * DAY_MS - days * DAY_MS
    events = []
    for day in range(days):
        at = first + day * DAY_MS + hour * HOUR_MS
        name = f"{who}-{hour}-{day}-{fields.get('timezone')}"
        events.append(CapturedEvent(tenant or stage.tenant, name, at, at, "seen", who, "own", **fields))
    return events


async def test_a_banner_waits_for_the_hours_in_which_its_user_is_active(stage: Stage) -> None:
    banner = str((await stage.loop.banner(stage.tenant, targeting={"active_hours": True})).banner_id)
    assert await stage.shown() == [banner], "switched off: the rule holds for everybody"
    assert await stage.why(banner) == ("SHOWN", "active hours hold for everybody: smart_scheduling is off", None)
    await stage.switch()
    assert await stage.shown() == [banner], "before anything is projected"
    await stage.send(evenings(stage, timezone="Europe/Amsterdam")[:12])
    await stage.settled()
    assert await stage.shown() == [banner], "too little is known"
    assert await stage.why(banner) == (
        "SHOWN", "active hours of this user are not known yet: 12 of 20 events, 11 of 7 days", None,
    )  # fmt: skip
    await stage.send(evenings(stage, timezone="Europe/Amsterdam")[12:])
    await stage.settled()
    assert await stage.shown() == []
    now = stage.clock.now()
    assert await stage.why(banner) == (
        "TARGETING",
        "the user is usually active at 19:00-00:00 (Europe/Amsterdam); it is 13:00 there now, next at 19:00",
        now.replace(hour=18, minute=0, second=0, microsecond=0).isoformat().replace("+00:00", "Z"),
    )
    assert await stage.shown("bob") == [banner], "nothing is known of him"
    stage.clock.advance(hours=6)
    assert await stage.shown() == [banner]
    assert await stage.why(banner) == ("SHOWN", None, None)


async def test_the_dearest_banners_come_first_in_an_active_hour(stage: Stage) -> None:
    dear = str((await stage.loop.banner(stage.tenant, revenue=9.0, name="dear")).banner_id)
    first = str((await stage.loop.banner(stage.tenant, priority=5, name="first")).banner_id)
    await stage.switch(ranking=["active_hour", "priority"])
    await stage.send(evenings(stage, timezone="Europe/Amsterdam"))
    await stage.settled()
    assert await stage.shown() == [first, dear], "at noon the criterion says nothing"
    assert await stage.shown("bob") == [first, dear]
    stage.clock.advance(hours=8)
    assert await stage.shown() == [dear, first]
    assert await stage.shown("bob") == [first, dear], "of whom nothing is known"
    await stage.switch(on=False)
    assert await stage.shown() == [first, dear]


async def test_reading_hours_takes_no_round_trip_of_its_own_and_off_reads_and_writes_nothing(stage: Stage) -> None:
    await stage.loop.banner(stage.tenant, targeting={"active_hours": True})
    await stage.send(evenings(stage))
    await stage.settled()
    assert await stage.rows() == []
    decider = stage.loop.banners.show.decider
    plan = await decider.plan(stage.tenant)
    assert plan.people is not None
    assert plan.people.needs == frozenset(), "nothing is read beside the caps"
    await stage.switch()
    await stage.shown()
    plan = await decider.plan(stage.tenant)
    assert plan.people is not None
    assert plan.people.needs == {ACTIVE_HOURS}
    calls: list[str] = []
    crashpoints.install(calls.append)
    try:
        await stage.shown()
    finally:
        crashpoints.install(None)
    assert [call for call in calls if "MGET" in call] == ["before:redis:MGET", "after:redis:MGET"]


async def test_a_tenant_without_it_never_reads_profiles(stage: Stage) -> None:
    await stage.loop.banner(stage.tenant)
    plan = await stage.loop.banners.show.decider.plan(stage.tenant)
    assert plan.people is None


@pytest.mark.parametrize("seed", range(3))
async def test_no_order_no_split_and_no_copy_changes_what_is_learnt(
    stage: Stage, make_tenant: MakeTenant, seed: int
) -> None:
    """Several tenants get the same events: in order, shuffled, in parts, twice, over both lanes and two workers."""
    chance = random.Random(seed)
    tenants = [stage.tenant, *[await make_tenant() for _ in range(3)]]
    await stage.loop.consumer()
    zones = [None, "Asia/Kathmandu", "Europe/Paris", "Nowhere/AtAll"]
    now = stage.clock.now_ms()
    events = []
    for number in range(200):
        at = now - chance.randrange(30 * DAY_MS)
        who, zone = chance.choice(["ann", "phone", "bob"]), chance.choice(zones)
        edge = Edge(EdgeKind.ALIAS, "phone") if number == 100 else None
        events.append((f"e{number}", at, who if edge is None else "ann", zone, edge))
    for place, tenant in enumerate(tenants):
        await stage.switch(tenant)
        sent = [
            CapturedEvent(tenant, name, at, at, "seen", who, "own", edge=edge, timezone=zone)
            for name, at, who, zone, edge in events
        ]
        if place:
            sent += chance.sample(sent, 60)
            chance.shuffle(sent)
        while sent:
            size = chance.choice((1, 7, 40)) if place else len(sent)
            await stage.send(sent[:size])
            del sent[:size]
    await stage.settled()
    first = await stage.rows(tenants[0])
    assert sum(sum(row[2]) for row in first) == len(events)
    for tenant in tenants[1:]:
        assert await stage.rows(tenant) == first
        for who in ("ann", "phone", "bob"):
            assert await stage.profile(who, tenant) == await stage.profile(who, tenants[0]) is not None
    assert await stage.profile("ann") == await stage.profile("phone"), "two ids, one person"
    assert await stage.profile("ann") != await stage.profile("bob")


async def test_counts_stop_at_their_limit_in_any_order(stage: Stage) -> None:
    """What is beyond it would fit no column, and the batch would never be counted."""
    for who, counts in (("ann", (COUNT_MAX, 1)), ("bob", (1, COUNT_MAX)), ("cid", (COUNT_MAX, COUNT_MAX))):
        for number in counts:
            activity = Activity(1, [number] * QUARTERS, WEEK_MS, WEEK_MS)
            async with stage.loop.database.worker() as tx:
                await store.add(tx, {(stage.tenant, who, 1): activity}, stage.clock.now())
    assert [row[2] for row in await stage.rows()] == [[COUNT_MAX] * QUARTERS] * 3


async def test_a_merge_adds_hours_up_and_taking_it_back_parts_them(stage: Stage) -> None:
    await stage.switch()
    await stage.send(evenings(stage, "ann", hour=20) + evenings(stage, "phone", hour=8))
    await stage.settled()
    alone = await stage.profile("ann"), await stage.profile("phone")
    assert alone[0] is not None
    assert alone[0].levels[8] < AVERAGE < alone[0].levels[20]
    page = await stage.loop.people.merge(stage.tenant, "phone", "ann", actor="test")
    await stage.settled()
    both = await stage.profile("ann")
    assert both is not None
    assert both == await stage.profile("phone")
    assert (both.events, both.levels[8] > AVERAGE, both.levels[20] > AVERAGE) == (50, True, True)
    await stage.loop.people.void(stage.tenant, page.edges[0].edge_id, actor="test")
    await stage.settled()
    assert (await stage.profile("ann"), await stage.profile("phone")) == alone


async def test_a_wiped_redis_gets_the_same_profiles_again(stage: Stage) -> None:
    banner = str((await stage.loop.banner(stage.tenant, targeting={"active_hours": True})).banner_id)
    await stage.switch()
    await stage.send(evenings(stage))
    await stage.settled()
    before = await stage.profile("ann")
    assert before is not None
    places = ProjectionKeys(stage.loop.keys)
    await stage.loop.redis.call("DEL", places.mark(stage.tenant))
    await stage.loop.redis.call("DEL", places.value(stage.tenant, "ann"))
    assert await stage.shown() == [banner], "nobody can tell: the rule holds"
    await stage.settled()
    assert await stage.profile("ann") == before
    assert await stage.shown() == []


async def test_the_tenants_zone_stands_for_people_whose_events_name_none(stage: Stage) -> None:
    await stage.loop.tenants.change_tenant(stage.tenant, TenantPatch(time_zone="Asia/Kolkata"), actor="test")
    await stage.switch()
    await stage.send(evenings(stage))
    await stage.settled()
    profile = await stage.profile("ann")
    assert profile is not None
    assert profile.zone == "Asia/Kolkata"
    assert max(range(24), key=lambda hour: profile.levels[hour]) in (0, 1, 2), "20:00 in UTC is 01:30 there"


async def test_what_is_kept_about_somebody_can_be_exported_and_erased(stage: Stage, make_tenant: MakeTenant) -> None:
    other = await make_tenant()
    await stage.switch()
    await stage.switch(other)
    await stage.send(evenings(stage, timezone="Asia/Tokyo") + evenings(stage, "bob") + evenings(stage, tenant=other))
    await stage.settled()
    service = ActiveHoursService(stage.loop.database)
    weeks = (await service.export(stage.tenant, "ann", 3))["active_hours.activity"]
    assert [len(weeks), len(weeks[0]["counts"]), weeks[0]["zone"]] == [3, 96, "Asia/Tokyo"]
    assert (await service.erase(stage.tenant, ["ann"]))["active_hours.activity"] >= 4
    assert (await service.erase(stage.tenant, ["ann"]))["active_hours.activity"] == 0
    await stage.loop.people.erase(stage.tenant, ["ann"])
    await stage.settled()
    assert {row[0] for row in await stage.rows()} == {"bob"}
    assert await stage.profile("ann") is None
    assert await stage.profile("bob") is not None
    assert {row[0] for row in await stage.rows(other)} == {"ann"}, "another tenant's"


async def test_old_weeks_go_and_with_the_last_of_them_the_profile(stage: Stage) -> None:
    await stage.switch()
    await stage.send(evenings(stage))
    await stage.settled()
    keeper, whole = stage.loop.segments.keeper, await stage.rows()
    await keeper.prune_active_hours()
    assert await stage.rows() == whole
    stage.clock.advance(days=9 * 7)
    await keeper.prune_active_hours()
    assert 0 < len(await stage.rows()) < len(whole)
    await stage.settled()
    assert await stage.profile("ann") is not None
    stage.clock.advance(days=3 * 7)
    await keeper.prune_active_hours()
    await stage.settled()
    assert await stage.rows() == []
    assert await stage.profile("ann") is None


async def test_switching_off_forgets_everything(stage: Stage, make_tenant: MakeTenant) -> None:
    banner = str((await stage.loop.banner(stage.tenant, targeting={"active_hours": True})).banner_id)
    other = await make_tenant()
    await stage.switch()
    await stage.switch(other)
    await stage.send(evenings(stage) + evenings(stage, tenant=other))
    await stage.settled()
    assert await stage.shown() == []
    await stage.switch(on=False)
    assert await stage.shown() == [banner], "at once"
    await stage.loop.segments.keeper.prune_active_hours()
    await stage.settled()
    assert await stage.rows() == []
    assert await stage.profile("ann") is None
    assert len(await stage.rows(other)) > 0


async def test_a_person_with_very_many_ids_is_read_in_part_and_the_newest_weeks_first(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "ROWS_OF_PERSON", 3)
    await stage.switch()
    await stage.send(evenings(stage, "ann", 28, hour=20))
    await stage.settled()
    profile = await stage.profile("ann")
    assert profile is not None
    assert 14 <= profile.events <= 21, "three weeks of it"
