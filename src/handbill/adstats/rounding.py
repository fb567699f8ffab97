"""Rounding half up, in whole numbers, and how many places a currency's money has."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

PLACES = 6
"""Of a ratio, in Python as in `adstats.ratio`."""

_SIX = Decimal(1).scaleb(-PLACES)
_NO_CENTS = frozenset(
    ("BIF", "CLP", "DJF", "GNF", "ISK", "JPY", "KMF", "KRW", "PYG", "RWF", "UGX", "UYI", "VND", "VUV", "XAF", "XOF")
) | {"XPF"}
_THREE = frozenset(("BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"))


def half_up(part: int, whole: int) -> int:
    """part / whole to the nearest whole number, a half upwards; both not below 0."""
    return (2 * part + whole) // (2 * whole)


def places(currency: str) -> int:
    """Decimal places of the currency's smallest unit: none for the yen, three for the dinar, else two."""
    return 0 if currency in _NO_CENTS else 3 if currency in _THREE else 2


def minor(amount: Decimal, currency: str) -> int:
    """An amount in the currency's smallest units, half up."""
    return int(amount.scaleb(places(currency)).quantize(Decimal(1), ROUND_HALF_UP))


def major(units: int, currency: str) -> Decimal:
    return Decimal(units).scaleb(-places(currency))


def ratio(part: Decimal | int, whole: Decimal | int) -> Decimal:
    """Six places, half up; nothing by nothing is nothing."""
    if not whole:
        return Decimal(0)
    return (Decimal(part) / Decimal(whole)).quantize(_SIX, ROUND_HALF_UP)
