"""Counts as a sum: no order, split or repetition of a split changes them, and they are the generator's own figures."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from handbill.banners.tally import BUCKET_MS, FIGURES, bucket_of, bucket_time, tally
from handbill.events.model import BannerEvent
from tests.kit.ledger import Cell, Ledger, Shop, events, quarter

NOW = 1_790_000_123_456


def cells(sent: list[BannerEvent]) -> Counter[Cell]:
    found: Counter[Cell] = Counter()
    for (tenant, bucket, banner, placement, campaign), figures in tally(sent).items():
        for name, number in zip(FIGURES, figures, strict=True):
            if number:
                found[(tenant, banner, placement, campaign, bucket_time(bucket), name)] += number
    return found


@given(seed=st.integers(0, 10_000), shuffle=st.randoms(use_true_random=False), cut=st.integers(0, 80))
def test_the_tally_is_the_ledgers_whatever_the_order_and_the_split(seed: int, shuffle: random.Random, cut: int) -> None:
    shops = [Shop(1, (11, 12), (None, 5)), Shop(2, (21,))]
    sent = events(random.Random(seed), shops, 80, NOW)
    ledger = Ledger()
    ledger.note(sent)
    shuffle.shuffle(sent)
    assert cells(sent) == ledger.cells
    assert cells(sent[:cut]) + cells(sent[cut:]) == ledger.cells


@given(st.integers(0, 4_000_000_000_000))
def test_a_bucket_is_a_quarter_of_an_hour(at: int) -> None:
    assert bucket_time(bucket_of(at)) == quarter(at)
    assert 0 <= at - bucket_of(at) < BUCKET_MS


def test_nothing_is_nothing() -> None:
    assert tally([]) == {}
