"""How a banner looks, for anybody: only while it is shown, right after it was made, and at a bounded cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from handbill.banners.catalogue import Catalogue
from handbill.banners.model import BannerPatch, CampaignPatch, NewBanner, NewCampaign
from handbill.banners.public import Public
from handbill.banners.throttle import Throttle, ThrottlePolicy
from handbill.banners.tokens import Tokens
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import NotFound, Throttled
from tests.kit.clocks import FakeClock
from tests.kit.loop import Loop, loop

ADDRESS = "1.2.3.4"


class Counting:
    """A database that counts the transactions in which the catalogue reads."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        if name in {"lookup", "tenant", "worker"}:
            self.reads += 1
        return getattr(self._database, name)


@dataclass
class Shop:
    """A tenant whose changes are made by another process: the catalogue in memory here is not notified of them."""

    loop: Loop
    tenant: int
    clock: FakeClock
    database: Counting
    catalogue: Catalogue
    public: Public

    async def make(self, **fields: Any) -> UUID:
        new = NewBanner(**{"x_times": 2, "y_hours": 24, "z_duration_sec": 3, **fields})
        return (await self.loop.banners.editor.create_banner(self.tenant, new, actor="test")).banner_id

    async def change(self, banner: UUID, **fields: Any) -> None:
        patch = BannerPatch(**fields)
        await self.loop.banners.editor.change_banner(self.tenant, banner, patch, version=None, actor="test")

    async def status(self, banner: UUID, address: str = ADDRESS) -> int:
        try:
            await self.public.banner(banner, None, address)
        except (NotFound, Throttled) as error:
            return error.status
        return 200


@pytest.fixture
async def shop(database: Database, redis: Redis, tenant: int) -> AsyncIterator[Shop]:
    clock, counting = FakeClock(), Counting(database)
    async with loop(database, redis, clock=clock) as made:
        catalogue = Catalogue(counting, redis, clock)  # type: ignore[arg-type]
        await catalogue.refresh()
        throttle = Throttle(redis, made.keys, clock, ThrottlePolicy(limit=500))
        public = Public(catalogue, made.events, made.tenants.directory, Tokens(b"k" * 32), throttle, clock)
        yield Shop(made, tenant, clock, counting, catalogue, public)


async def test_only_what_is_shown_now_can_be_seen(shop: Shop) -> None:
    now, day = shop.clock.now(), timedelta(days=1)
    editor = shop.loop.banners.editor
    ended = await editor.create_campaign(shop.tenant, NewCampaign(name="Old", ends_at=now - day), actor="test")
    later = await editor.create_campaign(shop.tenant, NewCampaign(name="New", starts_at=now + day), actor="test")
    paused = await editor.create_campaign(shop.tenant, NewCampaign(name="Off", is_active=False), actor="test")
    archived, deleted = await shop.make(), await shop.make()
    await editor.archive_banner(shop.tenant, archived, archived=True, actor="test")
    await editor.delete_banner(shop.tenant, deleted, version=None, actor="test")
    hidden = [
        await shop.make(start_date=now + day),
        await shop.make(start_date=now - 2 * day, end_date=now - day),
        await shop.make(is_active=False),
        *[await shop.make(campaign_id=each.campaign_id) for each in (ended, later, paused)],
        archived,
        deleted,
    ]
    shown = await shop.make(start_date=now - day, end_date=now + day)
    for _ in ("with a stale copy in memory", "with a fresh one"):
        assert await shop.status(shown) == 200
        assert {await shop.status(banner) for banner in hidden} == {404}
        await shop.catalogue.refresh()
        shop.clock.advance(seconds=2)


async def test_what_decisions_choose_from_and_what_can_be_seen_is_the_same(shop: Shop) -> None:
    now, hour = shop.clock.now(), timedelta(hours=1)
    editor = shop.loop.banners.editor
    campaign = await editor.create_campaign(
        shop.tenant, NewCampaign(name="C", starts_at=now + hour, ends_at=now + 3 * hour), actor="test"
    )
    banners = [
        await shop.make(),
        await shop.make(campaign_id=campaign.campaign_id),
        await shop.make(campaign_id=campaign.campaign_id, end_date=now + 2 * hour),
        await shop.make(start_date=now + 2 * hour, is_active=False),
    ]
    await shop.catalogue.refresh()
    for _ in range(4):
        chosen = {banner.public_id for banner in shop.catalogue.tenant(shop.tenant).shown(shop.clock.now())}
        assert {banner for banner in banners if await shop.status(banner) == 200} == chosen
        shop.clock.advance(hours=1)


async def test_a_banner_can_be_seen_right_after_it_was_made_or_changed(shop: Shop) -> None:
    made = await shop.make()
    assert await shop.status(made) == 200
    started = await shop.make(is_active=False)
    await shop.catalogue.refresh()
    await shop.change(started, is_active=True)
    assert await shop.status(started) == 200
    editor = shop.loop.banners.editor
    campaign = await editor.create_campaign(shop.tenant, NewCampaign(name="C", is_active=False), actor="test")
    of_campaign = await shop.make(campaign_id=campaign.campaign_id)
    await shop.catalogue.refresh()
    patch = CampaignPatch(is_active=True)
    await editor.change_campaign(shop.tenant, campaign.campaign_id, patch, version=None, actor="test")
    assert await shop.status(of_campaign) == 200


async def test_a_banner_is_not_kept_past_its_end(shop: Shop) -> None:
    now = shop.clock.now()
    editor = shop.loop.banners.editor
    campaign = await editor.create_campaign(
        shop.tenant, NewCampaign(name="C", ends_at=now + timedelta(seconds=30)), actor="test"
    )
    cases = {
        await shop.make(): 60,
        await shop.make(end_date=now + timedelta(hours=1)): 60,
        await shop.make(end_date=now + timedelta(seconds=45, milliseconds=900)): 45,
        await shop.make(end_date=now + timedelta(milliseconds=300)): 0,
        await shop.make(end_date=now + timedelta(seconds=45), campaign_id=campaign.campaign_id): 30,
        await shop.make(start_date=now - timedelta(seconds=5)): 60,
    }
    assert {banner: (await shop.public.banner(banner, None, ADDRESS))[1] for banner in cases} == cases


async def test_a_suspended_tenants_banners_cannot_be_seen(shop: Shop) -> None:
    made = await shop.make()
    assert await shop.status(made) == 200
    await shop.loop.tenants.suspend(shop.tenant, actor="test")
    assert await shop.status(made) == 404
    await shop.loop.tenants.resume(shop.tenant, actor="test")
    assert await shop.status(made) == 200


async def test_misses_are_remembered_shared_and_limited_by_address(shop: Shop) -> None:
    unknown = uuid4()
    before = shop.database.reads
    assert set(await asyncio.gather(*(shop.status(unknown) for _ in range(10)))) == {404}
    assert await shop.status(unknown) == 404
    assert shop.database.reads == before + 1, "one look-up for all who ask for the same id"

    shop.clock.advance(minutes=1)
    new = [await shop.make() for _ in range(5)]
    loads = shop.database.reads
    assert set(await asyncio.gather(*(shop.status(each) for each in new))) == {200}
    assert shop.database.reads <= loads + 5 + 2, "the tenant's catalogue is loaded once for all"

    before = shop.database.reads
    outcomes = [await shop.status(uuid4(), "5.6.7.8") for _ in range(200)]
    assert set(outcomes) == {404, 429}
    assert outcomes.count(404) <= 100 + 10, "the limit, and what an address has on credit"
    assert shop.database.reads - before == outcomes.count(404)
    assert await shop.status(new[0], "5.6.7.8") == 200, "what is shown needs no look-up"
    assert await shop.status(await shop.make()) == 200, "another address is not held back"
