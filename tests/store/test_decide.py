"""Deciding with real engines: what a user gets, why, and what is left when engines are away."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import jwt as pyjwt
import pytest

from handbill.banners import decide
from handbill.banners.model import CapRule, DecidingPatch, NewPlacement, PlacementView, Variant
from handbill.banners.reporters import Reporters
from handbill.banners.serving import Serving
from handbill.banners.show import Show, ShowPolicy
from handbill.banners.throttle import Throttle
from handbill.banners.views import Views
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.errors import Busy, Forbidden, HandbillError, Invalid, NotFound, Throttled, Unauthorized
from handbill.kit.fast import FastRequest
from handbill.tenants.model import JwtRules, NewKey, SettingsPatch, TenantPatch
from tests.kit.clocks import FakeClock
from tests.kit.loop import Loop, loop
from tests.kit.waiting import eventually

KEY = b"a key of the installation"
SECRET = "a-secret-of-at-least-32-characters-x"


@dataclass
class Shop:
    """One tenant with its keys, and the routes in front of it."""

    loop: Loop
    tenant: int
    clock: FakeClock
    show: Show
    serving: Serving
    views: Views
    write_key: str
    secret_key: str

    def request(self, body: Any = None, query: str = "", path: str = "/v1/decide", **headers: str) -> FastRequest:
        sent = {"x-write-key": self.write_key, **{name.replace("_", "-"): value for name, value in headers.items()}}
        raw = {name.encode(): value.encode() for name, value in sent.items() if value}
        encoded = b"" if body is None else json.dumps(body).encode()
        return FastRequest("POST", path, query.encode(), raw, encoded, "1.2.3.4", "r")

    async def decide(self, user: str | None = "ann", query: str = "", headers: Any = None, **body: Any) -> Any:
        told = {**({"user_id": user} if user else {}), **body}
        reply = await self.serving.decide(self.request(told, query, **(headers or {})))
        assert reply.status == 200
        return json.loads(reply.body)

    async def ids(self, user: str = "ann", **body: Any) -> list[list[str]]:
        found = await self.decide(user, **body)
        return [[each["banner_id"] for each in decision["banners"]] for decision in found["decisions"]]

    async def seen(self, banner: Any, user: str = "ann", **body: Any) -> None:
        """One counted view."""
        told = {"banner_id": str(banner.banner_id), "user_id": user, "event_id": f"{user}-{self.clock.now_ms()}",
                "view_duration_ms": 0, "dismissed": True, **body}  # fmt: skip
        reply = await self.views.view(self.request(told, path="/views"))
        assert reply.status == 202
        self.clock.advance(ms=1)

    async def explain(self, **body: Any) -> dict[str, tuple[str, str | None, str | None]]:
        told = await self.decide(
            query="explain=1", headers={"authorization": f"Bearer {self.secret_key}", "x_write_key": ""}, **body
        )
        return {each["banner_id"]: (each["reason"], each["rule"], each["next_eligible_at"]) for each in told["explain"]}

    async def placement(self, slug: str, **fields: Any) -> PlacementView:
        new = NewPlacement(name=slug, slug=slug, **fields)
        made = await self.loop.banners.editor.create_placement(self.tenant, new, actor="test")
        await self.loop.catalogue.refresh()
        return made

    async def banner(self, **fields: Any) -> Any:
        self.clock.advance(ms=5)  # so that recency tells them apart
        return await self.loop.banner(self.tenant, **fields)


async def make_shop(made: Loop, tenant: int, clock: FakeClock, policy: ShowPolicy) -> Shop:
    tenants, guard = made.tenants, Throttle(made.redis, made.keys, clock)
    show = Show(
        made.database, made.redis, tenants.directory, made.catalogue, made.caps, made.events, guard, clock, made.keys,
        policy,
    )  # fmt: skip
    serving = Serving(made.catalogue, made.caps, tenants.directory, clock, show=show)
    reporters = Reporters(tenants.directory, guard, guard, clock)
    views = Views(made.catalogue, made.events, made.caps, tenants.directory, reporters, clock, tokens=show.tokens)
    write = await tenants.create_key(tenant, NewKey(name="w", kind="write"), actor="test")
    secret = await tenants.create_key(tenant, NewKey(name="s", kind="secret", scopes=["banners:read"]), actor="test")
    return Shop(made, tenant, clock, show, serving, views, write.key, secret.key)


@pytest.fixture
async def shop(database: Database, redis: Redis, tenant: int) -> AsyncIterator[Shop]:
    clock = FakeClock()
    async with loop(database, redis, clock=clock) as made:
        yield await make_shop(made, tenant, clock, ShowPolicy(token_key=KEY, decisions_per_minute=0))


async def test_an_answer_is_whole(shop: Shop) -> None:
    place = await shop.placement("home-top")
    made = await shop.banner(title='A "sale"', image_url="/a.png", cta_link="https://shop.example/x")
    found = await shop.decide(placements=["home-top"])
    assert found["user_id"] == "ann"
    assert found["decided_at"] == "2026-03-01T12:00:00.005Z"
    (decision,) = found["decisions"]
    assert (decision["placement"], decision["placement_id"]) == ("home-top", str(place.placement_id))
    (banner,) = decision["banners"]
    token = banner.pop("token")
    assert banner == {
        "banner_id": str(made.banner_id), "campaign_id": None, "variant": None, "title": 'A "sale"',
        "description": None,
        "image_url": "/a.png", "asset_url": None, "click_url": f"/r/{token}", "z_duration_sec": 3,
        "expires_at": "2026-03-02T12:00:00.005Z",
    }  # fmt: skip


async def test_several_placements_show_nothing_twice(shop: Shop) -> None:
    one, two = await shop.placement("one"), await shop.placement("two")
    old, new = await shop.banner(), await shop.banner()
    only_two = await shop.banner(placement_ids=[two.placement_id], priority=5)
    assert await shop.ids(placements=["one", str(two.placement_id)]) == [
        [str(new.banner_id)],
        [str(only_two.banner_id)],
    ]
    both = await shop.ids(placements=["one", "two"], limit=5)
    assert both == [[str(new.banner_id), str(old.banner_id)], [str(only_two.banner_id)]]
    assert await shop.ids(limit=5) == [[str(only_two.banner_id), str(new.banner_id), str(old.banner_id)]]
    with pytest.raises(NotFound):
        await shop.decide(placements=["elsewhere"])
    assert one.slug == "one"


async def test_rules_choose_by_what_the_request_says(shop: Shop) -> None:
    dutch = await shop.banner(targeting={"country": "NL"})
    office = await shop.banner(targeting={"custom": {"key": "plan", "op": "eq", "value": "team"}, "language": "en"})
    assert await shop.ids(limit=5) == [[]]
    assert await shop.ids(limit=5, context={"country": "nl"}) == [[str(dutch.banner_id)]]
    team = {"country": "DE", "language": "en-GB", "custom": {"plan": "team"}}
    assert await shop.ids(limit=5, context=team) == [[str(office.banner_id)]]


async def test_caps_of_banner_session_and_placement_hold(shop: Shop) -> None:
    await shop.placement("once", caps=[CapRule(x=1, per="session")])
    one = await shop.banner(x_times=2, y_hours=1)
    other = await shop.banner(x_times=9, y_hours=1, caps=[CapRule(x=1, per="lifetime")], priority=-1)
    assert await shop.ids() == [[str(one.banner_id)]]
    await shop.seen(one)
    await shop.seen(one)
    first_out = shop.clock.now_ms() - 2 + 3_600_000
    assert await shop.ids() == [[str(other.banner_id)]]
    await shop.seen(other)
    assert await shop.ids() == [[]]
    shop.clock.advance(ms=first_out - 1 - shop.clock.now_ms())
    assert await shop.ids() == [[]], "one millisecond early"
    shop.clock.advance(ms=1)
    assert await shop.ids() == [[str(one.banner_id)]], "to the millisecond"
    found = await shop.decide(placements=["once"], session_id="s1")
    place = found["decisions"][0]["placement_id"]
    await shop.seen(one, session_id="s1", placement_id=place)
    shop.clock.advance(hours=2)
    assert await shop.ids(placements=["once"], session_id="s1") == [[]]
    assert await shop.ids(placements=["once"], session_id="s2") == [[str(one.banner_id)]]


async def test_a_strict_banner_is_held_for_who_was_shown_it(shop: Shop) -> None:
    strict = await shop.banner(x_times=1, cap_mode="strict")
    soft = await shop.banner(priority=-1)
    first = await shop.decide()
    assert first["decisions"][0]["banners"][0]["banner_id"] == str(strict.banner_id)
    assert await shop.ids() == [[str(soft.banner_id)]], "its only slot is taken: the next best stands in"
    shop.clock.advance(ms=3_000 + 60_000)
    assert await shop.ids() == [[str(strict.banner_id)]], "nobody reported a view: the slot is free again"
    verdicts = await shop.explain()
    assert verdicts[str(strict.banner_id)][0] == "CAPPED"


async def test_ranking_is_the_placements_then_the_tenants(shop: Shop) -> None:
    await shop.placement("rich", ranking=["revenue"])
    rich, urgent = await shop.banner(revenue=9.0), await shop.banner(priority=9)
    assert await shop.ids() == [[str(urgent.banner_id)]]
    assert await shop.ids(placements=["rich"]) == [[str(rich.banner_id)]]
    patch = DecidingPatch(ranking=["least_seen", "priority"])
    await shop.loop.banners.editor.change_deciding(shop.tenant, patch, version=None, actor="test")
    await shop.loop.catalogue.refresh()
    await shop.seen(urgent)
    assert await shop.ids() == [[str(rich.banner_id)]]


async def test_the_same_question_has_the_same_answer(shop: Shop) -> None:
    patch = DecidingPatch(ranking=["weight"])
    await shop.loop.banners.editor.change_deciding(shop.tenant, patch, version=None, actor="test")
    for weight in (1, 10, 100):
        await shop.banner(weight=weight, variants=[Variant("a", title="A"), Variant("b", title="B")])
    people = [f"user-{number}" for number in range(30)]
    first = [await shop.decide(user, limit=2) for user in people]
    again = await make_shop(shop.loop, shop.tenant, shop.clock, ShowPolicy(token_key=KEY, decisions_per_minute=0))
    assert [await again.decide(user, limit=2) for user in people] == first
    assert len({json.dumps(answer["decisions"]) for answer in first}) > 3, "not everybody gets the same"
    faces = {b["variant"] for answer in first for b in answer["decisions"][0]["banners"]}
    assert faces == {"a", "b"}


async def test_the_user_is_the_tokens_subject(shop: Shop) -> None:
    await shop.banner()
    patch = TenantPatch(settings=SettingsPatch(jwt=JwtRules(kind="hs256"), jwt_secret=SECRET))
    await shop.loop.tenants.change_tenant(shop.tenant, patch, actor="test")
    token = pyjwt.encode({"sub": "bob", "exp": shop.clock.now_ms() // 1000 + 600}, SECRET, "HS256")
    found = await shop.decide(None, headers={"authorization": f"Bearer {token}"})
    assert found["user_id"] == "bob"
    with pytest.raises(Forbidden):
        await shop.decide("ann", headers={"authorization": f"Bearer {token}"})
    with pytest.raises(Invalid):
        await shop.decide(None)
    with pytest.raises(Unauthorized):
        await shop.decide("ann", headers={"x_write_key": "hbw_nonsense"})


async def test_every_fault_of_a_request_is_told(shop: Shop) -> None:
    with pytest.raises(Invalid) as refused:
        await shop.decide("ann", limit=21, placements=[""] * 11, context={"country": "Holland"})
    assert {fault.field for fault in refused.value.faults} == {"limit", "placements", "context.country"}


async def test_explain_says_why_and_when_next(shop: Shop) -> None:
    place = await shop.placement("other")
    now = shop.clock.now()
    later = now + timedelta(hours=5)
    shown = await shop.banner(priority=9)
    capped = await shop.banner(x_times=1, y_hours=1)
    at = shop.clock.now_ms()
    await shop.seen(capped)
    cases = {
        "SWITCHED_OFF": await shop.banner(is_active=False),
        "NOT_YET": await shop.banner(publish_at=later),
        "OVER": await shop.banner(expires_at=now - timedelta(hours=1)),
        "TARGETING": await shop.banner(targeting={"country": "NL", "device": "mobile"}),
        "HOLDOUT": await shop.banner(holdout_percent=100.0),
        "OUTRANKED": await shop.banner(),
        "CAPPED": capped,
        "SHOWN": shown,
    }
    elsewhere = await shop.banner(placement_ids=[(await shop.placement("third")).placement_id])
    told = await shop.explain(placements=["other"], context={"country": "NL"})
    assert {reason: told[str(each.banner_id)][0] for reason, each in cases.items()} == {each: each for each in cases}
    assert told[str(elsewhere.banner_id)][0] == "PLACEMENT"
    assert told[str(cases["TARGETING"].banner_id)][1] == 'device in ["mobile"]'
    assert told[str(cases["NOT_YET"].banner_id)][2] == later.isoformat().replace("+00:00", "Z")
    _, rule, again = told[str(capped.banner_id)]
    assert rule == "1 in 1 hours per banner and user"
    assert again is not None
    from handbill.kit.clock import from_ms

    assert again == from_ms(at + 3_600_000).isoformat().replace("+00:00", "Z")
    assert place.slug == "other"
    with pytest.raises(Unauthorized):
        await shop.decide(query="explain=1")


async def test_the_token_proves_the_view(shop: Shop) -> None:
    made, other = await shop.banner(), await shop.banner(priority=-1)
    token = (await shop.decide())["decisions"][0]["banners"][0]["token"]
    told = {"banner_id": str(made.banner_id), "user_id": "ann", "event_id": "e1", "view_duration_ms": 3_000}

    async def refused(**changed: Any) -> HandbillError:
        with pytest.raises((Invalid, Forbidden)) as error:
            await shop.views.view(shop.request({**told, "token": token, **changed}, path="/views"))
        return error.value

    assert made.banner_id != other.banner_id
    if (await shop.ids())[0] != [str(made.banner_id)]:
        told["banner_id"], other = str(other.banner_id), made
    shop.clock.advance(ms=2_749)
    assert (await refused()).code == "DURATION_TOO_LONG"
    shop.clock.advance(ms=1)  # within the grace for two hosts' clocks
    assert (await refused(user_id="bob")).code == "BAD_DECISION_TOKEN"
    assert (await refused(banner_id=str(other.banner_id))).code == "BAD_DECISION_TOKEN"
    assert (await refused(token="forged")).code == "BAD_DECISION_TOKEN"
    reply = await shop.views.view(shop.request({**told, "token": token}, path="/views"))
    assert reply.status == 202
    shop.clock.advance(days=2)
    late = await shop.views.view(shop.request({**told, "event_id": "e2", "token": token}, path="/views"))
    assert late.status == 202, "a view that waited in an offline queue is kept, unproved"


async def test_one_user_may_not_ask_for_ever(shop: Shop) -> None:
    await shop.banner()
    policy = ShowPolicy(token_key=KEY, decisions_per_minute=12)
    paced = await make_shop(shop.loop, shop.tenant, shop.clock, policy)
    with pytest.raises(Throttled) as refused:
        for _ in range(50):
            await paced.decide("eager")
    assert refused.value.code == "USER_THROTTLED"
    await paced.decide("patient")


async def test_schedules_open_and_close_to_the_millisecond(shop: Shop) -> None:
    begin = shop.clock.now() + timedelta(seconds=10)
    made = await shop.banner(publish_at=begin, expires_at=begin + timedelta(seconds=1))
    shown = []
    for step in (10_000 - 5 - 1, 1, 999, 1):
        shop.clock.advance(ms=step)
        shown.append(await shop.ids() == [[str(made.banner_id)]])
    assert shown == [False, True, True, False]


async def test_without_engines_it_remembers_then_shows_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await shop.banner(x_times=1)
    assert await shop.ids("known") == [[str(made.banner_id)]]

    async def away(*_: Any, **__: Any) -> Any:
        raise Busy("away", code="REDIS_AWAY")

    monkeypatch.setattr(shop.loop.caps, "look", away)
    assert await shop.ids("known") == [[str(made.banner_id)]], "this process remembers"
    assert await shop.ids("stranger") == [[]], "and otherwise shows nothing, with 200"


async def test_a_large_catalogue_is_made_ready_beside_the_loop(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decide, "_QUICK", 0)
    old = await shop.banner()
    assert await shop.ids() == [[str(old.banner_id)]], "the first question waits for the plan"
    new = await shop.banner()
    assert await shop.ids() == [[str(old.banner_id)]], "then the plan before stands in"

    async def changed() -> bool:
        return await shop.ids() == [[str(new.banner_id)]]

    await eventually(changed, what="the new plan")
    await shop.show.decider.stop()


async def test_get_banners_decides_the_same_way(shop: Shop) -> None:
    low = await shop.banner(priority=-1)
    dutch = await shop.banner(targeting={"country": "NL"})
    reply = await shop.serving.banners(shop.request(query="user_id=ann", path="/banners"))
    assert json.loads(reply.body) == {"banners": [str(low.banner_id)], "user_id": "ann"}
    reply = await shop.serving.banners(shop.request(query="user_id=ann&country=NL", path="/banners"))
    assert json.loads(reply.body)["banners"] == [str(dutch.banner_id), str(low.banner_id)]


async def test_a_followed_link_leads_to_the_banners_own_address(shop: Shop) -> None:
    made = await shop.banner(cta_link="https://shop.example/x")
    token = (await shop.decide())["decisions"][0]["banners"][0]["token"]
    public = shop.show.public
    assert await public.follow(token, None, "1.2.3.4", ()) == "https://shop.example/x"
    for bad in ("", "forged", token[:-2]):
        with pytest.raises(NotFound):
            await public.follow(bad, None, "1.2.3.4", ())
    looks, _ = await public.banner(made.banner_id, None, "1.2.3.4")
    assert (looks.cta_link, looks.version) == ("https://shop.example/x", 1)
    shop.clock.advance(days=1)
    assert await public.follow(token, None, "1.2.3.4", ()) == "https://shop.example/x", "also by a link that is too old"


async def test_views_and_clicks_carry_the_variant_and_clicks_count_once(shop: Shop) -> None:
    await shop.loop.consumer()
    await shop.banner(cta_link="/a", variants=[Variant("red", cta_link="/red"), Variant("blue", cta_link="/blue")])
    shown = (await shop.decide())["decisions"][0]["banners"][0]
    shop.clock.advance(seconds=5)
    told = {"banner_id": shown["banner_id"], "user_id": "ann", "event_id": "v1", "view_duration_ms": 3_000}
    await shop.views.view(shop.request({**told, "token": shown["token"]}, path="/views"))
    await shop.views.view(shop.request({**told, "event_id": "v2"}, path="/views"))
    for click_id in (None, None, "again", "again"):
        assert await shop.show.public.follow(shown["token"], click_id, "1.2.3.4", ()) == f"/{shown['variant']}"
    await shop.loop.drained()
    async with shop.loop.database.tenant(shop.tenant) as tx:
        views = await tx.fetch(SEEN, shop.tenant)
        clicks = await tx.fetch(CLICKED, shop.tenant)
    assert {row["event_id"]: row["variant"] for row in views} == {"v1": shown["variant"], "v2": None}
    face = shown["variant"]
    assert [(row["destination_url"], row["variant"]) for row in clicks] == [(f"/{face}", face)] * 2


SEEN = Sql("select event_id, variant from caps.user_views where tenant_id = $1", "seen", "tests")
CLICKED = Sql("select destination_url, variant from banners.banner_clicks where tenant_id = $1", "clicked", "tests")
