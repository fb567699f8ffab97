"""The catalogue: changes with their audit row, the copy in memory, misses, schedules."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.banners.bulk import banners_from
from handbill.banners.catalogue import Catalogue, Found
from handbill.banners.checks import is_web_address
from handbill.banners.model import (
    Banner,
    BannerFilter,
    BannerPatch,
    CampaignPatch,
    CapRule,
    NewBanner,
    NewCampaign,
    NewPlacement,
    PlacementPatch,
    schedule_status,
)
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.clock import SystemClock
from handbill.kit.errors import Busy, Conflict, Invalid, NotFound, PreconditionFailed
from tests.kit.clocks import FakeClock
from tests.kit.loop import Loop, loop
from tests.kit.waiting import eventually

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
AUDITED = Sql("select action from tenants.audit_log where tenant_id = $1 order by audit_id", "test_audited")


def new(**more: object) -> NewBanner:
    return NewBanner(**{"x_times": 2, "y_hours": 24, "z_duration_sec": 3, **more})  # type: ignore[arg-type]


async def test_a_banners_life_is_audited_step_by_step(database: Database, redis: Redis, tenant: int) -> None:
    async with loop(database, redis) as house:
        editor = house.banners.editor
        campaign = await editor.create_campaign(tenant, NewCampaign(name="Summer"), actor="t")
        place = await editor.create_placement(tenant, NewPlacement(name="Home", slug="home"), actor="t")
        made = await editor.create_banner(
            tenant, new(campaign_id=campaign.campaign_id, placement_ids=[place.placement_id]), actor="t"
        )
        assert (made.campaign_id, made.placement_ids) == (campaign.campaign_id, [place.placement_id])
        changed = await editor.change_banner(tenant, made.banner_id, BannerPatch(x_times=5), version=1, actor="t")
        assert (changed.x_times, changed.y_hours, changed.version) == (5, 24, 2)
        with pytest.raises(PreconditionFailed):
            await editor.change_banner(tenant, made.banner_id, BannerPatch(x_times=9), version=1, actor="t")
        copy = await editor.clone_banner(tenant, made.banner_id, actor="t")
        assert copy.banner_id != made.banner_id
        assert not copy.is_active
        assert (await editor.archive_banner(tenant, copy.banner_id, archived=True, actor="t")).archived
        kept = await editor.list_banners(tenant, None, 50, BannerFilter())
        archived = await editor.list_banners(tenant, None, 50, BannerFilter(archived=True))
        assert [row.banner_id for row in kept.items] == [made.banner_id]
        assert [row.banner_id for row in archived.items] == [copy.banner_id]
        await editor.delete_banner(tenant, made.banner_id, version=None, actor="t")
        with pytest.raises(NotFound):
            await editor.read_banner(tenant, made.banner_id)
        async with database.tenant(tenant) as tx:
            actions = [row["action"] for row in await tx.fetch(AUDITED, tenant)]
        assert actions == [
            "campaign.create", "placement.create", "banner.create", "banner.change", "banner.clone", "banner.archive",
            "banner.delete",
        ]  # fmt: skip


async def test_every_fault_is_told_and_nothing_is_made(database: Database, redis: Redis, tenant: int) -> None:
    async with loop(database, redis) as house:
        editor = house.banners.editor
        bad = new(start_date=NOW, end_date=NOW, cta_link="javascript:alert(1)", image_url="//evil.example/x.png")
        with pytest.raises(Invalid) as refused:
            await editor.create_banners(tenant, [new(), bad, new(campaign_id=uuid4())], actor="t")
        fields = {fault.field for fault in refused.value.faults}
        assert fields == {"[1].end_date", "[1].cta_link", "[1].image_url", "[2].campaign_id"}
        assert (await editor.list_banners(tenant, None, 50, BannerFilter())).items == []
        with pytest.raises(Invalid):
            await editor.create_banner(tenant, new(start_date=NOW, publish_at=NOW + timedelta(1)), actor="t")
        everything = new(
            end_date=NOW, publish_at=NOW, campaign_id=uuid4(), placement_ids=[uuid4()], cta_link="//x",
            caps=[CapRule(x=1, per="window")],
        )  # fmt: skip
        with pytest.raises(Invalid) as refused:
            await editor.create_banner(tenant, everything, actor="t")
        assert [fault.field for fault in refused.value.faults] == [
            "end_date", "campaign_id", "placement_ids", "cta_link", "caps[0].y_hours",
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("patch", "field", "reason"),
    [
        ({"end_date": NOW}, "end_date", "must be later than start_date"),
        ({"expires_at": NOW - timedelta(1)}, "expires_at", "must be later than publish_at"),
        ({"start_date": NOW + timedelta(9)}, "start_date", "must be earlier than end_date"),
        ({"publish_at": NOW + timedelta(3)}, "publish_at", "must be earlier than expires_at"),
        ({"start_date": NOW, "expires_at": NOW}, "expires_at", "must be later than start_date"),
        ({"end_date": datetime(1, 1, 1, tzinfo=UTC)}, "end_date", "must be between 1970"),
        ({"start_date": NOW, "publish_at": None}, "start_date", "is the same time as publish_at"),
    ],
)
async def test_a_fault_of_the_window_has_the_name_that_was_sent(
    database: Database, redis: Redis, tenant: int, patch: dict[str, Any], field: str, reason: str
) -> None:
    async with loop(database, redis) as house:
        editor = house.banners.editor
        made = await editor.create_banner(tenant, new(start_date=NOW, end_date=NOW + timedelta(3)), actor="t")
        with pytest.raises(Invalid) as refused:
            await editor.change_banner(tenant, made.banner_id, BannerPatch(**patch), version=None, actor="t")
        (fault,) = refused.value.faults
        assert fault.field == field
        assert fault.reason.startswith(reason)


async def test_banners_made_together_have_different_names(database: Database, redis: Redis, tenant: int) -> None:
    async with loop(database, redis) as house:
        made = await house.banners.editor.create_banners(tenant, [new(title=None, name=None)] * 50, actor="t")
        assert len({banner.name for banner in made}) == 50
        assert all(banner.name.startswith("Banner ") for banner in made)


async def test_nobody_reaches_another_tenants_things(database: Database, redis: Redis, make_tenant: object) -> None:
    ours, theirs = await make_tenant(), await make_tenant()  # type: ignore[operator]
    async with loop(database, redis) as house:
        editor = house.banners.editor
        campaign = await editor.create_campaign(theirs, NewCampaign(name="Theirs"), actor="t")
        place = await editor.create_placement(theirs, NewPlacement(name="Theirs", slug="theirs"), actor="t")
        banner = await editor.create_banner(theirs, new(), actor="t")
        for named in (new(campaign_id=campaign.campaign_id), new(placement_ids=[place.placement_id])):
            with pytest.raises(Invalid):
                await editor.create_banner(ours, named, actor="t")
        with pytest.raises(NotFound):
            await editor.read_banner(ours, banner.banner_id)
        with pytest.raises(NotFound):
            await editor.change_campaign(
                ours, campaign.campaign_id, CampaignPatch(name="Ours"), version=None, actor="t"
            )
        with pytest.raises(NotFound):
            await editor.delete_placement(ours, place.placement_id, version=None, actor="t")


async def test_a_slug_is_taken_once_and_free_again_after_deletion(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        editor = house.banners.editor
        first = await editor.create_placement(tenant, NewPlacement(name="A", slug="top"), actor="t")
        other = await editor.create_placement(tenant, NewPlacement(name="B", slug="bottom"), actor="t")
        with pytest.raises(Conflict):
            await editor.create_placement(tenant, NewPlacement(name="C", slug="top"), actor="t")
        with pytest.raises(Conflict):
            await editor.change_placement(
                tenant, other.placement_id, PlacementPatch(slug="top"), version=None, actor="t"
            )
        await editor.delete_placement(tenant, first.placement_id, version=None, actor="t")
        assert (await editor.create_placement(tenant, NewPlacement(name="D", slug="top"), actor="t")).slug == "top"


async def test_another_process_sees_a_change_by_message_and_by_poll(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        other = Catalogue(database, redis, SystemClock())
        await other.start()
        try:
            made = await house.banners.editor.create_banner(tenant, new(), actor="t")
            await eventually(lambda: other.known("banner", made.banner_id))
            await house.banners.editor.delete_banner(tenant, made.banner_id, version=None, actor="t")
            await eventually(lambda: other.known("banner", made.banner_id) is None)
            assert await other.find("banner", made.banner_id), "a deleted banner still counts"
        finally:
            await other.stop()


class Counting:
    """A database that counts the look-ups, to see how many askers share one."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.lookups = 0

    def lookup(self) -> object:
        self.lookups += 1
        return self._database.lookup()

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)


async def test_a_miss_asks_once_for_everybody_and_remembers_that_nothing_is_there(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        made = await house.banners.editor.create_banner(tenant, new(), actor="t")
        counting, clock = Counting(database), FakeClock()
        catalogue = Catalogue(counting, redis, clock)  # type: ignore[arg-type]
        found = await asyncio.gather(*(catalogue.find("banner", made.banner_id) for _ in range(20)))
        assert {one.tenant_id for one in found if one} == {tenant}
        assert counting.lookups == 1
        stranger = uuid4()
        assert await catalogue.find("banner", stranger) is None
        assert await catalogue.find("banner", stranger) is None
        assert counting.lookups == 2
        clock.advance(seconds=1.1)
        assert await catalogue.find("banner", stranger) is None
        assert counting.lookups == 3


@given(st.lists(st.tuples(*[st.none() | st.integers(-3, 3)] * 2), max_size=6), st.integers(-4, 4))
def test_the_status_is_a_function_of_now(windows: list[tuple[int | None, int | None]], shift: int) -> None:
    now = NOW + timedelta(hours=shift)
    for start, end in windows:
        publish = NOW + timedelta(hours=start) if start is not None else None
        expires = NOW + timedelta(hours=end) if end is not None else None
        status = schedule_status(publish, expires, now)
        over = expires is not None and expires <= now
        waiting = publish is not None and publish > now
        assert status == ("expired" if over else "scheduled" if waiting else "active")


async def _status(house: Loop, tenant: int, banner: UUID) -> str:
    return (await house.banners.editor.read_banner(tenant, banner)).schedule_status


async def test_the_sync_decides_each_row_from_now_and_again_changes_nothing(
    database: Database, redis: Redis, tenant: int
) -> None:
    async with loop(database, redis) as house:
        editor, start = house.banners.editor, house.clock.now()
        hour = timedelta(hours=1)
        soon = await editor.create_banner(tenant, new(publish_at=start + hour, expires_at=start + 3 * hour), actor="t")
        brief = await editor.create_banner(tenant, new(publish_at=start + hour, expires_at=start + hour * 2), actor="t")
        campaign = await editor.create_campaign(
            tenant, NewCampaign(name="C", starts_at=start + hour, ends_at=start + 2 * hour), actor="t"
        )
        assert await _status(house, tenant, soon.banner_id) == "scheduled"
        later = start + 2 * hour
        await house.banners.schedule.sync(later, "sync-test")
        assert await _status(house, tenant, soon.banner_id) == "active"
        assert await _status(house, tenant, brief.banner_id) == "expired", "its whole window passed between two runs"
        assert (await editor.read_campaign(tenant, campaign.campaign_id)).status == "ended"
        version = (await editor.read_banner(tenant, soon.banner_id)).version
        await house.banners.schedule.sync(later, "sync-test")
        assert (await editor.read_banner(tenant, soon.banner_id)).version == version
        await house.catalogue.refresh()
        shown = {banner.public_id for banner in house.catalogue.tenant(tenant).shown(later)}
        assert shown == {soon.banner_id}
        edge = {banner.public_id for banner in house.catalogue.tenant(tenant).shown(start + 3 * hour)}
        assert edge == set(), "the window is half-open"


async def test_keys_of_other_programs_go_when_something_changed(database: Database, redis: Redis, tenant: int) -> None:
    async with loop(database, redis) as house:
        await house.banners.schedule.sync(house.clock.now(), "quiet")
        await redis.call("SET", f"banners:serve:{tenant}", "x")
        await house.banners.schedule.sync(house.clock.now() - timedelta(days=400), "nothing of ours is that old")
        start = house.clock.now()
        await house.banners.editor.create_banner(tenant, new(expires_at=start + timedelta(hours=1)), actor="t")
        synced = await house.banners.schedule.sync(start + timedelta(hours=2), "sync")
        assert synced.banners_expired >= 1
        assert await redis.call("EXISTS", f"banners:serve:{tenant}") == 0


async def test_the_keys_of_redis_are_walked_only_when_a_schedule_changed_something(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with loop(database, redis) as house:
        schedule, start = house.banners.schedule, house.clock.now()
        banner = new(expires_at=start + timedelta(hours=1))
        made = await house.banners.editor.create_banner(tenant, banner, actor="t")
        walks = 0
        walk = schedule._served

        async def counted() -> list[bytes]:
            nonlocal walks
            walks += 1
            return await walk()

        monkeypatch.setattr(schedule, "_served", counted)
        assert (await schedule.sync(start + timedelta(hours=2), "changes")).total
        assert walks == 1
        assert not (await schedule.sync(start + timedelta(hours=2), "changes nothing")).total
        assert walks == 1
        assert await _status(house, tenant, made.banner_id) == "expired"


@pytest.mark.parametrize("former", ["deleted", "archived"])
async def test_a_banner_that_is_gone_is_read_once_a_second_however_often_it_is_seen(
    database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch, former: str
) -> None:
    clock = FakeClock()
    async with loop(database, redis, clock=clock) as house:
        editor, catalogue = house.banners.editor, house.catalogue
        made = await editor.create_banner(tenant, new(), actor="t")
        await catalogue.refresh()
        found = await catalogue.find("banner", made.banner_id)
        assert found is not None
        if former == "deleted":
            await editor.delete_banner(tenant, made.banner_id, version=None, actor="t")
        else:
            await editor.archive_banner(tenant, made.banner_id, archived=True, actor="t")
        await catalogue.refresh()
        assert found.id not in catalogue.tenant(tenant).by_id
        reads = 0
        read = catalogue._read_banner

        async def counted(found: Found) -> Banner | None:
            nonlocal reads
            reads += 1
            return await read(found)

        monkeypatch.setattr(catalogue, "_read_banner", counted)
        for _ in range(20):
            banner = await catalogue.banner(found)
            assert banner is not None
            assert banner.public_id == made.banner_id
        assert reads == 1
        for _ in range(5):
            assert await catalogue.banner(Found(tenant, 2**29)) is None, "nor is one that there never was"
        assert reads == 2
        clock.advance(seconds=1.1)
        assert await catalogue.banner(found) is not None
        assert reads == 3


def test_bulk_reads_json_and_csv_and_names_every_bad_row() -> None:
    rows = b'[{"x_times":1,"y_hours":2,"z_duration_sec":3},{"x_times":0,"y_hours":2,"z_duration_sec":3}]'
    with pytest.raises(Invalid) as refused:
        banners_from(rows, "application/json")
    assert [fault.field for fault in refused.value.faults] == ["[1].x_times"]
    table = b'x_times,y_hours,z_duration_sec,name,is_active\r\n2,24,3,"Sale, big",false\r\n1,1,1,,\r\n'
    made = banners_from(table, "text/csv; charset=utf-8").banners
    assert [(one.x_times, one.name, one.is_active) for one in made] == [(2, "Sale, big", False), (1, None, True)]
    twice = b"x_times,x_times,y_hours,z_duration_sec\n1,1,1,1\n"
    for body in (b"x_times,nonsense\n1,2\n", b"x_times,y_hours\n1\n", b"\xff\xfe", b"x_times,y_hours\n1,2,3\n", twice):
        with pytest.raises(Invalid):
            banners_from(body, "text/csv")
    for body in (b"{}", b"[", b"[]"):
        with pytest.raises(Invalid):
            banners_from(body, "application/json")


@pytest.mark.parametrize(
    ("address", "fine"),
    [
        ("https://shop.example.com/a?b=c#d", True),
        ("http://localhost:8080/", True),
        ("/offers", True),
        ("//evil.example", False),
        ("/\\evil.example", False),
        ("javascript:alert(1)", False),
        ("data:text/html,x", False),
        ("https://", False),
        ("https://shop.example.com/\n", False),
        ("http://[::1", False),
    ],
)
def test_only_web_addresses_pass(address: str, fine: bool) -> None:
    assert is_web_address(address) is fine


async def test_the_age_of_the_catalog_is_the_time_since_it_was_compared_with_postgresql(
    database: Database, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    catalog = Catalogue(database, redis, clock)
    assert catalog.age_seconds() == math.inf, "nothing was loaded yet"
    await catalog.refresh()
    clock.advance(seconds=12)
    assert catalog.age_seconds() == 12

    async def away(tx: object, since: object) -> None:
        raise Busy("PostgreSQL is away")

    with monkeypatch.context() as changed:
        changed.setattr("handbill.banners.catalogue.store.versions_since", away)
        with pytest.raises(Busy):
            await catalog.refresh()
    clock.advance(seconds=20)
    assert catalog.age_seconds() == 32, "a look that failed proves nothing"
    await catalog.refresh()
    assert catalog.age_seconds() == 0
