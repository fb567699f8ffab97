"""When an event happened is fixed once, at the edge: as told, unless that is missing or lies in the future."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from handbill.banners.wire import occurred
from handbill.kit.clock import from_ms, to_ms

RECEIVED = 1_790_000_000_123


@given(st.integers(-40 * 86_400_000, 40 * 86_400_000))
def test_the_future_is_now_and_the_past_is_as_told(offset: int) -> None:
    when = from_ms(RECEIVED) + timedelta(milliseconds=offset)
    assert occurred(when, RECEIVED) == RECEIVED + min(offset, 0)


def test_what_nobody_told_happened_when_it_was_received() -> None:
    assert occurred(None, RECEIVED) == RECEIVED


@given(st.integers(0, 4_000_000_000_000))
def test_a_time_survives_the_way_there_and_back(ms: int) -> None:
    assert to_ms(from_ms(ms)) == ms
