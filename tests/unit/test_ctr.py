"""The Wilson interval of clicks by impressions: known values, and what must hold for any numbers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.banners.ctr import ctr, wilson
from handbill.banners.dimensions import country_form, device_form, page_form
from handbill.banners.event_filters import Chosen, scope
from handbill.banners.event_stats import EventStats, complete_from, missing
from handbill.banners.stats_model import MissingEvents, StatsQuery
from handbill.infra.clickhouse import ClickHouseAway
from handbill.insights.store import Bounds, EventStoreReader
from handbill.kit.errors import Busy

DAY = datetime(2026, 3, 1, tzinfo=UTC).date()


@pytest.mark.parametrize(
    ("impressions", "clicks", "low", "high"),
    [
        (100, 10, 0.0552, 0.1744),
        # Newcombe, Statistics in Medicine 17 (1998), table I, method 3
        (263, 81, 0.2553, 0.3662),
        (148, 15, 0.0624, 0.1605),
        (20, 0, 0.0, 0.1611),
        (29, 1, 0.0061, 0.1718),
        (10, 10, 0.7225, 1.0),
    ],
)
def test_known_values(impressions: int, clicks: int, low: float, high: float) -> None:
    assert wilson(impressions, clicks) == pytest.approx((low, high), abs=5.1e-5)


def test_without_impressions_there_is_no_share() -> None:
    assert wilson(0, 0) == wilson(0, 5) == (None, None)
    assert ctr(0, 5) is None


def test_more_clicks_than_impressions_are_taken_as_all_of_them() -> None:
    assert wilson(3, 9) == wilson(3, 3)
    assert ctr(3, 9) == 3.0


@given(st.integers(1, 10**9), st.integers(0, 10**9))
def test_the_interval_holds_the_share_and_shrinks(impressions: int, clicks: int) -> None:
    low, high = wilson(impressions, clicks)
    assert low is not None
    assert high is not None
    share = min(clicks / impressions, 1.0)
    assert 0.0 <= low <= share + 1e-6
    assert share - 1e-6 <= high <= 1.0
    more_low, more_high = wilson(impressions * 10, min(clicks, impressions) * 10)
    assert more_low is not None
    assert more_high is not None
    assert more_high - more_low <= high - low + 2e-6


@pytest.mark.parametrize(
    ("sent", "form"),
    [
        ("https://x.example/a?b#c", "https://x.example/a"), ("https://x.example/a#c?b", "https://x.example/a"),
        ("?b", ""), ("", ""), ("/a\nb?c\nd", "/a\nb"), ("x" * 600, "x" * 500),
    ],
)  # fmt: skip
def test_a_page_is_its_address_without_query_and_fragment(sent: str, form: str) -> None:
    assert page_form(sent) == form


def test_devices_and_countries_have_one_spelling() -> None:
    assert {device_form(each) for each in ("mobile", "MOBILE", "Mobile")} == {"mobile"}
    assert country_form("fr") == "FR"


def test_only_four_dimensions_need_the_events() -> None:
    query = StatsQuery(DAY, DAY + timedelta(1), by=("banner", "placement", "campaign"))
    assert query.source == "counters"
    for field in ("variants", "countries", "devices", "pages"):
        chosen: dict[str, Any] = {field: ("x",)}
        assert StatsQuery(DAY, DAY + timedelta(1), **chosen).source == "events"


def test_a_range_holds_the_buckets_that_begin_in_it() -> None:
    begin = datetime(2026, 3, 1, 0, 0, 30, tzinfo=UTC)  # a zone of an odd offset
    params = scope(1, begin, begin + timedelta(days=1))
    bucket = datetime(2026, 3, 1, 0, 15, tzinfo=UTC).timestamp() * 1000
    assert (params["start"], params["end"]) == (bucket, bucket + 86_400_000)
    whole = datetime(2026, 3, 1, tzinfo=UTC)
    assert scope(1, whole, whole)["start"] == whole.timestamp() * 1000


def test_gaps_are_told_kind_by_kind_and_today_does_not_end_completeness() -> None:
    days = [DAY + timedelta(number) for number in range(4)]
    counted = dict.fromkeys(days, (10, 5, 2))
    stored = {days[0]: (8, 7, 2), days[1]: (10, 5, 2), days[2]: (11, 9, 9), days[3]: (9, 5, 2)}
    gaps = missing(counted, stored)
    assert gaps == [MissingEvents(days[0], 2), MissingEvents(days[3], 1)]
    assert missing(counted, {})[1] == MissingEvents(days[1], 17)
    now = datetime(2026, 3, 4, 12, tzinfo=UTC)
    assert complete_from(gaps, now) == days[1]
    assert complete_from(gaps[1:], now) is None
    assert complete_from(gaps, now + timedelta(days=1)) == days[3] + timedelta(days=1)


async def test_an_event_store_that_does_not_answer_is_asked_once() -> None:
    asked: list[bool] = []

    class Frozen:
        async def query(self, *_: Any, again: bool = True) -> list[tuple[Any, ...]]:
            asked.append(again)
            if len(asked) == 2:
                raise ClickHouseAway("it does not answer")
            return []

    stats = EventStats(EventStoreReader(Frozen(), Bounds()))  # type: ignore[arg-type]
    begin = datetime(2026, 3, 1, tzinfo=UTC)
    with pytest.raises(Busy) as refused:
        await stats.read(1, (begin, begin + timedelta(days=1)), "UTC", "total", ("variant",), Chosen())
    assert refused.value.code == "STATS_EVENTS_AWAY"
    assert asked == [False, False], "a second try would wait as long again"
