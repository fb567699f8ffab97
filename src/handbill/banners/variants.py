"""A/B tests: which face of a banner a user gets, the same one every time, and who is held out of it."""

from __future__ import annotations

from collections.abc import Sequence

from handbill.banners.model import Banner, Variant
from handbill.banners.shares import share


def held_out(banner: Banner, who: str) -> bool:
    """In the group that never sees this banner, so that its effect can be told from chance."""
    if not banner.holdout_percent:
        return False
    return share(b"holdout:" + banner.public_id.bytes, who) < banner.holdout_percent / 100


def variant_of(banner: Banner, who: str) -> int:
    """The number of this user's variant, by weights; the draw is the banner's own."""
    point = share(b"variant:" + banner.public_id.bytes, who) * sum(variant.weight for variant in banner.variants)
    for number, variant in enumerate(banner.variants):
        point -= variant.weight
        if point < 0:
            return number
    return len(banner.variants) - 1


def face(banner: Banner, variant: Variant | None) -> dict[str, str | None]:
    """What is shown: the variant's own words, else the banner's."""
    names = ("title", "description", "image_url", "cta_link", "asset_url")
    own = {name: getattr(variant, name) for name in names} if variant is not None else {}
    return {name: own.get(name) or getattr(banner, name) for name in names}


def by_key(variants: Sequence[Variant], key: str | None) -> Variant | None:
    return next((variant for variant in variants if variant.key == key), None)
