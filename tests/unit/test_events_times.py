"""When a banner's event happened is fixed once, at the edge: as sent, unless that is missing or in the future."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from handbill.banners.wire import Timing, timing
from handbill.kit.clock import from_ms, from_us, to_ms, to_us

RECEIVED = 1_790_000_000_123


@given(st.integers(-40 * 86_400_000, 40 * 86_400_000), st.integers(0, 499))
def test_the_future_is_now_and_the_past_is_as_sent(offset: int, index: int) -> None:
    when = from_ms(RECEIVED) + timedelta(milliseconds=offset)
    time = timing(when, RECEIVED, index)
    assert (time.at, time.received, time.sequence) == (RECEIVED + min(offset, 0), RECEIVED, index)
    assert time.micros == (index if offset > 0 else 0)


@given(st.integers(-40 * 86_400_000_000, 999))
def test_the_past_is_as_sent_to_the_microsecond(offset: int) -> None:
    time = timing(from_us(RECEIVED * 1000 + offset), RECEIVED)
    assert time.at * 1000 + time.micros == RECEIVED * 1000 + offset


@given(st.integers(0, 499))
def test_what_has_no_time_happened_when_it_was_received_in_the_order_of_the_request(index: int) -> None:
    assert timing(None, RECEIVED, index) == Timing(RECEIVED, index, RECEIVED, index)


@given(st.integers(0, 4_000_000_000_000))
def test_a_time_survives_the_way_there_and_back(ms: int) -> None:
    assert to_ms(from_ms(ms)) == ms
    assert to_us(from_us(ms)) == ms
