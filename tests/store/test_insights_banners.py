"""Impressions, clicks and views in insights: by banner, placement, campaign, variant; and those that are nobody's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest

from handbill.banners.model import NewCampaign
from handbill.banners.public_ids import PublicIds
from handbill.events.model import Click, Event, Impression, View
from handbill.events.shipping_rows import RowMaker
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.insights import answers, compile, table
from handbill.insights.compile import Range
from handbill.insights.model import Filter, FunnelQuery, RetentionQuery, TrendsQuery, UnidentifiedEvents
from handbill.insights.questions import Questions
from handbill.insights.store import Bounds, EventStoreReader
from handbill.kit.clock import from_ms
from handbill.people.model import person_id
from tests.kit.loop import Loop, loop
from tests.kit.shipping import shipped, shipping

DAY = timedelta(days=1)
SEEN, CLICKED = {"event": "$banner_impression"}, {"event": "$banner_click"}


class Shown(msgspec.Struct):
    """What insights are asked about: a banner in a placement and a campaign, and another banner."""

    house: Loop
    questions: Questions
    reader: EventStoreReader
    tenant: int
    numbers: dict[str, Any]
    ids: dict[str, str]
    other: int
    now: int

    @property
    def span(self) -> dict[str, Any]:
        """Yesterday to tomorrow: an event a moment ago may be of yesterday."""
        day = from_ms(self.now).date()
        return {"from": day - DAY, "to": day + DAY, "zone": "UTC"}

    async def count(self, *events: Event) -> None:
        await self.house.events.accept(events)
        await self.house.drained()
        await shipped(self.house)

    async def people(self, breakdown: str | None = None, **one: str) -> dict[str | None, float | None]:
        """People who saw a banner, by the values of a property."""
        filters = [{"property": name, "op": "is", "values": [value]} for name, value in one.items()]
        field = {"property": breakdown} if breakdown else None
        asked = {**self.span, "series": [{**SEEN, "measure": "people"}], "filters": filters, "breakdown": field}
        answer = await self.questions.trends(self.tenant, msgspec.convert(asked, TrendsQuery))
        return {line.group.value: line.total for line in answer.lines}


@pytest.fixture
async def shown(database: Database, redis: Redis, clickhouse: ClickHouse, tenant: int) -> AsyncIterator[Shown]:
    await migrate_clickhouse(clickhouse)
    async with loop(database, redis, main=1) as house:
        maker = RowMaker(person_id, lambda address: None, PublicIds(database).of)
        await house.consumer(shipping=shipping(database, clickhouse, house.journal, maker=maker))
        campaign = await house.banners.editor.create_campaign(tenant, NewCampaign(name="C"), actor="t")
        banner, place = await house.banner(tenant), await house.placement(tenant)
        other = await house.banner(tenant)
        found = house.catalogue.tenant(tenant)
        number = {each.public_id: each.id for each in found.banners}
        numbers = {
            "banner": number[banner.banner_id],
            "placement": next(iter(found.placements)),
            "campaign": next(iter(found.campaigns)),
        }
        ids: dict[str, UUID] = {
            "banner_id": banner.banner_id,
            "placement_id": place.placement_id,
            "campaign_id": campaign.campaign_id,
        }
        reader = EventStoreReader(clickhouse, Bounds())
        questions = Questions(reader, None)  # type: ignore[arg-type] # every question names its zone
        texts = {name: str(value) for name, value in ids.items()}
        yield Shown(
            house, questions, reader, tenant, numbers, texts, number[other.banner_id], house.clock.now_ms()
        )  # fmt: skip


async def test_banner_placement_campaign_and_variant_are_filters_and_breakdowns(shown: Shown) -> None:
    tenant, now = shown.tenant, shown.now
    events: list[Event] = [
        Impression(tenant, f"i{n}", now - 900, now, **shown.numbers, user=f"u{n}", variant="ab"[n % 2])
        for n in range(5)
    ]
    events += [Impression(tenant, f"o{n}", now - 900, now, shown.other, user=f"u{n}", variant="z") for n in range(7)]
    events += [
        Click(tenant, f"c{n}", now - 500, now, **shown.numbers, user=f"u{n}", variant="ab"[n % 2], destination="/")
        for n in (0, 1, 2)
    ]
    events += [View(tenant, "v", now, now, **shown.numbers, user="u0", variant="a")]
    await shown.count(*events)
    assert await shown.people() == {None: 7}
    for name, value in shown.ids.items():
        assert await shown.people(**{name: value}) == {None: 5}, name
        assert (await shown.people(name))[value] == 5, name
    assert await shown.people("variant") == {"a": 3, "b": 2, "z": 7}
    assert await shown.people(variant="a", banner_id=shown.ids["banner_id"]) == {None: 3}

    mine = [{"property": name, "op": "is", "values": [value]} for name, value in shown.ids.items()]
    asked = {
        **shown.span, "steps": [{**SEEN, "filters": mine}, {**CLICKED, "filters": mine}],
        "breakdown": {"property": "variant"},
    }  # fmt: skip
    funnel = await shown.questions.funnel(tenant, msgspec.convert(asked, FunnelQuery))
    assert {line.group.value: [step.people for step in line.steps] for line in funnel.lines} == {
        "a": [3, 2], "b": [2, 1],
    }  # fmt: skip
    variant = [{"property": "variant", "op": "is", "values": ["a"]}]
    asked = {**shown.span, "begins": {**SEEN, "filters": mine}, "returns": CLICKED, "filters": variant}
    kept = await shown.questions.retention(tenant, msgspec.convert(asked, RetentionQuery))
    assert sum(cohort.people for cohort in kept.cohorts) == 3

    within = Range(from_ms(now) - DAY, from_ms(now) + DAY)
    only = [Filter("is", property="placement_id", values=[shown.ids["placement_id"]])]
    found = await shown.reader.ask(compile.events(tenant, within, filters=only, rows=100))
    rows = [answers.event_row(row) for row in found]
    assert {row.event_id for row in rows} == {"v", "c0", "c1", "c2", *(f"i{n}" for n in range(5))}
    assert all(row.properties.items() >= shown.ids.items() for row in rows)
    assert all(row.properties["variant"] in ("a", "b") for row in rows)


async def test_impressions_of_nobody_are_no_people_in_any_question(shown: Shown) -> None:
    tenant, now = shown.tenant, shown.now
    events: list[Event] = [Impression(tenant, f"i{n}", now - 900, now, shown.numbers["banner"]) for n in range(20)]
    await shown.count(*events, *(Click(tenant, f"c{n}", now, now, shown.numbers["banner"]) for n in range(4)))
    asked: dict[str, Any] = {**shown.span, "series": [{**SEEN, "measure": "people"}, {"measure": "people"}]}
    trends = await shown.questions.trends(tenant, msgspec.convert(asked, TrendsQuery))
    assert [(line.total, line.unidentified_total) for line in trends.lines] == [(0, 20), (0, 24)]
    asked = {**shown.span, "steps": [SEEN, CLICKED]}
    funnel = await shown.questions.funnel(tenant, msgspec.convert(asked, FunnelQuery))
    assert sum(step.people for line in funnel.lines for step in line.steps) == 0
    assert funnel.unidentified == [20, 4]
    assert table.funnel(funnel).decode().splitlines()[-2:] == [",,1,,,,,20", ",,2,,,,,4"]
    for first in (True, False):
        asked = {**shown.span, "begins": SEEN, "returns": CLICKED, "first": first}
        retention = await shown.questions.retention(tenant, msgspec.convert(asked, RetentionQuery))
        assert sum(cohort.people for cohort in retention.cohorts) == 0
        assert retention.unidentified == UnidentifiedEvents(20, 4)
        assert table.retention(retention).decode().splitlines()[-1] == ",,,,20,4"


async def test_events_of_nobody_take_no_group_of_a_funnel(shown: Shown) -> None:
    tenant, now, banner = shown.tenant, shown.now, shown.numbers["banner"]
    nobodys = [Impression(tenant, f"n{n}", now - 900, now, banner, variant="z") for n in range(9)]
    await shown.count(*nobodys, Impression(tenant, "i", now - 900, now, banner, user="u", variant="a"))
    asked = {**shown.span, "steps": [SEEN, CLICKED], "breakdown": {"property": "variant"}, "groups": 1}
    funnel = await shown.questions.funnel(tenant, msgspec.convert(asked, FunnelQuery))
    assert [(line.group.value, line.steps[0].people) for line in funnel.lines] == [("a", 1)]
    assert funnel.unidentified == [9, 0]
