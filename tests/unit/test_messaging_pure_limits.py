"""GCRA against the only definition that matters: no window holds more than it may."""

from __future__ import annotations

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from handbill.fake_graph.limits import Pairs, Throughput
from handbill.messaging.limits import (
    COUNTED_MS,
    DAY_MS,
    OPEN_MS,
    PAIR,
    PAIR_KEPT,
    SECOND_US,
    TIERS,
    Pace,
    give_back,
    number_pace,
    reach,
    still_counted,
    take,
    window_open,
)

gaps = st.lists(st.integers(0, 400), max_size=120)
paces = st.builds(Pace, st.integers(1, 300), st.integers(1, 12))
START = 1_700_000_000_000_000


def run(times: list[int], pace: Pace) -> list[int]:
    """The moments that were let through."""
    tat, through = 0, []
    for now in times:
        turn = take(tat, now, pace)
        tat = turn.tat_us
        if turn.admitted:
            through.append(now)
        else:
            assert turn.wait_us > 0
            assert take(tat, now + turn.wait_us, pace).admitted, "the wait it names is enough"
            assert not take(tat, now + turn.wait_us - 1, pace).admitted, "and not too long"
    return through


@given(gaps, paces)
def test_no_window_holds_more_than_its_limit_and_nobody_waits_for_nothing(steps: list[int], pace: Pace) -> None:
    times = [START + at for at in accumulate(steps)]
    through = run(times, pace)
    for first, begin in enumerate(through):
        for last in range(first, len(through)):
            assert last - first + 1 <= pace.most_within(through[last] - begin)
    # The other half: a refusal is right only where one more would have broken some window.
    taken: list[int] = []
    for now in times:
        if all(len(taken) - place + 1 <= pace.most_within(now - at) for place, at in enumerate(taken)):
            taken.append(now)
    assert taken == through


@given(st.integers(4, 1000), st.integers(1, 12), st.integers(0, 200))
def test_a_number_stays_within_its_second_even_when_the_line_jitters(
    per_second: int, burst: int, jitter_ms: int
) -> None:
    pace = number_pace(per_second, burst=burst, jitter_ms=jitter_ms)
    # Any window of a second at the provider was at most a second and the jitter here; the end is not part of it.
    assert pace.most_within(SECOND_US + jitter_ms * 1000 - 1) <= per_second
    assert pace.burst >= 1


def test_the_standard_number_keeps_most_of_its_speed() -> None:
    pace = number_pace(80)
    assert SECOND_US / pace.interval_us > 0.85 * 80


def test_a_pair_talks_45_times_at_once_and_then_every_six_seconds() -> None:
    assert len(run([START] * 100, PAIR)) == 45
    assert len(run([START] * 100 + [START + 6 * SECOND_US] * 3, PAIR)) == 46


def greedy(pace: Pace, every_us: int, until_us: int) -> list[int]:
    """When a sender with endless work sends, in milliseconds."""
    return [at // 1000 for at in run(list(range(START, START + until_us, every_us)), pace)]


@given(st.lists(st.integers(0, 50), min_size=1, max_size=7), st.integers(8, 120))
def test_a_sender_at_full_speed_is_never_refused_however_the_line_jitters(late: list[int], per_second: int) -> None:
    """Our pace against the fake server's own count, which shares no code with it."""
    sent = greedy(number_pace(per_second, burst=3, jitter_ms=50), 1_000, 2_500_000)
    assert len(sent) > 0.6 * 2.5 * per_second, "careful, but not slow"
    speed = Throughput(per_second)
    for at_ms in sorted(at + late[place % len(late)] for place, at in enumerate(sent)):
        assert not speed.full(at_ms)
        speed.count(at_ms)


@given(st.lists(st.integers(0, 6_000), min_size=1, max_size=7))
def test_a_pair_at_full_speed_is_never_refused_either(late: list[int]) -> None:
    sent = greedy(PAIR_KEPT, 500_000, 400_000_000)
    assert len(sent) == 44 + 66
    talk = Pairs(6_000, 45)
    for at_ms in sorted(at + late[place % len(late)] for place, at in enumerate(sent)):
        assert not talk.full(("n", "p"), at_ms)
        talk.count(("n", "p"), at_ms)


def test_an_unused_token_is_given_back() -> None:
    pace = Pace(1000, 2)
    first = take(0, START, pace)
    second = take(first.tat_us, START, pace)
    assert not take(second.tat_us, START, pace).admitted
    assert take(give_back(second.tat_us, pace), START, pace).admitted
    assert give_back(0, pace) == 0


@given(st.lists(st.tuples(st.integers(0, 3 * DAY_MS), st.integers(0, 6)), max_size=40), st.integers(1, 4))
def test_a_tier_admits_no_more_people_than_it_may_in_any_day(opened: list[tuple[int, int]], tier: int) -> None:
    last: dict[int, int] = {}
    let: list[tuple[int, int]] = []
    for now, person in sorted(opened):
        current = {one: at for one, at in last.items() if now - at < COUNTED_MS}
        oldest = min(current.values(), default=None)
        answer = reach(tier, last.get(person), still_counted(last.values(), now), oldest, now)
        assert answer.new == (person not in current)
        if answer.admitted:
            last[person] = now
            let.append((now, person))
        else:
            assert answer.free_at_ms is not None
            assert answer.free_at_ms > now
        within = {one for at, one in let if now - DAY_MS < at <= now}
        assert len(within) <= tier


def test_the_unlimited_tier_and_the_service_window() -> None:
    assert reach(TIERS["TIER_UNLIMITED"], None, 10**9, 0, DAY_MS).admitted
    assert window_open(1, OPEN_MS)
    assert not window_open(1, OPEN_MS + 1)
    assert not window_open(None, 0)
