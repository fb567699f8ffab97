"""Cutting days, formula-safe tables, the gate, an asker who leaves, a tail that is too slow: without any engine."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.events.model import CapturedEvent, Dropped, Impression, View
from handbill.insights import compile, table
from handbill.insights.compile import Range
from handbill.insights.model import MOST_STEPS, Filter, FunnelQuery, RetentionQuery, TrendsQuery, path_of
from handbill.insights.periods import cuts, midnight
from handbill.insights.statements import Q
from handbill.insights.tail import QUEUE, QUEUE_BYTES, Missed, Tail, Wanted, seen_of
from handbill.kit.clock import to_ms
from handbill.kit.disconnects import cancel_on_disconnect
from handbill.kit.errors import Invalid
from tests.kit.waiting import soon

ZONES = st.sampled_from(["UTC", "Europe/Paris", "Australia/Lord_Howe", "Asia/Kathmandu", "America/Havana",
                         "Pacific/Apia", "Africa/Cairo", "America/Sao_Paulo"])  # fmt: skip


@given(
    ZONES, st.dates(date(2005, 1, 1), date(2030, 1, 1)), st.integers(1, 30), st.sampled_from(["hour", "day", "week"])
)
def test_cuts_are_the_zones_own(name: str, start: date, days: int, interval: Any) -> None:
    """They rise, begin with the range, stay inside it, and each is the first moment of its hour, day or week."""
    zone, end = ZoneInfo(name), start + timedelta(days=days)
    found = cuts(start, end, interval, zone)
    assert found[0] == midnight(start, zone)
    assert all(one < other for one, other in zip(found, [*found[1:], midnight(end, zone)], strict=True))
    for cut in found[1:]:
        here, before = cut.astimezone(zone), (cut - timedelta(milliseconds=1)).astimezone(zone)
        if interval == "hour":
            assert here.minute == 0
        else:
            assert here.date() > before.date()
            assert interval == "day" or here.weekday() == 0


def test_a_day_has_as_many_hours_as_its_clock_shows() -> None:
    paris = ZoneInfo("Europe/Paris")
    hours = [len(cuts(day, day + timedelta(days=1), "hour", paris)) for day in (date(2026, 3, 29), date(2026, 10, 25))]
    assert hours == [23, 25]
    with pytest.raises(Invalid, match="points"):
        cuts(date(2026, 1, 1), date(2026, 3, 1), "hour", paris)


@given(st.text(max_size=20))
def test_no_cell_is_a_formula(text: str) -> None:
    shown = table.cell(text)
    assert not shown.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert shown.removeprefix("'") == text.removeprefix("'").replace("\0", "\N{REPLACEMENT CHARACTER}")
    assert table.cell(-1.5) == "-1.5"


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60))
def test_whatever_a_caller_says_is_bound_and_every_statement_names_its_tenant(word: str) -> None:
    """The text of a statement is the same whatever the names and values in the question are."""
    within = Range(
        datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC), (datetime(2026, 1, 1, tzinfo=UTC),)
    )

    def compiled(said: str) -> list[compile.Compiled]:
        filters = [
            {"op": "is", "property": said, "values": [said]},
            {"op": "contains", "column": "url", "values": [said]},
            {"op": "is_not", "property": said, "of": "person", "values": [said]},
        ]
        base = {"from": "2026-01-01", "to": "2026-02-01", "filters": filters}
        one = {"event": said, "filters": filters}
        asked = msgspec.convert(
            {**base, "series": [one, {"measure": "p90", "of": said}], "breakdown": {"property": said}}, TrendsQuery
        )
        walked = msgspec.convert({**base, "steps": [one, one], "breakdown": {"property": said}}, FunnelQuery)
        returned = msgspec.convert({**base, "begins": one, "returns": one}, RetentionQuery)
        given_ = [Filter("is", said, None, [said]), Filter("gt", said, None, [1], "person")]
        assert asked.breakdown is not None
        return [
            compile.trends(7, within, asked, [said]),
            compile.funnel(7, within, walked, [said]),
            compile.retention(7, within, returned),
            compile.top_values(7, within, asked.breakdown, given_, asked.series, 5),
            compile.events(7, within, filters=given_, event=said, distinct_ids=[said], rows=5),
        ]

    like = ".".join(f"n{number}" for number in range(len(path_of(word)))) or "plain"  # the number of names shows
    for one, other in zip(compiled(word), compiled(like), strict=True):
        assert one.sql == other.sql
        assert one.params["tenant"] == 7
        assert one.joins_people
        assert "from person_properties final" in one.sql
        assert set(re.findall(r"\{(\w+):", one.sql)) <= set(one.params)
        for source in re.finditer(r"\bfrom (events|person_distinct_id_overrides|person_properties)\b", one.sql):
            assert "tenant_id = {tenant:UInt32}" in one.sql[source.end() :]
    assert all("tenant_id" in text for text in Q)


async def test_work_is_cancelled_when_its_asker_leaves() -> None:
    ended = asyncio.Event()

    async def work() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return 1

    left: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asked = asyncio.create_task(cancel_on_disconnect(work(), left))
    await asyncio.sleep(0)
    left.set_result(None)
    with pytest.raises(Invalid) as gone:
        await soon(asked)
    assert gone.value.code == "CLIENT_LEFT"
    assert ended.is_set()

    async def quick() -> int:
        return 2

    assert await cancel_on_disconnect(quick(), asyncio.Event().wait()) == 2


async def taken(tail: Tail) -> tuple[int, Missed | None]:
    """All that waits, portion by portion: how many, and what was missed."""
    count, missed = 0, None
    while missed is None:
        found = await tail.next(0.001)
        assert found is not None
        count += len(found[0])
        missed = found[1]
    return count, missed


async def test_a_slow_tail_forgets_and_says_so() -> None:
    tail = Tail(7, Wanted(distinct_id="ada"))
    event = CapturedEvent(7, "e", 0, 0, "view", "ada", "own")
    tail.put(CapturedEvent(7, "e", 0, 0, "view", "bob", "own"))
    assert await tail.next(0.001) == ([], None)
    for _ in range(QUEUE + 7):
        tail.put(event)
    assert await taken(tail) == (QUEUE, Missed(7))
    for _ in range(20):
        tail.put(msgspec.structs.replace(event, properties=b'{"a":"%s"}' % (b"x" * (QUEUE_BYTES // 8))))
    found = await tail.next(0.001)
    assert found is not None
    assert (len(found[0]), found[1]) == (1, None), "large events are prepared one by one"
    assert await taken(tail) == (6, Missed(13)), "large events are fewer"
    tail.miss(3)
    assert await tail.next(0.001) == ([], Missed(0, more=True)), "a filter may have hidden them anyway"
    tail.end()
    assert await tail.next(0.001) is None


def test_the_tail_shows_microseconds() -> None:
    at = datetime(2026, 7, 1, 12, 0, 0, 5_321, tzinfo=UTC)
    captured = CapturedEvent(7, "e", to_ms(at), 0, "view", "ada", "own", micros=321)
    assert [seen_of(event).at for event in (captured, View(7, "v", to_ms(at), 0, 1, micros=321))] == [at, at]
    assert seen_of(Dropped(7, "d", to_ms(at), 0, "view", "TOO_OLD")).at == at.replace(microsecond=5_000)


def test_a_moment_of_a_funnel_has_room_for_every_step() -> None:
    """The statement packs the steps of an event into 10 bits of a number."""
    assert MOST_STEPS == 10
    assert "between 1 and 1023" in Q["ties"]


def test_banner_events_are_seen_under_their_stored_names() -> None:
    shown = seen_of(Impression(7, "i", 0, 0, 1, user="ada", page="https://a.example/"))
    assert (shown.event, shown.distinct_id, shown.url) == ("$banner_impression", "ada", "https://a.example/")
    assert seen_of(View(7, "v", 0, 0, 1, session="s")).distinct_id == "s"
    assert seen_of(View(7, "v", 0, 0, 1, device="mobile", device_id="d")).distinct_id == "d"
    assert seen_of(CapturedEvent(7, "e", 0, 0, "view", "ada", "own", b"[1]")).properties == {}
