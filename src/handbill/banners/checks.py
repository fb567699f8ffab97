"""What can be wrong with a banner, a campaign or a placement, beyond its types: every fault at once, purely."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from urllib.parse import urlsplit

from msgspec import UNSET, UnsetType

from handbill.banners.model import Banner, BannerPatch, CapRule, NewBanner
from handbill.banners.targeting.reader import faults_of
from handbill.kit.errors import Fault, Invalid
from handbill.kit.moments import moment_faults

_URLS = ("image_url", "cta_link", "asset_url")
_NO_ADDRESS = "must be an http or https address, or a path that begins with /"


def refuse(faults: list[Fault]) -> None:
    if faults:
        raise Invalid("Nothing was changed: " + "; ".join(f"{f.field} {f.reason}" for f in faults), faults=faults)


def window_faults(start: datetime | None, end: datetime | None, names: tuple[str, str]) -> list[Fault]:
    faults = moment_faults(names[0], start) + moment_faults(names[1], end)
    if not faults and start is not None and end is not None and start >= end:
        return [Fault(names[1], f"must be later than {names[0]}")]
    return faults


def banner_faults(banner: Banner) -> list[Fault]:
    faults = window_faults(banner.publish_at, banner.expires_at, ("publish_at", "expires_at"))
    for name in _URLS:
        value = getattr(banner, name)
        if value is not None and not is_web_address(value):
            faults.append(Fault(name, _NO_ADDRESS))
    if banner.targeting is not None:
        faults += faults_of(banner.targeting, "targeting")
    return faults + cap_faults(banner.caps) + _variant_faults(banner)


def cap_faults(rules: Sequence[CapRule]) -> list[Fault]:
    faults = []
    for place, rule in enumerate(rules):
        if rule.per == "window" and rule.y_hours is None:
            faults.append(Fault(f"caps[{place}].y_hours", "is required for a window"))
        elif rule.per != "window" and rule.y_hours is not None:
            faults.append(Fault(f"caps[{place}].y_hours", f"means nothing in a limit per {rule.per}"))
    return faults


def ranking_faults(ranking: Sequence[str]) -> list[Fault]:
    twice = sorted({name for name in ranking if ranking.count(name) > 1})
    return [Fault("ranking", f"names {name} twice") for name in twice]


def _variant_faults(banner: Banner) -> list[Fault]:
    faults = []
    seen: set[str] = set()
    for place, variant in enumerate(banner.variants):
        if variant.key in seen:
            faults.append(Fault(f"variants[{place}].key", "is another variant's too"))
        seen.add(variant.key)
        for name in _URLS:
            value = getattr(variant, name)
            if value is not None and not is_web_address(value):
                faults.append(Fault(f"variants[{place}].{name}", _NO_ADDRESS))
    return faults


def limits_raised(before: Banner, after: Banner) -> bool:
    """Views from before the change may be needed now and unknown to Redis, which keeps no more than the limits ask."""
    if after.x_times > before.x_times or after.y_hours > before.y_hours:
        return True
    moved = (before.campaign_id, before.cap_by) != (after.campaign_id, after.cap_by)
    return moved or caps_raised(before.caps, after.caps)


def caps_raised(before: Sequence[CapRule], after: Sequence[CapRule]) -> bool:
    """Any rule that was not there before asks for views that nobody may have kept."""
    return any(rule not in before for rule in after)


def is_web_address(value: str) -> bool:
    """Where a browser may be sent: http(s) with a host, or a path on the same site; never javascript: or //host."""
    if any(character <= " " or character == "\\" for character in value):
        return False
    if value.startswith("/"):
        return not value.startswith("//")
    try:
        parts = urlsplit(value)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and port_ok


def window_of(new: NewBanner | BannerPatch) -> tuple[datetime | UnsetType | None, datetime | UnsetType | None]:
    """The window by either pair of names; both names with different times is a fault, not a guess."""
    faults: list[Fault] = []
    chosen: list[datetime | UnsetType | None] = []
    for one, other in (("publish_at", "start_date"), ("expires_at", "end_date")):
        first, second = getattr(new, one), getattr(new, other)
        blank = (UNSET, None) if isinstance(new, NewBanner) else (UNSET,)
        if first in blank:
            chosen.append(second)
        elif second in blank or second == first:
            chosen.append(first)
        else:
            faults.append(Fault(other, f"is the same time as {one}: send one of them, or both alike"))
            chosen.append(first)
    refuse(faults)
    return chosen[0], chosen[1]
