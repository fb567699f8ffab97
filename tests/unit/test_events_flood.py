"""The limit on parking: neighbours of a bad row are counted, and a bad installation parks almost nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from handbill.events.pipeline.flood import ALWAYS, SLOT_S, WINDOW_ALWAYS, WINDOW_S, Flood

A, B, C = 1, 2, 3


def test_a_few_bad_rows_pass_and_most_of_a_batch_does_not() -> None:
    flood = Flood()
    assert flood.budget(0.0, A, 3) == ALWAYS
    assert flood.budget(0.0, A, 1_000) == WINDOW_ALWAYS
    flood.note(0.0, {A: 5_000}, {})
    assert flood.budget(1.0, A, 1_000) == 500


def test_the_budget_of_one_tenant_is_not_that_of_another() -> None:
    flood = Flood()
    flood.note(0.0, {}, {A: WINDOW_ALWAYS})
    assert flood.budget(1.0, A, 1_000) == 0
    assert flood.budget(1.0, B, 1_000) == WINDOW_ALWAYS


def test_the_installation_is_at_fault_when_more_tenants_are_refused_than_taken() -> None:
    flood = Flood()
    assert flood.is_installation_fault(0.0, {A}, set()), "nobody to compare with"
    assert not flood.is_installation_fault(1.0, {A}, {B})
    assert flood.is_installation_fault(2.0, {C}, {B}), "A still floods"
    flood.note(3.0, {A: 1}, {})
    assert not flood.is_installation_fault(4.0, {C}, {B}), "A was counted again"
    assert not flood.is_installation_fault(5.0, {C}, set()), "A was counted in the window"
    assert flood.flooding(6.0 + WINDOW_S) == 0


@given(st.lists(st.integers(1, 15), min_size=1, max_size=200))
def test_small_batches_of_nothing_but_poison_are_stopped_too(sizes: list[int]) -> None:
    """Ten-event batches at low traffic never reach half of a large batch; the window sees them all the same."""
    flood, parked, now = Flood(), 0, 0.0
    for size in sizes:
        now += 1.5
        if size <= flood.budget(now, A, size):
            parked += size
            flood.note(now, {}, {A: size})
    assert parked <= WINDOW_ALWAYS
    assert flood.budget(now + WINDOW_S + SLOT_S, A, 10) == ALWAYS, "after a while it may try again"


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 5)), max_size=100))
def test_the_usual_share_of_poison_is_never_stopped(batches: list[tuple[int, int]]) -> None:
    flood, now = Flood(), 0.0
    for good, bad in batches:
        now += 0.3
        if bad <= good:
            assert bad <= flood.budget(now, A, good + bad)
            flood.note(now, {A: good}, {A: bad})
