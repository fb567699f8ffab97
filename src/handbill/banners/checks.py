"""What can be wrong with a banner, a campaign or a placement, beyond its types: every fault at once, purely."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import urlsplit

from msgspec import UNSET

from handbill.banners.model import (
    Banner,
    BannerPatch,
    CampaignPatch,
    CapRule,
    DecidingPatch,
    NewBanner,
    PlacementPatch,
)
from handbill.banners.targeting.reader import faults_of
from handbill.banners.windows import SentWindow, window_in
from handbill.kit.errors import Fault, Invalid

_URLS = ("image_url", "cta_link", "asset_url")
_NO_ADDRESS = "must be an http or https address, or a path that begins with /"


def refuse(faults: list[Fault]) -> None:
    if faults:
        raise Invalid("Nothing was changed: " + "; ".join(f"{f.field} {f.reason}" for f in faults), faults=faults)


def banner_faults(banner: Banner) -> list[Fault]:
    """All but those of its window, whose names the caller chose."""
    faults = []
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


def window_of(new: NewBanner | BannerPatch) -> SentWindow:
    """The window as it was sent. In a new banner null is the same as nothing."""
    blank = (UNSET, None) if isinstance(new, NewBanner) else (UNSET,)
    names = ("publish_at", "start_date", "expires_at", "end_date")
    return window_in({name: value for name in names if (value := getattr(new, name)) not in blank})


@contextmanager
def noted(faults: list[Fault]) -> Iterator[None]:
    """What is refused inside is added to the other faults."""
    try:
        yield
    except Invalid as error:
        faults += error.faults


def sent_fields(patch: PlacementPatch | CampaignPatch | BannerPatch | DecidingPatch) -> dict[str, object]:
    """The fields the caller sent, null included."""
    return {name: value for name in patch.__struct_fields__ if (value := getattr(patch, name)) is not UNSET}
