"""A day of a campaign, drawn: spend around its budget, then a funnel down to purchases. Whole numbers throughout.

Draws in this order: spend, impressions, link clicks, content views, carts, checkouts, purchases, order value.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from decimal import Decimal

from handbill.adstats import rounding
from handbill.adstats.draws import FULL, Draws, seed

FIGURES = (
    "spend", "impressions", "link_clicks", "content_views", "add_to_cart", "checkout_initiated", "purchases",
    "purchase_value",
)  # fmt: skip
"""The eight figures that add up, in the order in which they travel; spend and purchase value in smallest units."""

LIFETIME_DAYS = 30
_RATES = ((20, 1000), (70, 100), (12, 100), (50, 100), (40, 100))
"""Clicks of impressions, views of clicks, carts of views, checkouts of carts, purchases of checkouts."""


def daily_budget(budget: Decimal, kind: str, currency: str) -> Decimal:
    """A lifetime budget is spread over thirty days."""
    return budget if kind == "DAILY" else budget / LIFETIME_DAYS


def drawn(seller: str, entity: str, day: date, budget: Decimal, currency: str) -> list[int]:
    """The eight figures of one campaign and day; `budget` is what it may spend that day."""
    draws = Draws(seed(seller, entity, day))
    spend = _spend(budget, currency, draws.next())
    # 8.50 for a thousand impressions: spend / 8.50 * 1000, with the currency's places taken out of the spend again
    unit = 10 ** rounding.places(currency)
    found = [spend, _noisy(spend * 100_000, 850 * unit, draws.next())]
    for part, whole in _RATES:
        found.append(_noisy(found[-1] * part, whole, draws.next()))
    order = 35 * FULL + 115 * draws.next()
    found.append(rounding.half_up(found[-1] * order * unit, FULL))
    return found


def _spend(budget: Decimal, currency: str, draw: int) -> int:
    """85 % to 115 % of the budget, in smallest units."""
    top, bottom = budget.scaleb(rounding.places(currency)).as_integer_ratio()
    return rounding.half_up(top * (85 * FULL + 30 * draw), bottom * 100 * FULL)


def _noisy(part: int, whole: int, draw: int) -> int:
    """part / whole, times 90 % to 110 %, to the nearest whole number."""
    return rounding.half_up(part * (90 * FULL + 20 * draw), whole * 100 * FULL)


def weight(seller: str, entity: str, day: date) -> int:
    """A child's weight among its siblings: between one and two, from the first draw of its own."""
    return FULL + Draws(seed(seller, entity, day)).next()


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Parts of a total by weight that add up to it: whole shares first, the rest to the largest remainders.

    Of equal remainders the earlier one is served first.
    """
    whole = sum(weights)
    if not whole:
        return [0 for _ in weights]
    shares = [total * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda at: (-(total * weights[at] % whole), at))
    for at in order[: total - sum(shares)]:
        shares[at] += 1
    return shares
