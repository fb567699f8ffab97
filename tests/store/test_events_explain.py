"""Where an event went, told to whoever asks: nothing is said to have counted that did not."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from handbill.banners.tally import APART
from handbill.events.model import CapturedEvent, Click, Event, Impression, View
from handbill.events.service import StoredEvents
from handbill.events.stored import outcome_of
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.sqlfiles import Sql
from handbill.insights.service import InsightsService
from handbill.kit.errors import Invalid
from tests.kit.engines import Engines
from tests.kit.shipping import hasty, shipped, shipping
from tests.store.test_decide import Shop, shop

__all__ = ["shop"]
FORGET = Sql("delete from events.event_keys where tenant_id = $1", "test_forget")
BOT = {"user_agent": "Googlebot/2.1 (+http://www.google.com/bot.html)"}
CAPTURE = str(uuid.UUID(int=7))
OUTCOMES = {
    "full": ("counted", "Counted as view."),
    "short": ("not_counted", "Stored as view and not counted: visible for 2,999 of 3,000 ms and not dismissed."),
    "brief": ("not_counted", "Stored as view and not counted: closed by accident (visible for 499 of 3,000 ms)."),
    "closed": ("counted", "Counted as view."),
    "bot": ("counted_apart", "Stored as view and counted apart, in marked_views: marked bot."),
    "short-bot": ("not_counted", "Stored as view and not counted: visible for 2,000 of 3,000 ms and not dismissed."),
    "of-old": ("not_counted", "Stored as view and not counted: visible for 1,000 ms, too short and not dismissed."),
    "i": ("counted", "Counted as impression."),
    "bot-i": ("counted_apart", "Stored as impression and counted apart, in marked_impressions: marked bot."),
    "bot-c": ("counted_apart", "Stored as click and counted apart, in marked_clicks: marked bot."),
    CAPTURE: ("counted", "Counted as capture."),
}


async def send(shop: Shop) -> None:
    """One event of each sort: views as clients send them, the others as they lie in the journal."""
    banner = await shop.banner(z_duration_sec=3)
    number, now = shop.loop.catalogue.tenant(shop.tenant).banners[0].id, shop.clock.now_ms()
    views: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
        "full": ({"view_duration_ms": 3_000}, {}),
        "short": ({"view_duration_ms": 2_999}, {}),
        "brief": ({"view_duration_ms": 499}, {}),
        "closed": ({"view_duration_ms": 300, "dismissed": True}, {}),
        "bot": ({"view_duration_ms": 3_000}, BOT),
        "short-bot": ({"view_duration_ms": 2_000}, BOT),
    }
    for name, (body, headers) in views.items():
        told = {"banner_id": str(banner.banner_id), "user_id": "ann", "event_id": name, **body}
        assert (await shop.views.view(shop.request(told, path="/views", **headers))).status == 202
    head = (now, now, number, None, None, "ann")
    others: list[Event] = [
        View(shop.tenant, "of-old", *head, duration_ms=1_000, counted=False),
        Impression(shop.tenant, "i", *head),
        Impression(shop.tenant, "bot-i", *head, marks=("bot", "unverified")),
        Click(shop.tenant, "bot-c", *head, marks=("bot",)),
        CapturedEvent(shop.tenant, CAPTURE, now, now, "seen", "ann", "own", marks=("bot",)),
    ]
    await shop.loop.events.accept(others)


async def explained(shop: Shop, event_id: str) -> tuple[str, str]:
    told = await shop.loop.events.explain(shop.tenant, event_id)
    assert told.counted_at is not None, "it is stored"
    return told.outcome, told.said


async def test_each_event_is_said_to_have_counted_or_not_and_why(shop: Shop, history: ClickHouse) -> None:
    house = shop.loop
    house.events.stored = StoredEvents(history, APART)
    await send(shop)
    await house.consumer(shipping=shipping(house.database, history, house.journal))
    await house.drained()
    await shipped(house)
    assert {name: await explained(shop, name) for name in OUTCOMES} == OUTCOMES

    async with house.database.worker() as tx:
        await tx.execute(FORGET, shop.tenant)
    nobody: Any = None
    insights = InsightsService(history, house.events, house.tenants.directory, nobody, house.clock)
    for name, (outcome, said) in OUTCOMES.items():
        whole = await insights.explain(shop.tenant, name)
        old = f"{said} That was more than 35 days ago: only the event store knows it."
        assert (whole.outcome, whole.said) == (outcome, old)


async def test_nothing_is_said_to_have_counted_before_it_is_known(
    shop: Shop, history: ClickHouse, engines: Engines
) -> None:
    house = shop.loop
    await send(shop)
    await house.consumer()
    await house.drained()
    away = hasty(engines, "http://127.0.0.1:1/")
    for store, why in (
        (history, "Whether it counted is known once the event store has it: ask again shortly."),
        (away, "The event store, which knows whether it counted, does not answer: ask again."),
    ):
        house.events.stored = StoredEvents(store, APART)
        found = {name: await explained(shop, name) for name in OUTCOMES}
        assert found.pop(CAPTURE) == ("counted", "Counted as capture.")
        assert {outcome for outcome, _ in found.values()} == {"stored"}
        assert found["short"][1] == f"Stored as view. {why}"


async def test_what_the_client_says_of_viewability_is_in_the_event(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    made, kept = await shop.banner(), list[View]()
    accept = shop.loop.events.accept

    async def keep(events: Any, extra: Any = ()) -> None:
        kept.extend(events)
        await accept(events, extra)

    monkeypatch.setattr(shop.loop.events, "accept", keep)
    for more in ({}, {"viewable": True}, {"viewable": False}, {"viewable": None}):
        await shop.seen(made, **more)
    assert [view.viewable for view in kept] == [None, True, False, None]
    with pytest.raises(Invalid):
        await shop.seen(made, viewable="yes")


@pytest.mark.parametrize("properties", [{}, {"counted": None}, {"counted": 0}, {"duration_ms": "x", "counted": True}])
def test_a_view_counts_unless_its_row_says_otherwise(properties: dict[str, Any]) -> None:
    assert outcome_of("view", ("unverified",), properties, APART).outcome == "counted"
