"""Impressions and clicks with a decision's token: what it says of them, and whose it must be."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from handbill.banners.callers import UserTokenRequired
from handbill.banners.model import NewCampaign
from handbill.banners.reporters import Reporters
from handbill.banners.throttle import Throttle
from handbill.banners.tokens import Tokens
from handbill.banners.tracking import Tracking
from handbill.banners.views import Views
from handbill.client.ids import ReportIds
from handbill.events.model import Click, Event, Impression, View
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import HandbillError, Invalid
from handbill.kit.fast import FastRequest
from handbill.tenants.model import JwtRules, NewKey, SettingsPatch, TenantPatch
from tests.kit.clocks import FakeClock
from tests.kit.loop import Loop, loop

TTL_MS = 60_000


@dataclass
class Accepting:
    """Takes every event and remembers it."""

    events: list[Event] = field(default_factory=list)

    async def accept(self, events: Sequence[Event], extra: Sequence[Sequence[object]] = ()) -> None:
        self.events += events

    async def is_counted(self, tenant_id: int, event_key: bytes) -> bool:
        return False


@dataclass
class Shop:
    loop: Loop
    tenant: int
    clock: FakeClock
    tokens: Tokens
    tracking: Tracking
    views: Views
    write_key: str
    accepting: Accepting
    banner: Any
    placement: Any

    def token(
        self,
        banner: Any = None,
        user: str = "ann",
        variant: bytes = b"b",
        tenant: int | None = None,
        session: str = "session-1",
        *,
        proved: bool = False,
    ) -> str:
        tenant = tenant or self.tenant
        number = self.loop.catalogue.known("banner", (banner or self.banner).banner_id)
        assert number is not None
        person = self.tokens.person(user, session, "mobile", "NL", proved=proved)
        return self.tokens.mint(tenant, number.id, 0, 0, variant, self.clock.now_ms(), person).decode()

    def body(self, **more: Any) -> dict[str, Any]:
        named = {"bannerPublicId": str(self.banner.banner_id), "placementPublicId": str(self.placement.placement_id)}
        return {**named, "correlationId": f"e{len(self.accepting.events)}", **more}

    async def send(self, route: str, body: Any) -> Any:
        request = FastRequest("POST", "/", b"", {}, json.dumps(body).encode(), "1.2.3.4", "r")
        reply = await {
            "impression": self.tracking.impression, "click": self.tracking.click,
            "impressions": self.tracking.impressions, "clicks": self.tracking.clicks,
        }[route](request)  # fmt: skip
        assert reply.status == 202
        return json.loads(reply.body)

    async def both(self, **more: Any) -> list[Impression | Click]:
        """The same as an impression and as a click: the events that came of it."""
        self.accepting.events.clear()
        await self.send("impression", self.body(**more))
        await self.send("click", self.body(destinationUrl="https://x.example", **more))
        found = [event for event in self.accepting.events if isinstance(event, Impression | Click)]
        assert [event.kind for event in found] == ["impression", "click"]
        return found

    async def refused(self, **more: Any) -> set[str]:
        codes = set()
        for route, own in (("impression", {}), ("click", {"destinationUrl": "https://x.example"})):
            with pytest.raises(HandbillError) as refused:
                await self.send(route, self.body(**own, **more))
            codes.add(refused.value.code)
        return codes


@pytest.fixture
async def shop(database: Database, redis: Redis, tenant: int) -> AsyncIterator[Shop]:
    clock, accepting = FakeClock(), Accepting()
    tokens = Tokens(b"k" * 32, ttl_s=TTL_MS // 1000)
    async with loop(database, redis, clock=clock) as made:
        guard = Throttle(redis, made.keys, clock)
        write_key = (await made.tenants.create_key(tenant, NewKey(name="w", kind="write"), actor="test")).key
        directory = made.tenants.directory
        reporters = Reporters(directory, guard, guard, clock)
        tracking = Tracking(made.catalogue, accepting, directory, tokens, reporters, clock)  # type: ignore[arg-type]
        banner, placement = await made.banner(tenant), await made.placement(tenant)
        views = Views(made.catalogue, accepting, made.caps, directory, reporters, clock, tokens=tokens)  # type: ignore[arg-type]
        yield Shop(made, tenant, clock, tokens, tracking, views, write_key, accepting, banner, placement)


async def test_a_good_token_says_which_variant_was_shown(shop: Shop) -> None:
    assert [event.variant for event in await shop.both()] == [None, None]
    assert [event.variant for event in await shop.both(variant="sent")] == ["sent", "sent"]
    assert [event.variant for event in await shop.both(variant="sent", token=shop.token())] == ["b", "b"]
    plain = shop.token(variant=b"")
    assert [event.variant for event in await shop.both(variant="sent", token=plain)] == [None, None]
    token = shop.token()
    shop.clock.advance(ms=TTL_MS)
    assert [event.variant for event in await shop.both(token=token)] == ["b", "b"], "also when it has expired"
    assert [event.user for event in await shop.both(token=token, userId="ann")] == ["ann", "ann"]


async def test_a_good_token_fills_what_was_not_sent(shop: Shop) -> None:
    def person(event: Impression | Click) -> tuple[str | None, ...]:
        return event.user, event.session, event.device, event.country

    assert [person(event) for event in await shop.both()] == [(None, None, None, None)] * 2
    known = (None, "session-1", "mobile", "NL")
    assert [person(event) for event in await shop.both(token=shop.token())] == [known] * 2
    sent = {"userId": "ann", "sessionId": "s", "deviceType": "tablet", "countryCode": "de"}
    assert [person(event) for event in await shop.both(token=shop.token(), **sent)] == [
        ("ann", "s", "tablet", "DE")
    ] * 2
    unstorable = shop.token(session="s\0\ud800")
    assert [event.session for event in await shop.both(token=unstorable)] == ["s?"] * 2, "nothing parks the event"


async def test_a_view_has_the_variant_device_and_country_of_its_decision(shop: Shop) -> None:
    async def viewed(agent: bytes = b"", **more: Any) -> View:
        body = {
            "banner_id": str(shop.banner.banner_id),
            "user_id": "ann",
            "view_duration_ms": 0,
            "event_id": "v",
            **more,
        }
        headers = {b"x-write-key": shop.write_key.encode(), b"user-agent": agent}
        await shop.views.view(FastRequest("POST", "/views", b"", headers, json.dumps(body).encode(), "1.2.3.4", "r"))
        (view,) = [event for event in shop.accepting.events[-1:] if isinstance(event, View)]
        return view

    def context(view: View) -> tuple[str | None, ...]:
        return view.variant, view.device, view.country

    phone = b"Mozilla/5.0 (iPhone; CPU iPhone OS 17_0 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148 Safari/604.1"
    assert context(await viewed()) == (None, None, None)
    assert context(await viewed(phone)) == (None, "mobile", None)
    token = shop.token()
    assert context(await viewed(token=token)) == ("b", "mobile", "NL")
    shop.clock.advance(ms=TTL_MS)
    assert context(await viewed(token=token)) == ("b", "mobile", "NL"), "also when it has expired"


async def test_only_a_decision_that_had_proof_and_has_not_expired_proves_its_user(shop: Shop) -> None:
    patch = TenantPatch(settings=SettingsPatch(jwt=JwtRules(kind="hs256", required=True), jwt_secret="s" * 32))
    await shop.loop.tenants.change_tenant(shop.tenant, patch, actor="test")
    proved, unproved = shop.token(proved=True), shop.token()

    async def viewed(token: str) -> None:
        body = {"banner_id": str(shop.banner.banner_id), "user_id": "ann", "view_duration_ms": 0, "event_id": "v"}
        headers = {b"x-write-key": shop.write_key.encode()}
        sent = json.dumps({**body, "token": token}).encode()
        await shop.views.view(FastRequest("POST", "/views", b"", headers, sent, "1.2.3.4", "r"))

    async def refused(token: str) -> None:
        assert await shop.refused(userId="ann", token=token) == {"USER_TOKEN_REQUIRED"}
        with pytest.raises(UserTokenRequired):
            await viewed(token)

    await refused(unproved)
    assert [event.user for event in await shop.both(userId="ann", token=proved)] == ["ann", "ann"]
    await viewed(proved)
    assert [event.kind for event in shop.accepting.events] == ["impression", "click", "view"]
    shop.clock.advance(ms=TTL_MS)
    await refused(proved)


async def test_a_token_of_another_banner_tenant_or_user_is_refused(shop: Shop) -> None:
    other = await shop.loop.banner(shop.tenant)
    for token in (shop.token(other), shop.token(tenant=shop.tenant + 1), "forged", shop.token()[:-1] + "!"):
        assert await shop.refused(token=token) == {"BAD_DECISION_TOKEN"}
    assert await shop.refused(token=shop.token(user="bob"), userId="ann") == {"BAD_DECISION_TOKEN"}
    assert await shop.refused(token="x" * 3001) == {"INVALID"}
    assert await shop.refused(variant="not a variant") == {"INVALID"}
    assert not shop.accepting.events


async def test_a_batch_refuses_the_one_with_a_wrong_token_alone(shop: Shop) -> None:
    good, bad = shop.body(token=shop.token()), shop.body(token="forged")
    told = await shop.send("impressions", {"events": [good, bad, good]})
    assert told["data"]["accepted"] == 2
    assert [(each["index"], each["code"]) for each in told["data"]["rejected"]] == [(1, "BAD_DECISION_TOKEN")]
    with pytest.raises(Invalid) as refused:
        await shop.send("clicks", {"events": [{**bad, "destinationUrl": "https://x.example"}]})
    assert refused.value.code == "BAD_DECISION_TOKEN"


async def test_a_banner_in_memory_is_not_looked_up(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = await shop.loop.banners.editor.create_campaign(shop.tenant, NewCampaign(name="C"), actor="t")
    shop.banner = await shop.loop.banner(shop.tenant, campaign_id=campaign.campaign_id)

    async def never(*_: object) -> None:
        raise AssertionError("the catalogue was asked for a banner it has in memory")

    monkeypatch.setattr(shop.loop.catalogue, "banner", never)
    number = shop.loop.catalogue.known("campaign", campaign.campaign_id)
    assert number is not None
    assert [event.campaign for event in await shop.both()] == [number.id, number.id]


async def test_another_tenants_campaign_counts_as_an_unknown_one(
    shop: Shop, make_tenant: Callable[..., Awaitable[int]]
) -> None:
    theirs = await shop.loop.banners.editor.create_campaign(await make_tenant(), NewCampaign(name="T"), actor="t")
    await shop.loop.catalogue.refresh()
    assert [event.campaign for event in await shop.both(campaignPublicId=str(theirs.campaign_id))] == [None, None]


async def test_reports_are_ordered_by_their_ids_whichever_requests_carry_them(shop: Shop) -> None:
    ids = ReportIds(shop.clock.now_ms)
    made = [ids.new() for _ in range(4)]  # in one millisecond
    headers = {b"x-write-key": shop.write_key.encode()}

    def view(one: str) -> dict[str, Any]:
        return {
            "banner_id": str(shop.banner.banner_id),
            "user_id": "ann",
            "view_duration_ms": 0,
            "event_id": f"view_{one}",
        }

    async def views(*some: str) -> None:
        body = json.dumps({"events": [view(one) for one in some]}).encode()
        await shop.views.views(FastRequest("POST", "/views/batch", b"", headers, body, "1.2.3.4", "r"))

    for some in ([made[3], made[1]], [made[2], made[0], made[1]]):
        shop.clock.advance(ms=7)
        impressions = [shop.body(correlationId=f"imp_{one}") for one in some]
        await shop.send("impressions", {"events": impressions})
        await shop.send("impression", impressions[0])
        clicks = [shop.body(correlationId=f"clk_{one}", destinationUrl="https://x.example") for one in some]
        await shop.send("clicks", {"events": clicks})
        await views(*some)
    for kind in (Impression, Click, View):
        sequences: dict[str, set[int]] = {}
        for event in shop.accepting.events:
            if isinstance(event, kind):
                sequences.setdefault(event.id[-36:], set()).add(event.sequence)
        assert {len(each) for each in sequences.values()} == {1}, "a copy has the same"
        assert sorted(sequences, key=lambda one: min(sequences[one])) == made
