"""Which lane an event takes, which cursor is later, and when a tenant is too noisy for the others."""

from __future__ import annotations

from collections import Counter

import pytest

from handbill.infra.journal.lanes import Lanes, later
from handbill.infra.journal.spill import SpillPolicy, SpillState, spills
from handbill.kit.errors import Broken


def test_lanes_have_names_and_lasting_numbers() -> None:
    assert Lanes(2, 1).all() == [("0", 0), ("1", 1), ("o0", 100)]
    assert Lanes(2, 1).is_overflow("o0")
    assert not Lanes(2, 1).is_overflow("1")
    with pytest.raises(Broken):
        Lanes(0, 1)


def test_a_sender_keeps_its_lane_for_ever() -> None:
    lanes = Lanes(4, 2)
    assert [lanes.lane_for(7, name) for name in ("ann", "bob", "cid", "\ud800")] == PINNED
    assert lanes.overflow_for(7) == lanes.overflow_for(7)


PINNED = ["3", "0", "0", "0"]


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_senders_spread_evenly(count: int) -> None:
    lanes = Lanes(count, 2)
    found = Counter(lanes.lane_for(tenant, f"user-{n}") for tenant in range(5) for n in range(2_000))
    assert len(found) == count
    assert max(found.values()) < 1.15 * min(found.values())
    assert set(Counter(lanes.overflow_for(tenant) for tenant in range(50))) == {"o0", "o1"}


def test_later_compares_numbers_not_text() -> None:
    assert later("10-0", "9-5")
    assert later("9-10", "9-9")
    assert not later("9-9", "9-9")
    assert later("1-0", "")
    with pytest.raises(Broken):
        later("x-1", "0-0")


POLICY = SpillPolicy(floor=100, share=0.5, tau_s=1, hold_s=5)


def rush(state: SpillState, tenant: int, per_second: int, start: float, seconds: int) -> list[bool]:
    """A tenant's answers over some seconds, ten appends a second."""
    return [spills(state, POLICY, tenant, per_second // 10, start + step / 10) for step in range(seconds * 10)]


def test_a_tenant_above_floor_and_share_spills_and_its_neighbours_stay() -> None:
    state = SpillState()
    for step in range(100):
        now = step / 10
        noisy = spills(state, POLICY, 1, 100, now)
        assert not spills(state, POLICY, 2, 2, now)
    assert noisy


def test_nobody_spills_below_the_floor_even_alone() -> None:
    assert not any(rush(SpillState(), 1, 90, 0, 10))


def test_nobody_spills_within_a_fair_share() -> None:
    state = SpillState()
    for step in range(200):
        assert not any(spills(state, POLICY, tenant, 50, step / 10) for tenant in (1, 2, 3))


def test_a_tenant_comes_back_only_after_being_quiet_for_a_while() -> None:
    state = SpillState()
    assert rush(state, 1, 1_000, 0, 3)[-1]
    assert spills(state, POLICY, 1, 1, 6.0), "a pause is not the end"
    assert not spills(state, POLICY, 1, 1, 20.0)


def test_the_memory_of_tenants_is_bounded() -> None:
    state, policy = SpillState(), SpillPolicy(tenants=10)
    for tenant in range(100):
        spills(state, policy, tenant, 1, 0.0)
    assert len(state.tenants) == 10
