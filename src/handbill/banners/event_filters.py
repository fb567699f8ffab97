"""Which banner events of the event store a question is about: conditions of our own words, values bound."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from handbill.banners.dimensions import PAGE_LENGTH, country_form, device_form, page_form
from handbill.banners.tally import APART, BUCKET_MS

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
COLUMNS = {
    "banner": "e.banner_id",
    "placement": "e.placement_id",
    "campaign": "e.campaign_id",
    "variant": "JSONExtractString(e.properties, 'variant')",
    "country": "toString(e.country)",
    "device": "lowerUTF8(toString(e.device_type))",
    "page": f"substringUTF8(splitByChar('?', splitByChar('#', e.url)[1])[1], 1, {PAGE_LENGTH})",
}


class Chosen(msgspec.Struct, frozen=True):
    """Numbers of banners, placements and campaigns (None: all of them), and values of the other dimensions, in the
    spelling of `dimensions` (empty: all of them)."""

    banners: list[int] | None = None
    placements: list[int] | None = None
    campaigns: list[int] | None = None
    variants: tuple[str, ...] = ()
    countries: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    pages: tuple[str, ...] = ()

    @property
    def numbers(self) -> tuple[list[int] | None, list[int] | None, list[int] | None]:
        return self.banners, self.placements, self.campaigns

    @property
    def by_value(self) -> bool:
        return bool(self.variants or self.countries or self.devices or self.pages)

    def by_number_only(self) -> Chosen:
        return Chosen(*self.numbers)


def spelled(
    numbers: Sequence[list[int] | None],
    variants: tuple[str, ...],
    countries: tuple[str, ...],
    devices: tuple[str, ...],
    pages: tuple[str, ...],
) -> Chosen:
    """The filters as a caller wrote them, in the one spelling that events are compared by."""
    banners, placements, campaigns = numbers
    return Chosen(
        banners,
        placements,
        campaigns,
        variants,
        tuple(map(country_form, countries)),
        tuple(map(device_form, devices)),
        tuple(map(page_form, pages)),
    )


def condition(chosen: Chosen) -> tuple[str, dict[str, Any]]:
    """The condition, and the parameters that it names."""
    numbers = dict(zip(("banner", "placement", "campaign"), chosen.numbers, strict=True))
    values = {
        "variant": chosen.variants,
        "country": chosen.countries,
        "device": chosen.devices,
        "page": chosen.pages,
    }
    parts: list[str] = []
    params: dict[str, Any] = {}
    for name, wanted in numbers.items():
        if wanted is not None:
            parts.append(f"has({{{name}_in:Array(UInt32)}}, {COLUMNS[name]})")
            params[f"{name}_in"] = wanted
    for name, texts in values.items():
        if texts:
            parts.append(f"has({{{name}_in:Array(String)}}, {COLUMNS[name]})")
            params[f"{name}_in"] = list(texts)
    return " and ".join(parts) or "1", params


def scope(tenant: int, start: datetime, end: datetime) -> dict[str, Any]:
    """Parameters that every statement has. A bucket belongs to the range in which it begins, as in the counters."""
    return {"tenant": tenant, "start": _bucket_from(start), "end": _bucket_from(end), "apart": sorted(APART)}


def _bucket_from(when: datetime) -> int:
    """The beginning, in milliseconds, of the first bucket that does not begin earlier."""
    return -((_EPOCH - when) // timedelta(milliseconds=BUCKET_MS)) * BUCKET_MS
