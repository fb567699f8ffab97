"""A raised limit, from the editor to Redis: right at once, asked of PostgreSQL until the back-fill has run."""

from __future__ import annotations

import uuid

import pytest

from handbill.banners.limits import SPREAD_MS, campaign_rules, kinds_of, placement_rules, rules_of
from handbill.banners.model import BannerPatch, CampaignPatch, CapRule, NewCampaign, PlacementPatch
from handbill.caps.model import FOREVER_MS, SESSION_MS, By, Rule, Viewer
from handbill.events.model import View, key
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.conftest import MakeTenant
from tests.kit.clocks import FakeClock
from tests.kit.loop import Loop, loop

HOUR = 3_600_000


async def seen(house: Loop, tenant: int, banner: int, campaign: int | None, placement: int | None) -> None:
    """A view as the edge takes it in: the event and the caps' commands in one round trip."""
    from handbill.caps.service import moves_of

    now = house.clock.now_ms()
    event = View(
        tenant, uuid.uuid4().hex, now, now, banner, placement, campaign, "ann", "s", device_id="d", duration_ms=9_000
    )
    moves = moves_of(key("view", event.id), now, banner, campaign, placement)
    commands = house.caps.move_commands(tenant, "ann", moves, device_id="d", session_id="s")
    await house.events.accept([event], commands)


async def free(house: Loop, tenant: int, rules: tuple[Rule, ...]) -> tuple[bool, bool]:
    """Whether it may be shown, and whether Redis knew it without PostgreSQL."""
    viewer, kinds, now = Viewer(tenant, "ann", "d", "s"), kinds_of(rules), house.clock.now_ms()
    caps = await house.caps.look(viewer, kinds)
    alone = not caps.unsure(rules, now)
    if not alone:
        caps = await house.caps.completed(viewer, kinds, caps)
    return caps.free(rules, now), alone


async def test_raised_limits_are_filled_from_postgresql_and_then_no_longer_doubted(
    database: Database, redis: Redis, tenant: int
) -> None:
    clock = FakeClock()
    async with loop(database, redis, clock=clock) as house:
        edit = house.banners.editor
        campaign = await edit.create_campaign(tenant, NewCampaign(name="C"), actor="test")
        place = await house.placement(tenant)
        banner = await house.banner(tenant, x_times=1, y_hours=1, campaign_id=campaign.campaign_id)
        snapshot = house.catalogue.tenant(tenant)
        number, of, at = snapshot.banners[0].id, snapshot.banners[0].campaign_id, next(iter(snapshot.placements))
        for _ in range(3):
            clock.advance(minutes=1)
            await seen(house, tenant, number, of, at)
        await house.consumer()
        await house.drained()

        def rules() -> tuple[Rule, ...]:
            now = house.catalogue.tenant(tenant)
            return rules_of(now.banners[0], now) + placement_rules(now.placements[at])

        assert await free(house, tenant, rules()) == (False, True)
        four, three = [CapRule(x=4, y_hours=2)], [CapRule(x=3, per="lifetime")]
        await edit.change_banner(tenant, banner.banner_id, BannerPatch(x_times=4), version=None, actor="test")
        await house.catalogue.refresh()
        assert await free(house, tenant, rules()) == (True, False), "three of four, and Redis had kept one"
        for caps in (four, three):
            await edit.change_campaign(
                tenant, campaign.campaign_id, CampaignPatch(caps=caps), version=None, actor="test"
            )
            await edit.change_placement(
                tenant, place.placement_id, PlacementPatch(caps=caps), version=None, actor="test"
            )
            await house.catalogue.refresh()
            assert (await free(house, tenant, rules()))[0] is (caps is four)

        house.banners.backfill._look = {tenant}  # other tests leave tenants whose limits were raised
        assert await house.banners.backfill.run() == 0, "not while a process may still trim by the old limits"
        clock.advance(ms=SPREAD_MS + 1)
        assert await house.banners.backfill.run() == 3
        await house.catalogue.refresh()
        assert await house.banners.backfill.run() == 0
        assert await free(house, tenant, rules()) == (False, True), "Redis knows it by itself now"
        lasting = campaign_rules(house.catalogue.tenant(tenant).campaigns[of or 0])
        caps_now = await house.caps.look(Viewer(tenant, "ann"))
        assert caps_now.seen(By.USER, lasting[0].scope) == 3


async def test_the_catalogue_speaks_of_every_kind_of_limit(database: Database, redis: Redis, tenant: int) -> None:
    async with loop(database, redis, clock=FakeClock()) as house:
        await house.banner(
            tenant, cap_by="device", cap_mode="strict",
            caps=[CapRule(x=1, per="session"), CapRule(x=9, per="lifetime"), CapRule(x=5, y_hours=48)],
        )  # fmt: skip
        snapshot = house.catalogue.tenant(tenant)
        device, session = rules_of(snapshot.banners[0], snapshot)
        assert (device.by, session.by) == (By.DEVICE, By.SESSION)
        assert [(w.x, w.y_ms) for w in device.limits.windows] == [(2, 24 * HOUR), (9, FOREVER_MS), (5, 48 * HOUR)]
        assert [(w.x, w.y_ms) for w in session.limits.windows] == [(1, SESSION_MS)]
        assert kinds_of((device, session)) == (By.USER, By.DEVICE, By.SESSION)
        assert house.caps.book.rules(tenant, device.scope) == (device, session)
        assert house.caps.book.longest_ms(tenant) == 48 * HOUR


async def test_an_error_of_one_tenant_leaves_the_raised_limits_of_the_others_their_turn(
    database: Database, redis: Redis, tenant: int, make_tenant: MakeTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, other = FakeClock(), await make_tenant()
    async with loop(database, redis, clock=clock) as house:
        backfill, edit = house.banners.backfill, house.banners.editor
        for each in (tenant, other):
            banner = await house.banner(each, x_times=1, y_hours=1)
            await edit.change_banner(each, banner.banner_id, BannerPatch(x_times=4), version=None, actor="test")
        await house.catalogue.refresh()
        clock.advance(ms=SPREAD_MS + 1)
        backfill._look = {tenant, other}  # other tests leave tenants whose limits were raised
        real = house.caps.backfill

        async def fail(tenant_id: int) -> None:
            if tenant_id == tenant:
                raise RuntimeError("injected")
            await real(tenant_id)

        assert tenant < other, "the tenant that fails comes first"
        monkeypatch.setattr(house.caps, "backfill", fail)
        assert await backfill.run() == 1
        await house.catalogue.refresh()
        raised = [house.catalogue.tenant(each).banners[0].limits_raised_at for each in (tenant, other)]
        assert raised[0] is not None
        assert raised[1] is None
