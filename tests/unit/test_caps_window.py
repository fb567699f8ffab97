"""The rolling window against the reference that nobody can misread."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.caps.model import EPOCH_MS, FOREVER_MS, Limits, Seen, State, Window
from handbill.caps.packed import Kept, Shelf, pack
from handbill.caps.window import verdict
from handbill.kit.errors import Invalid
from tests.kit.show_model import allowed

HOUR = 3_600_000
NOW = EPOCH_MS + 1_000_000_000


@pytest.mark.parametrize(("age", "shown"), [(24 * HOUR - 1, False), (24 * HOUR, True), (24 * HOUR + 1, True)])
def test_a_view_stops_counting_at_exactly_y_hours(age: int, shown: bool) -> None:
    limits = Limits((Window(1, 24 * HOUR),))
    answer = verdict([NOW - age], limits, NOW)
    assert answer.eligible is shown
    assert answer.next_eligible_at == (NOW if shown else NOW + 1)


def test_a_lifetime_limit_never_opens_again() -> None:
    limits = Limits((Window(5, HOUR), Window(2, FOREVER_MS)))
    assert verdict([NOW - 2 * HOUR], limits, NOW).eligible
    closed = verdict([NOW - 2 * HOUR, EPOCH_MS], limits, NOW)
    assert not closed.eligible
    assert closed.next_eligible_at is None


def test_a_yes_after_a_raised_limit_asks_for_history_until_the_window_has_passed() -> None:
    raised = Limits((Window(3, 24 * HOUR),), known_from_ms=NOW)
    assert verdict([], raised, NOW + 24 * HOUR - 1).unsure
    assert not verdict([], raised, NOW + 24 * HOUR).unsure
    full = verdict([NOW, NOW, NOW], raised, NOW)
    assert not full.eligible
    assert not full.unsure, "more views cannot turn a no into a yes"


def test_limits_that_cannot_be_kept_are_refused_with_every_fault() -> None:
    with pytest.raises(Invalid) as caught:
        Window(0, 0)
    assert [fault.field for fault in caught.value.faults] == ["x", "y"]


ages = st.lists(st.integers(-5, 60), max_size=12)
windows = st.lists(
    st.builds(Window, st.integers(1, 6), st.one_of(st.integers(1, 50), st.just(FOREVER_MS))), min_size=1, max_size=3
).map(tuple)


@given(ages, windows)
def test_any_times_and_windows_agree_with_the_reference(behind: list[int], of: tuple[Window, ...]) -> None:
    times = sorted((NOW - age for age in behind), reverse=True)
    limits = Limits(of)
    answer = verdict(times, limits, NOW)
    pairs = [(window.x, window.y_ms) for window in of]
    assert answer.eligible == allowed(times, pairs, NOW)
    kept = Kept(tuple(Seen(time, n, State.MOVED) for n, time in enumerate(times)))
    shelf = Shelf(pack({7: kept}))
    assert shelf.eligible(7, limits, NOW) == answer.eligible
    assert shelf.verdict(7, limits, NOW) == answer
    opens = answer.next_eligible_at
    if not answer.eligible and opens is not None:
        assert allowed(times, pairs, opens)
        assert not allowed(times, pairs, opens - 1)


@given(ages, st.lists(st.integers(1, 40), max_size=4), windows)
def test_slots_that_are_held_count_like_views_and_the_next_chance_is_exact(
    behind: list[int], ahead: list[int], of: tuple[Window, ...]
) -> None:
    times = sorted((NOW - age for age in behind), reverse=True)
    ends = [NOW + left for left in ahead]
    pairs = [(window.x, window.y_ms) for window in of]

    def room(now: int) -> bool:
        return allowed(times + [now] * sum(end > now for end in ends), pairs, now)

    answer = verdict(times, Limits(of), NOW, ends)
    assert answer.eligible == room(NOW)
    opens = answer.next_eligible_at
    assert opens is None or room(opens)
    assert not any(room(moment) for moment in range(NOW, NOW + 100 if opens is None else opens))
