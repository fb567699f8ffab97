"""When events happened: to the microsecond, whatever the clock, the latency and the dialect."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.events.dialects import times
from handbill.events.model import at_us
from handbill.kit.clock import from_ms, from_us
from tests.kit.dialects import BATCHES, NOW, event, only, post

NOW_US = NOW * 1000
DAY_MS = 86_400_000
paths = st.sampled_from(sorted(BATCHES))
untimed = st.sampled_from(sorted(set(BATCHES) - {"/i/v1/analytics/events"}))
"""The dialects that take an event without a time."""


# --- reading times


@given(
    st.datetimes(datetime(1, 1, 3), datetime(9999, 12, 29)),
    st.integers(-1439, 1439),
)
def test_a_text_is_read_to_the_microsecond(when: datetime, minutes: int) -> None:
    aware = when.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    us = times.read_us(aware.isoformat())
    assert us is not None
    assert from_us(us) == aware
    assert times.read_us(when.isoformat()) == times.read_us(when.replace(tzinfo=UTC).isoformat())


@given(st.integers(times._SECONDS_BELOW * 1000 + 1, 2**53))
def test_numbers_are_read_to_the_microsecond(us: int) -> None:
    assert times.read_us(us / 1_000_000) == us
    assert times.read_us(us / 1000) == us
    assert times.read_us(us // 1000) == us // 1000 * 1000
    assert times.read_us(us // 1_000_000) == us // 1_000_000 * 1_000_000


def test_a_float_is_rounded_and_not_cut_off() -> None:
    assert times.read_us(1763561234.567891) == 1763561234567891
    assert times.read_us(1763561234567.891) == 1763561234567891
    assert times.read_us(1763561234.5678908) == 1763561234567891
    assert times.read_us(1763561234567.8908) == 1763561234567891
    assert times.read_us(1763561234.5678902) == 1763561234567890
    assert times.read_us(-1.5) == -1_500_000


@given(st.integers(0, 10**9 - 1), st.integers(0, 10**9 - 1), st.integers(1, 9))
def test_digits_beyond_the_microsecond_keep_the_order(first: int, second: int, digits: int) -> None:
    texts = [f"2026-11-16T12:00:00.{f'{nanos:09d}'[:digits]}Z" for nanos in (first, second)]
    read = [times.read_us(text) for text in texts]
    wanted = [int(text[20:-1].ljust(9, "0")) // 1000 for text in texts]
    assert read == [NOW_US + each for each in wanted]


def test_what_is_no_time_is_none() -> None:
    huge: list[Any] = [math.nan, math.inf, -math.inf, 1e300, 10**400, -(10**30), 253_402_300_800_000]
    nothing: list[Any] = ["", "  ", "x", True, False, None, [], {}, b"2026-11-16"]
    assert {times.read_us(value) for value in huge + nothing} == {None}
    assert times.read_us(253_402_300_799_999) == 253_402_300_799_999_000


# --- the rule about clocks

gaps = st.integers(0, 3_000_000)
"""Microseconds between two events, or between an event and its request."""


@given(paths, gaps, gaps, gaps, st.integers(0, 29_000), st.integers(0, 29_000), st.integers(-900, 2_000))
def test_latency_never_reverses_events_of_a_client_whose_clock_is_right(
    path: str, gap: int, wait: int, wait2: int, latency: int, latency2: int, error: int
) -> None:
    check_two_requests(path, (gap, wait, wait2, latency, latency2), error, most_off_ms=2_000)


@given(
    paths,
    gaps,
    gaps,
    gaps,
    st.integers(0, 2_000),
    st.integers(0, 2_000),
    st.one_of(st.integers(-9_000, -4), st.integers(4, 9_000)),
    st.integers(-2_900, 4_900),
)
def test_latency_never_reverses_events_of_a_client_that_is_off(
    path: str, gap: int, wait: int, wait2: int, latency: int, latency2: int, tens: int, rest: int
) -> None:
    """By minutes or hours, with room for the latency before the next step of the correction."""
    check_two_requests(path, (gap, wait, wait2, latency, latency2), tens * 10_000 + rest, most_off_ms=5_000)


def check_two_requests(path: str, spans: tuple[int, int, int, int, int], error_ms: int, *, most_off_ms: int) -> None:
    """Two consecutive events, each in a request of its own, of a client whose clock is wrong by so much."""
    gap, wait, wait2, latency, latency2 = spans
    happened = [NOW_US, NOW_US + gap]
    sent = [(happened[0] + wait) // 1000, (happened[1] + wait2) // 1000]
    received = [sent[0] + latency, sent[1] + latency2]
    events = [
        only(post(path, [event(n, happened[n] + error_ms * 1000)], sent_at=sent[n] + error_ms, received=received[n]))
        for n in range(2)
    ]
    assert at_us(events[1]) - at_us(events[0]) == gap
    assert abs(at_us(events[0]) - happened[0]) <= most_off_ms * 1000


@pytest.mark.parametrize("path", sorted(BATCHES))
def test_where_a_correction_begins(path: str) -> None:
    for ahead, correction in (
        (0, 0), (2_000, 0), (4_999, 0), (5_000, 10_000), (14_999, 10_000), (3_600_000, 3_600_000),
        (-30_000, 0), (-30_001, -30_000), (-35_001, -40_000), (-3_600_000, -3_600_000),
    ):  # fmt: skip
        at = at_us(only(post(path, [event(0, NOW_US - 77)], sent_at=NOW + ahead)))
        assert at == NOW_US - 77 - correction * 1000, ahead
    skewed = at_us(only(post(path, [event(0, NOW_US)])))
    assert skewed == NOW_US  # without a time of sending there is nothing to correct by


def test_a_clients_wish_not_to_be_corrected_is_kept() -> None:
    late: dict[str, Any] = {"sent_at": NOW + 3_600_000}
    assert at_us(only(post("/batch/", [event(0, NOW_US + 5, **{"$ignore_sent_at": True})], **late))) == NOW_US + 5
    plain = {**event(0, NOW_US + 5), "options": {"disable_skew_correction": True}}
    assert at_us(only(post("/i/v1/analytics/events", [plain], **late))) == NOW_US + 5


# --- events without a time, or with an impossible one


@given(untimed, st.integers(2, 40), st.booleans())
def test_missing_times_increase_with_the_position(path: str, count: int, has_sent_at: bool) -> None:
    parsed = post(path, [event(n) for n in range(count)], sent_at=NOW - 40_000_000 if has_sent_at else None)
    assert [at_us(each) for each in parsed.events] == [NOW_US + n for n in range(count)]
    assert {each.received for each in parsed.events} == {NOW}


@given(paths, st.integers(2, 40))
def test_times_in_the_far_future_increase_with_the_position(path: str, count: int) -> None:
    limit = NOW_US + times.FUTURE_MS * 1000
    parsed = post(path, [event(n, limit + 1 + count - n) for n in range(count)])
    assert [at_us(each) for each in parsed.events] == [NOW_US + n for n in range(count)]
    assert at_us(only(post(path, [event(0, limit)]))) == limit


def test_more_than_a_thousand_missing_times_go_into_the_next_millisecond() -> None:
    parsed = post("/batch/", [event(n) for n in range(2_500)])
    assert [at_us(each) for each in parsed.events] == [NOW_US + n for n in range(2_500)]
    assert (parsed.events[-1].at, parsed.events[-1].micros) == (NOW + 2, 499)


@pytest.mark.parametrize("path", ["/batch/", "/v1/batch"])
def test_a_time_that_cannot_be_read_is_a_missing_one(path: str) -> None:
    parsed = post(path, [event(0), {**event(1), "timestamp": "yesterday"}, event(2)])
    assert [at_us(each) for each in parsed.events] == [NOW_US, NOW_US + 1, NOW_US + 2]


# --- $time of posthog-js


def test_its_own_time_counts_before_the_offset_of_a_body_that_is_sent_again() -> None:
    """The same body, a minute later: only the query's `_` is new."""
    batch = [{**event(0, **{"$time": (NOW - 40) / 1000}), "offset": 40}]
    for late in (0, 250, 60_000, 3_600_000):
        again = post("/batch/", batch, received=NOW + late, query=b"_=%d" % (NOW + late))
        assert at_us(only(again)) == (NOW - 40) * 1000
        assert only(again).sequence == (NOW + late) * 16_384


@given(st.integers(0, 20_000), st.integers(0, 20_000), st.integers(0, 1_000), st.integers(-9_000, 9_000))
def test_a_slow_first_request_of_a_browser_is_not_dated_after_the_second(
    slow: int, fast: int, gap: int, tens: int
) -> None:
    """`offset` alone would date each event by its arrival. The clock is off by a multiple of ten seconds."""
    clock = NOW + tens * 10_000
    first = {**event(0, **{"$time": clock / 1000}), "offset": 3}
    second = {**event(1, **{"$time": (clock + gap) / 1000}), "offset": 3}
    at = [
        at_us(only(post("/batch/", [one], received=NOW + 3 + n * gap + latency, query=b"_=%d" % (clock + 3 + n * gap))))
        for n, (one, latency) in enumerate(((first, slow % 4_000), (second, fast % 4_000)))
    ]
    assert at[1] - at[0] == gap * 1000


def test_what_stands_for_the_time_of_sending() -> None:
    """The query's `_`, else the body's in either spelling, else the greatest `$time + offset`."""
    hour = 3_600_000
    early = {**event(0, **{"$time": (NOW - hour - 200) / 1000}), "offset": 200}
    later = {**event(1, **{"$time": (NOW - hour - 100) / 1000}), "offset": 150}
    other = {**event(2), "offset": 1e300}
    parsed = post("/batch/", [early, later, other])
    assert [at_us(each) - NOW_US for each in parsed.events] == [-200_000, -100_000, 2]
    assert {each.sequence // 16_384 for each in parsed.events} == {NOW - hour + 50}
    spelled: dict[str, Any] = {"sentAt": from_ms(NOW - 2 * hour).isoformat()}
    parsed = post("/batch/", [early], **spelled)
    assert at_us(only(parsed)) == (NOW + hour - 200) * 1000
    assert only(parsed).sequence == (NOW - 2 * hour) * 16_384
    assert b"sentAt" not in only(parsed).properties
    both = post("/batch/", [early], query=b"_=%d" % (NOW - hour), **spelled)
    assert (at_us(only(both)), only(both).sequence) == ((NOW - 200) * 1000, (NOW - hour) * 16_384)


def test_one_impossible_time_moves_no_other_event() -> None:
    """Without a time of sending for the whole request."""
    odd = [
        {**event(0, **{"$time": 1e300}), "offset": 5},
        {**event(1, **{"$time": (NOW + 10 * DAY_MS) / 1000}), "offset": 5},
        {**event(2, **{"$time": "2020-01-01"}), "offset": 5},
        {**event(3, **{"$time": True}), "offset": 5},
        {**event(4, **{"$time": NOW / 1000 - 60}), "offset": 10**400},
        event(5, NOW_US - 7),
        {**event(6, **{"$time": NOW / 1000 - 1}), "offset": 1_000},
    ]
    parsed = post("/batch/", odd)
    offset = -5_000
    wanted = [offset, 1, offset, offset, -60_000_000, -7, -1_000_000]
    assert [at_us(each) - NOW_US for each in parsed.events] == wanted


def test_a_timestamp_counts_before_its_own_time_and_that_before_the_offset() -> None:
    whole = {**event(0, NOW_US - 1_234_567, **{"$time": NOW / 1000 - 9.25}), "offset": 44.5}
    assert at_us(only(post("/batch/", [whole]))) == NOW_US - 1_234_567
    assert at_us(only(post("/batch/", [{**whole, "timestamp": "never"}]))) == NOW_US - 9_250_000
    del whole["timestamp"], whole["properties"]["$time"]
    assert at_us(post("/batch/", [event(0), whole]).events[1]) == NOW_US - 44_500
