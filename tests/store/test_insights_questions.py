"""Every question over generated events of two tenants equals plain loops over the same events."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
import pytest

from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.insights.model import MOST_MEMBERS, FunnelQuery, RetentionQuery, TrendsQuery
from handbill.insights.periods import cuts, midnight
from handbill.insights.questions import Questions
from handbill.insights.store import Bounds, EventStoreReader
from handbill.kit.errors import Invalid
from tests.store import insights_world as plain
from tests.store.insights_world import World

SEEDS = range(3)
ASKED = 16
MakeTenant = Callable[..., Awaitable[int]]


class Directory:
    """The tenant's zone, should a question not name one."""

    async def profile(self, tenant: int) -> Any:
        return SimpleNamespace(tenant=SimpleNamespace(time_zone="UTC"))


@pytest.fixture(params=SEEDS)
async def world(request: Any, clickhouse: ClickHouse, make_tenant: MakeTenant) -> World:
    """One tenant's events, with another's in the same table under the same ids."""
    await migrate_clickhouse(clickhouse)
    seed = request.param
    for number in (1, 0):
        made = World(await make_tenant(), seed * 2 + number)
        await made.put(clickhouse)
    return made


@pytest.fixture
def questions(clickhouse: ClickHouse, world: World) -> Questions:
    reader = EventStoreReader(clickhouse, Bounds())
    return Questions(reader, Directory(), world.members)  # type: ignore[arg-type] # all it asks for


async def test_trends_are_what_counting_gives(world: World, questions: Questions) -> None:
    rng, told, nobodys = world.rng, 0, 0
    for _ in range(ASKED):
        series: list[dict[str, Any]] = []
        for _ in range(rng.randrange(1, 4)):
            measure = rng.choice(("count", "people", "people", "sum", "avg", "min", "max", "p50", "p90", "p99"))
            of = None if measure in ("count", "people") else world.property()
            series.append({"measure": measure, "of": of, **world.matching()})
        asked = {
            **world.span(), "series": series, "interval": rng.choice(("hour", "day", "week", "month")),
            "filters": world.filters(1), "breakdown": rng.choice((None, world.field())), "groups": rng.randrange(1, 5),
            "compare": rng.random() < 0.4, "segment": world.segment(),
        }  # fmt: skip
        query = msgspec.convert(asked, TrendsQuery)
        answer = await questions.trends(world.tenant, query)
        low, high = (midnight(day, world.zone) for day in (query.start, query.end))
        top = plain.top_values(
            plain.within(world, low, high, query.filters, query.segment), query.breakdown, query.series, query.groups
        )
        now = plain.trends(world, query, query.start, query.end, top)
        before = query.start - (query.end - query.start)
        earlier = plain.trends(world, query, before, query.start, top) if query.compare else {}
        seen = set()
        for line in answer.lines:
            nothing = 0.0 if query.series[line.series].measure in ("count", "people", "sum") else None
            key = (line.series, line.group.kind, line.group.value)
            seen.add(key)
            figures, total = now.get(key, ([nothing] * len(answer.points), nothing))
            assert line.figures == pytest.approx(figures), asked
            assert line.total == pytest.approx(total), asked
            if query.series[line.series].measure in ("count", "people"):
                every = [*line.figures, line.total, *(line.previous or [0]), line.previous_total or 0]
                assert {type(figure) for figure in every} == {int}, asked
            unidentified = plain.unidentified(world, query, line.series, (line.group.kind, line.group.value), top)
            if query.series[line.series].measure == "people":
                assert (line.unidentified, line.unidentified_total) == (unidentified, sum(unidentified)), asked
                nobodys += sum(unidentified)
            else:
                assert (line.unidentified, line.unidentified_total) == (None, None)
            if query.compare:
                assert answer.previous_points is not None
                figures, total = earlier.get(key, ([nothing] * len(answer.previous_points), nothing))
                assert line.previous == pytest.approx(figures), asked
                assert line.previous_total == pytest.approx(total), asked
            told += sum(bool(figure) for figure in line.figures)
        assert set(now) | set(earlier) <= seen, asked
        assert answer.points == cuts(query.start, query.end, query.interval, world.zone)
    assert told > 40
    assert nobodys


async def test_funnels_are_what_walking_gives(world: World, questions: Questions) -> None:
    rng, far, nobodys = world.rng, 0, 0
    for _ in range(ASKED):
        asked = {
            **world.span(20), "steps": [world.matching() for _ in range(rng.randrange(2, 5))],
            "window_s": rng.choice((3_600, 86_400, 5 * 86_400, 30 * 86_400)), "filters": world.filters(1),
            "breakdown": rng.choice((None, world.field())), "groups": rng.randrange(1, 4), "segment": world.segment(),
        }  # fmt: skip
        query = msgspec.convert(asked, FunnelQuery)
        answer = await questions.funnel(world.tenant, query)
        top, found = plain.funnel(world, query)
        shown = {(line.group.kind, line.group.value): line.steps for line in answer.lines}
        assert set(found) <= set(shown), asked
        assert [line.group.value for line in answer.lines if line.group.kind == "value"] == top, asked
        for key, steps in shown.items():
            chains = found.get(key, [])
            for number, step in enumerate(steps):
                reached = [chain for chain in chains if len(chain) > number]
                assert step.people == len(reached), asked
                took = [(chain[number] - chain[number - 1]).total_seconds() for chain in reached if number]
                assert step.median_s == (pytest.approx(statistics.median(took), abs=1e-6) if took else None), asked
                far += bool(number and reached)
        low, high = midnight(query.start, world.zone), midnight(query.end, world.zone)
        events = plain.within(world, low, high, query.filters, query.segment)
        assert answer.unidentified == [plain.nobodys(events, step) for step in query.steps], asked
        nobodys += sum(answer.unidentified)
    assert far > 10
    assert nobodys


async def test_retention_is_what_counting_gives(world: World, questions: Questions) -> None:
    rng, returned = world.rng, 0
    for _ in range(ASKED):
        asked = {
            **world.span(20), "begins": world.matching(), "returns": world.matching(),
            "period": rng.choice(("day", "day", "week", "month")), "first": rng.random() < 0.5,
            "filters": world.filters(1), "segment": world.segment(),
        }  # fmt: skip
        query = msgspec.convert(asked, RetentionQuery)
        answer = await questions.retention(world.tenant, query)
        assert [(one.people, one.returned) for one in answer.cohorts] == plain.retention(world, query), asked
        returned += sum(sum(one.returned) for one in answer.cohorts)
        low, high = midnight(query.start, world.zone), midnight(query.end, world.zone)
        events = plain.within(world, low, high, query.filters, query.segment)
        nobodys = (plain.nobodys(events, query.begins), plain.nobodys(events, query.returns))
        assert (answer.unidentified.begins, answer.unidentified.returns) == nobodys, asked
    assert returned > 10


async def test_a_segment_may_have_ten_thousand_people_and_no_more(world: World, clickhouse: ClickHouse) -> None:
    event = next(event for event in world.events if event.person is not None)
    assert event.person is not None
    people = [UUID(int=number) for number in range(MOST_MEMBERS - 1)] + [event.person]

    async def members(tenant: int, segment: UUID, most: int) -> list[UUID]:
        return people

    questions = Questions(EventStoreReader(clickhouse, Bounds()), Directory(), members)  # type: ignore[arg-type] # as above
    day = event.at.date()
    asked = {"from": day, "to": day + timedelta(days=1), "series": [{"measure": "people"}], "segment": UUID(int=1)}
    answer = await questions.trends(world.tenant, msgspec.convert(asked, TrendsQuery))
    assert answer.lines[0].total == 1
    people.append(UUID(int=2**100))
    with pytest.raises(Invalid) as large:
        await questions.trends(world.tenant, msgspec.convert(asked, TrendsQuery))
    assert large.value.code == "SEGMENT_TOO_LARGE"
