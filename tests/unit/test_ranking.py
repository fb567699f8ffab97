"""Who goes first: settled criteria, drawn ones, and the same order every time for the same question."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from handbill.banners.model import Banner, Criterion
from handbill.banners.ranking import Order, ctr, settled_order

T0 = datetime(2026, 1, 1, tzinfo=UTC)
CRITERIA: list[Criterion] = ["priority", "weight", "ctr", "revenue", "recency", "least_seen", "active_hour"]


def banner(number: int, **fields: Any) -> Banner:
    created = T0 + timedelta(hours=fields.pop("hours", 0))
    return Banner(
        number, 1, UUID(int=number), None, "b", None, None, None, None, None, 2, 24, 3, True, None, None, "active", [],
        1, created, created, None, None, **fields,
    )  # fmt: skip


def ranked(banners: list[Banner], ranking: list[Criterion], **given: Any) -> list[int]:
    settled = settled_order(banners, ranking)
    order = Order(settled, ranking)
    rates, seen = given.get("rates", {}), given.get("seen", {})
    bits = order.sorted(
        range(len(settled)), given.get("seed", 1), rates, lambda bit: seen.get(settled[bit].id, 0),
        peak=given.get("peak", False),
    )  # fmt: skip
    return [settled[bit].id for bit in bits]


def test_each_criterion_alone() -> None:
    some = [banner(1, priority=1, revenue=5.0), banner(2, priority=9, hours=2), banner(3, revenue=7.0, hours=1)]
    assert ranked(some, ["priority"]) == [2, 1, 3]
    assert ranked(some, ["revenue"]) == [3, 1, 2]
    assert ranked(some, ["recency"]) == [2, 3, 1]
    assert ranked(some, ["least_seen"], seen={1: 2, 2: 1}) == [3, 2, 1]
    assert ranked(some, ["ctr"], rates={1: 0.01, 3: 0.5}) == [3, 2, 1], "without a history a banner stands at 2 %"


def test_the_first_criterion_decides_and_the_next_breaks_ties() -> None:
    some = [banner(1, priority=1), banner(2, priority=5), banner(3, priority=5, hours=1)]
    assert ranked(some, ["priority", "recency"]) == [3, 2, 1]
    assert ranked(some, ["priority", "least_seen"], seen={2: 4}) == [3, 2, 1]
    assert ranked(some, ["least_seen", "priority"], seen={2: 4, 3: 4}) == [1, 2, 3]


def test_weights_share_the_first_place_in_proportion() -> None:
    some = [banner(1, weight=100), banner(2, weight=300)]
    first = Counter(ranked(some, ["weight"], seed=random.Random(5).getrandbits(32) * n)[0] for n in range(1, 2_001))
    assert 1_400 < first[2] < 1_600


def test_one_lucky_click_is_no_hundred_percent() -> None:
    assert ctr(1, 1) < ctr(1_000, 60)
    assert ctr(0, 0) == 0.02


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.integers(1, 4), st.integers(0, 3), st.integers(0, 5)), max_size=12),
    st.lists(st.sampled_from(CRITERIA), min_size=1, max_size=4, unique=True),
    st.integers(0, 2**64 - 1),
    st.randoms(use_true_random=False),
)
def test_the_order_is_one_and_the_same(
    fields: list[tuple[int, int, int, int]], ranking: list[Criterion], seed: int, shuffler: random.Random
) -> None:
    some = [
        banner(number + 1, priority=priority, weight=weight, revenue=float(revenue), hours=hours)
        for number, (priority, weight, revenue, hours) in enumerate(fields)
    ]
    first = ranked(some, ranking, seed=seed)
    assert sorted(first) == [each.id for each in some]
    shuffler.shuffle(some)
    assert ranked(some, ranking, seed=seed) == first
