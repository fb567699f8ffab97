"""What can be wrong with a banner, a campaign or a placement, beyond its types: every fault at once, purely."""

from __future__ import annotations

from datetime import datetime
from urllib.parse import urlsplit

from msgspec import UNSET, UnsetType

from handbill.banners.model import Banner, BannerPatch, NewBanner
from handbill.kit.errors import Fault, Invalid

_URLS = ("image_url", "cta_link", "asset_url")


def refuse(faults: list[Fault]) -> None:
    if faults:
        raise Invalid("Nothing was changed: " + "; ".join(f"{f.field} {f.reason}" for f in faults), faults=faults)


def window_faults(start: datetime | None, end: datetime | None, names: tuple[str, str]) -> list[Fault]:
    if start is not None and end is not None and start >= end:
        return [Fault(names[1], f"must be later than {names[0]}")]
    return []


def banner_faults(banner: Banner) -> list[Fault]:
    faults = window_faults(banner.publish_at, banner.expires_at, ("publish_at", "expires_at"))
    for name in _URLS:
        value = getattr(banner, name)
        if value is not None and not is_web_address(value):
            faults.append(Fault(name, "must be an http or https address, or a path that begins with /"))
    return faults


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
