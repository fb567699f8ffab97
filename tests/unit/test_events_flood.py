"""The limit on parking: neighbours of a bad row are counted, and a bad installation parks almost nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from handbill.events.pipeline.flood import ALWAYS, WINDOW_ALWAYS, WINDOW_S, Flood


def test_a_few_bad_rows_pass_and_most_of_a_batch_does_not() -> None:
    flood = Flood()
    assert flood.most(0.0, 3) == ALWAYS
    assert flood.most(0.0, 1_000) == WINDOW_ALWAYS
    flood.note(0.0, 5_000, 0)
    assert flood.most(1.0, 1_000) == 500


@given(st.lists(st.integers(1, 15), min_size=1, max_size=200))
def test_small_batches_of_nothing_but_poison_are_stopped_too(sizes: list[int]) -> None:
    """Ten-event batches at low traffic never reach half of a large batch; the window sees them all the same."""
    flood, parked, now = Flood(), 0, 0.0
    for size in sizes:
        now += 1.5
        if size <= flood.most(now, size):
            parked += size
            flood.note(now, 0, size)
    assert parked <= WINDOW_ALWAYS
    assert flood.most(now + WINDOW_S + 1, 10) == ALWAYS, "after a while it may try again"


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 5)), max_size=100))
def test_the_usual_share_of_poison_is_never_stopped(batches: list[tuple[int, int]]) -> None:
    flood, now = Flood(), 0.0
    for good, bad in batches:
        now += 0.3
        if bad <= good:
            assert bad <= flood.most(now, good + bad)
            flood.note(now, good, bad)
