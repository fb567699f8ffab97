"""Strict caps as the law words them: at most x for views that are reported in time, and no slot withheld for longer.

A life is drawn: decisions, reports of some of them (in time, too late, twice, never), with the number of their lease or
without. The ledger is asked at every step; what it grants is held against plain counting.
"""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from handbill.caps import ledger
from handbill.caps.model import ANY_LEASE, EPOCH_MS, FOREVER_MS, LEASED, Change, Limits, Verb, Window
from handbill.caps.packed import Shelf
from tests.kit.show_model import allowed

START = EPOCH_MS + 1_000_000
SWEEP = FOREVER_MS
LEASE = 50
SCOPE = 7
windows = st.lists(
    st.builds(Window, st.integers(1, 4), st.sampled_from([20, 80, 300, FOREVER_MS])), min_size=1, max_size=2
).map(tuple)


class Life:
    def __init__(self, of: tuple[Window, ...], by_number: bool) -> None:
        self.limits = Limits(of)
        self.by_number = by_number
        self.value = b""
        self.now = START
        self.open: dict[int, int] = {}  # granted and not yet reported: number, when
        self.timely: list[int] = []
        self.views: list[int] = []

    def decide(self, number: int) -> None:
        self.value, granted = ledger.lease(
            self.value, [(SCOPE, self.limits.windows)], self.now, self.now + LEASE, number
        )
        pairs = [(window.x, window.y_ms) for window in self.limits.windows]
        held = sum(self.now < when + LEASE for when in self.open.values())
        assert bool(granted) == allowed(self.views + [self.now] * held, pairs, self.now)
        if granted:
            self.open[number] = self.now

    def report(self, number: int) -> None:
        when = self.open.pop(number)
        lease = number if self.by_number else ANY_LEASE
        told = Change(Verb.MOVE, SCOPE, self.now, number, self.limits.keep, self.limits.horizon_ms, lease)
        self.value = ledger.apply(self.value, [told, told], self.now, SWEEP).value
        self.value = ledger.apply(self.value, [told], self.now, SWEEP).value  # a copy gives back no second slot
        self.views.append(self.now)
        if self.now < when + LEASE:
            self.timely.append(self.now)
        for window in self.limits.windows:
            assert sum(self.now - time < window.y_ms for time in self.timely) <= window.x


@given(windows, st.randoms(use_true_random=False))
def test_no_more_than_x_in_time_and_never_withheld_for_longer_than_the_lease(
    of: tuple[Window, ...], chance: random.Random
) -> None:
    life = Life(of, by_number=True)
    for number in range(1, 60):
        life.now += chance.choice([0, 0, 1, 5, 20, LEASE - 1, LEASE, LEASE + 1])
        due = [each for each in life.open if chance.random() < 0.4]
        if due:
            life.report(chance.choice(due))
        else:
            life.decide(number)


@given(windows, st.randoms(use_true_random=False))
def test_views_that_cannot_name_their_lease_keep_the_promise_too(of: tuple[Window, ...], chance: random.Random) -> None:
    """Every one is reported in time here: a nameless late one gives back another's slot, as it must be able to."""
    life = Life(of, by_number=False)
    for number in range(1, 60):
        life.now += chance.choice([0, 1, 5, 20])
        for late in [each for each, when in life.open.items() if life.now - when >= LEASE - 20]:
            life.report(late)
        if life.open and chance.random() < 0.3:
            life.report(chance.choice(sorted(life.open)))
        else:
            life.decide(number)


def test_a_slot_is_free_again_at_the_very_millisecond_its_lease_ends() -> None:
    slot = [(SCOPE, (Window(1, 1_000),))]
    value, granted = ledger.lease(b"", slot, START, START + LEASE, 1)
    assert granted
    assert ledger.lease(value, slot, START + LEASE - 1, START + 2 * LEASE, 2)[1] == 0
    assert ledger.lease(value, slot, START + LEASE, START + 2 * LEASE, 2)[1] == 2


def test_a_soft_reader_does_not_see_leases_and_a_strict_one_does() -> None:
    value, _ = ledger.lease(b"", [(SCOPE, (Window(1, 1_000),))], START, START + LEASE, 1)
    shelf, limits = Shelf(value), Limits((Window(1, 1_000),))
    assert shelf.eligible(SCOPE, limits, START)
    assert shelf.verdict(SCOPE, limits, START).eligible
    held = shelf.verdict(SCOPE, limits, START, strict=True)
    assert (held.eligible, held.next_eligible_at) == (False, START + LEASE)


def test_leases_are_told_again_with_the_views() -> None:
    def limits_of(_: int) -> Limits:
        return Limits((Window(2, 1_000),))

    slot = [(SCOPE, (Window(2, 1_000),))]
    one, _ = ledger.lease(b"", slot, START, START + LEASE, 1)
    other, _ = ledger.lease(b"", slot, START, START + LEASE, 2)
    told = [*ledger.changes_of(one, limits_of), *ledger.changes_of(other, limits_of)]
    both = ledger.apply(b"", told, START, SWEEP).value
    assert Shelf(both).leases(SCOPE, START) == [START + LEASE] * 2
    assert ledger.lease(both, slot, START, START + LEASE, 3)[1] == 0
    assert ledger.apply(b"", told, START + LEASE, SWEEP).value == b"", "ended leases are nobody's"
    assert Shelf(both).scopes() == [SCOPE | LEASED]
