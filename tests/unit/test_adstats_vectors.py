"""The drawn platform's arithmetic: pinned by vectors, and by a second, naive implementation over random input."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from handbill.adstats import funnel, rounding
from handbill.adstats.draws import Draws, seed
from tests.kit import adstats_naive as naive


def rows(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((naive.FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    assert found
    return found


def test_the_vectors_are_those_of_the_naive_implementation() -> None:
    assert {name: rows(name) for name in naive.vectors()} == naive.vectors()


def test_seeds_and_draws() -> None:
    for row in rows("draws"):
        start = seed(row["seller"], row["entity"], date.fromisoformat(row["day"]))
        draws = Draws(start)
        assert (start, [draws.next() for _ in row["draws"]]) == (row["seed"], row["draws"])


def test_mulberry32_is_the_one_everybody_means() -> None:
    """The first numbers after the seeds 0 and 1, as other implementations publish them."""
    assert [Draws(0).next(), Draws(1).next()] == [1144304738, 2693262067]


def test_rounding_and_ratios() -> None:
    for row in rows("rounding"):
        assert rounding.half_up(row["part"], row["whole"]) == row["rounded"]
    for row in rows("ratios"):
        assert rounding.ratio(Decimal(row["part"]), Decimal(row["whole"])) == Decimal(row["ratio"])


def test_the_funnel() -> None:
    for row in rows("funnel"):
        budget = funnel.daily_budget(Decimal(row["budget"]), row["kind"], row["currency"])
        assert funnel.drawn(
            row["seller"], row["entity"], date.fromisoformat(row["day"]), budget, row["currency"]
        ) == row["figures"]  # fmt: skip


def test_the_split() -> None:
    for row in rows("split"):
        weights = [funnel.weight(row["seller"], child, date.fromisoformat(row["day"])) for child in row["children"]]
        assert [funnel.split(total, weights) for total in row["totals"]] == row["parts"]


def test_a_hundred_dollars_are_about_twelve_thousand_impressions_and_a_lifetime_is_thirty_days() -> None:
    day = date(2026, 2, 19)
    figures = funnel.drawn("s", "c", day, Decimal(100), "USD")
    assert 8_500 <= figures[0] <= 11_500
    assert 0.9 * 10_000 <= figures[1] <= 1.1 * 13_530
    assert funnel.daily_budget(Decimal(1000), "LIFETIME", "USD").quantize(Decimal("0.01")) == Decimal("33.33")


@given(
    st.integers(1, 10**9),
    st.sampled_from(["USD", "VND", "KWD"]),
    st.sampled_from(["DAILY", "LIFETIME"]),
    st.dates(date(2020, 1, 1), date(2030, 1, 1)),
    st.text(max_size=8).filter(lambda text: not any(0xD800 <= ord(c) <= 0xDFFF for c in text)),
)
def test_both_implementations_agree(cents: int, currency: str, kind: str, day: date, name: str) -> None:
    budget = Decimal(cents).scaleb(-2)
    if kind == "LIFETIME":
        budget *= 30  # so that thirty days divide it exactly; otherwise Decimal keeps 28 digits and fractions keep all
    told = funnel.drawn("seller", name, day, funnel.daily_budget(budget, kind, currency), currency)
    assert told == naive.day_of("seller", name, day.isoformat(), str(budget), kind, currency)


@given(st.integers(0, 10**12), st.lists(st.integers(1 << 32, (1 << 33) - 1), min_size=1, max_size=12))
def test_a_split_adds_up_and_is_fair_to_less_than_one(total: int, weights: list[int]) -> None:
    parts = funnel.split(total, weights)
    assert sum(parts) == total
    assert parts == naive.split(total, [Fraction(weight, 1 << 32) for weight in weights])
    assert all(abs(part - total * weight / sum(weights)) < 1.001 for part, weight in zip(parts, weights, strict=True))
