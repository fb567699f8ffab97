"""Clicks through `/r/`: whose they are, when they are not counted, and what marks them as suspicious."""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator
from datetime import UTC, datetime, time, timedelta
from hashlib import blake2b
from struct import pack
from typing import Any
from uuid import UUID

import pytest

from handbill.banners.model import BannerPatch, NewCampaign, Variant
from handbill.banners.reporters import Reporters
from handbill.banners.show import ShowPolicy
from handbill.banners.suspicion import judge
from handbill.banners.throttle import Throttle
from handbill.banners.tracking import Tracking
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis, RedisError
from handbill.infra.sqlfiles import Sql
from handbill.kit.errors import Broken, Busy
from handbill.tenants.model import JwtRules, Privacy, SettingsPatch, TenantPatch
from tests.kit.clocks import FakeClock
from tests.kit.loop import loop
from tests.store.test_decide import KEY, Shop, make_shop

PERSONS = Sql(
    "select correlation_id, user_id, session_id, device_type, country_code, campaign_id, variant, destination_url"
    " from banners.banner_clicks where tenant_id = $1",
    "persons",
    "tests",
)
DROPS = Sql(
    "select kind, reason, sum(events)::int as events from events.drops where tenant_id = $1 group by 1, 2",
    "drops",
    "tests",
)
MARKS = Sql(
    "select c.user_id, m.reason from banners.event_marks m join banners.banner_clicks c"
    " on c.tenant_id = m.tenant_id and c.event_key = m.event_key where m.tenant_id = $1",
    "marks",
    "tests",
)
CLICKED = Sql("select event_key from banners.banner_clicks where tenant_id = $1", "clicks", "tests")


@pytest.fixture
async def shop(database: Database, redis: Redis, tenant: int) -> AsyncIterator[Shop]:
    clock = FakeClock()
    async with loop(database, redis, clock=clock) as made:
        yield await make_shop(made, tenant, clock, ShowPolicy(token_key=KEY, decisions_per_minute=0))


async def test_a_link_click_has_the_person_and_the_campaign_of_its_decision(shop: Shop) -> None:
    await shop.loop.consumer()
    editor = shop.loop.banners.editor
    first, second = [
        await editor.create_campaign(shop.tenant, NewCampaign(name=name), actor="test") for name in ("A", "B")
    ]
    variants = [Variant("red", cta_link="/red"), Variant("blue", cta_link="/blue")]
    made = await shop.banner(cta_link="/a", campaign_id=first.campaign_id, variants=variants)
    agent = {"user_agent": "Mozilla/5.0 (iPhone; CPU iPhone OS 17_0 like Mac OS X) Mobile/15E148", "country": "nl"}
    found = await shop.decide("ann", session_id="s-1", context=agent)
    (banner,) = found["decisions"][0]["banners"]
    assert banner["campaign_id"] == str(first.campaign_id)
    patch = BannerPatch(campaign_id=second.campaign_id)
    await editor.change_banner(shop.tenant, made.banner_id, patch, version=None, actor="test")
    await shop.loop.catalogue.refresh()
    of_first = shop.loop.catalogue.known("campaign", first.campaign_id)
    assert of_first is not None
    await shop.show.public.follow(banner["token"], "seen", "9.9.9.9", ())
    await shop.show.public.follow(old_token(shop, made.banner_id), "old", "9.9.9.9", ())
    await shop.loop.drained()
    async with shop.loop.database.tenant(shop.tenant) as tx:
        rows = {row["correlation_id"].partition(":")[2]: dict(row) for row in await tx.fetch(PERSONS, shop.tenant)}
    assert rows["seen"] | {"correlation_id": ""} == {
        "correlation_id": "", "user_id": "ann", "session_id": "s-1", "device_type": "mobile", "country_code": "NL",
        "campaign_id": of_first.id, "variant": banner["variant"], "destination_url": f"/{banner['variant']}",
    }  # fmt: skip
    of_second = shop.loop.catalogue.known("campaign", second.campaign_id)
    assert of_second is not None
    assert (rows["old"]["user_id"], rows["old"]["campaign_id"]) == (None, of_second.id), "it knew neither"


def old_token(shop: Shop, banner_id: UUID) -> str:
    """A token as an earlier release gave it out: signed, not encrypted."""
    banner = shop.loop.catalogue.known("banner", banner_id)
    assert banner is not None
    now_ms, user = shop.clock.now_ms(), shop.show.tokens.user(shop.tenant, "ann")
    body = pack(">BIIIQI8sI", 0x10, shop.tenant, banner.id, 0, now_ms, 60, user, 0)
    key = blake2b(KEY, person=b"handbill-token", digest_size=64).digest()
    return urlsafe_b64encode(body + hmac.digest(key, body, "sha256")[:17]).decode().rstrip("=")


async def test_a_click_through_an_old_link_is_a_drop_and_never_counted(shop: Shop) -> None:
    await shop.loop.consumer()
    made = await shop.banner(cta_link="/a")
    token = (await shop.decide())["decisions"][0]["banners"][0]["token"]
    signed = old_token(shop, made.banner_id)
    shop.clock.advance(days=1)
    for link in (token, signed):
        assert await shop.show.public.follow(link, None, "9.9.9.9", ()) == "/a"
        assert await shop.show.public.follow(link, None, "9.9.9.9", (), counts=False) == "/a"
    await shop.loop.drained()
    async with shop.loop.database.tenant(shop.tenant) as tx:
        assert not await tx.fetch(CLICKED, shop.tenant)
        drops = await tx.fetch(DROPS, shop.tenant)
    assert [(row["kind"], row["reason"], row["events"]) for row in drops] == [("click", "LINK_TOO_OLD", 2)]


async def test_a_zero_character_in_a_users_or_a_clicks_id_does_not_park_the_click(shop: Shop) -> None:
    await shop.loop.consumer()
    await shop.banner(cta_link="/a")
    token = (await shop.decide("a\0b", session_id="s\0"))["decisions"][0]["banners"][0]["token"]
    for click_id in (None, "\0", "x\0", "\ud800y"):
        assert await shop.show.public.follow(token, click_id, "9.9.9.9", ()) == "/a"
    await shop.loop.drained()
    async with shop.loop.database.tenant(shop.tenant) as tx:
        rows = await tx.fetch(PERSONS, shop.tenant)
    assert {(row["user_id"], row["session_id"]) for row in rows} == {("ab", "s")}
    assert sorted(row["correlation_id"].partition(":")[2] for row in rows) == ["", "?y", "x"], "none is parked"


async def test_a_click_id_of_any_length_leads_on(shop: Shop) -> None:
    await shop.loop.consumer()
    await shop.banner(cta_link="/a")
    token = (await shop.decide())["decisions"][0]["banners"][0]["token"]
    for click_id in (None, "", "x" * 150, "x" * 5_000, "y" * 151):
        assert await shop.show.public.follow(token, click_id, "9.9.9.9", ()) == "/a"
    await shop.loop.drained()
    async with shop.loop.database.tenant(shop.tenant) as tx:
        rows = await tx.fetch(PERSONS, shop.tenant)
    assert sorted(row["correlation_id"].partition(":")[2] for row in rows) == ["", "x" * 150, "y" * 150]


@pytest.mark.parametrize("error", [Busy("away"), Broken("no permission"), RedisError("WRONGTYPE", "not a stream")])
async def test_a_click_that_cannot_be_counted_leads_on(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    await shop.banner(cta_link="/a")
    token = (await shop.decide())["decisions"][0]["banners"][0]["token"]

    async def refused(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(shop.loop.events, "accept", refused)
    assert await shop.show.public.follow(token, None, "9.9.9.9", ()) == "/a"


async def test_nothing_is_kept_of_who_asks_not_to_be_tracked(shop: Shop) -> None:
    await shop.loop.consumer()
    await shop.banner(cta_link="/a")
    token = (await shop.decide())["decisions"][0]["banners"][0]["token"]
    for respected in (True, False):
        patch = TenantPatch(settings=SettingsPatch(privacy=Privacy(respect_dnt=respected)))
        await shop.loop.tenants.change_tenant(shop.tenant, patch, actor="test")
        click_id = f"respected-{respected}"
        assert await shop.show.public.follow(token, click_id, "9.9.9.9", (), untracked=True) == "/a"
    await shop.loop.drained()
    async with shop.loop.database.tenant(shop.tenant) as tx:
        persons = await tx.fetch(PERSONS, shop.tenant)
        drops = await tx.fetch(DROPS, shop.tenant)
    assert [row["correlation_id"].partition(":")[2] for row in persons] == ["respected-False"]
    assert [(row["kind"], row["reason"], row["events"]) for row in drops] == [("click", "DO_NOT_TRACK", 1)]


async def test_an_anonymous_click_is_nobodys(shop: Shop) -> None:
    """For links of whoever did not agree to be followed: they count, and say nothing of a person."""
    await shop.loop.consumer()
    await shop.banner(cta_link="/a")
    token = (await shop.decide("ann", session_id="s"))["decisions"][0]["banners"][0]["token"]
    assert await shop.show.public.follow(token, None, "9.9.9.9", (), anonymous=True) == "/a"
    await shop.loop.drained()
    async with shop.loop.database.tenant(shop.tenant) as tx:
        (row,) = await tx.fetch(PERSONS, shop.tenant)
    assert (row["user_id"], row["session_id"]) == (None, None)


async def test_a_link_of_a_decision_without_proof_is_not_counted_where_proof_is_required(shop: Shop) -> None:
    await shop.loop.consumer()
    made = await shop.banner(cta_link="/a")
    number = shop.loop.catalogue.known("banner", made.banner_id)
    assert number is not None
    links = {}
    for proved in (False, True):
        person = shop.show.tokens.person("ann", None, None, None, proved=proved)
        link = shop.show.tokens.mint(shop.tenant, number.id, 0, 0, b"", shop.clock.now_ms(), person)
        links[proved] = link.decode()
    jwt = SettingsPatch(jwt=JwtRules(kind="hs256", required=True), jwt_secret="s" * 32)
    await shop.loop.tenants.change_tenant(shop.tenant, TenantPatch(settings=jwt), actor="test")
    for proved, text in links.items():
        assert await shop.show.public.follow(text, f"proved-{proved}", "9.9.9.9", ()) == "/a"
    await shop.loop.drained()
    async with shop.loop.database.tenant(shop.tenant) as tx:
        persons = await tx.fetch(PERSONS, shop.tenant)
        drops = await tx.fetch(DROPS, shop.tenant)
    assert [row["correlation_id"].partition(":")[2] for row in persons] == ["proved-True"]
    assert [(row["kind"], row["reason"], row["events"]) for row in drops] == [("click", "UNPROVED_USER", 1)]


async def test_looking_at_a_link_counts_nothing(shop: Shop) -> None:
    await shop.loop.consumer()
    await shop.banner(cta_link="/a")
    token = (await shop.decide())["decisions"][0]["banners"][0]["token"]
    assert await shop.show.public.follow(token, None, "9.9.9.9", (), counts=False) == "/a"
    assert await shop.show.public.follow(token, "one", "9.9.9.9", ()) == "/a"
    await shop.loop.drained()
    async with shop.loop.database.tenant(shop.tenant) as tx:
        assert len(await tx.fetch(CLICKED, shop.tenant)) == 1


async def test_marks_of_suspicious_clicks_see_link_clicks(shop: Shop) -> None:
    """Neither mark for a click after its own impression; each for a click that lacks one, or that is too fast."""
    await shop.loop.consumer()
    place = await shop.placement("home")
    made = await shop.banner(cta_link="/a")
    guard = Throttle(shop.loop.redis, shop.loop.keys, shop.clock)
    directory = shop.loop.tenants.directory
    reporters = Reporters(directory, guard, guard, shop.clock)
    tracking = Tracking(shop.loop.catalogue, shop.loop.events, directory, shop.show.tokens, reporters, shop.clock)
    ids = {"bannerPublicId": str(made.banner_id), "placementPublicId": str(place.placement_id)}

    async def link(user: str) -> str:
        return str((await shop.decide(user, session_id=f"s-{user}"))["decisions"][0]["banners"][0]["token"])

    async def click(token: str, click_id: str | None = None) -> None:
        shop.clock.advance(seconds=5)
        await shop.show.public.follow(token, click_id, "9.9.9.9", ())

    named, by_session, unseen, hasty = [await link(user) for user in ("named", "by-session", "unseen", "hasty")]
    for event_id, token, user in (("i1", named, "named"), ("i2", by_session, None), ("i3", hasty, "hasty")):
        body = {**ids, "correlationId": event_id, "token": token, **({"userId": user} if user else {})}
        await tracking.impression(shop.request(body))
    for token in (named, by_session, unseen, hasty):
        await click(token)
    shop.clock.advance(ms=500)
    await shop.show.public.follow(hasty, "again", "9.9.9.9", ())
    await shop.loop.drained()
    day = datetime.combine(shop.clock.now().date(), time(), UTC)
    async with shop.loop.database.worker() as tx:
        await judge(tx, shop.tenant, day, day + timedelta(days=1))
    async with shop.loop.database.tenant(shop.tenant) as tx:
        marks = {row["user_id"]: row["reason"] for row in await tx.fetch(MARKS, shop.tenant)}
    assert marks == {"unseen": "no_impression", "hasty": "too_fast"}
