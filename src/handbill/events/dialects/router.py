"""Which dialect is spoken at which address, and the one way to read any of them."""

from __future__ import annotations

from collections.abc import Callable

from handbill.events.dialects import own, posthog, posthog_v1, segment
from handbill.events.dialects.canon import Dialect, Moment, Opened, Parsed, Terms
from handbill.kit.fast import FastRequest

Open = Callable[[FastRequest, Moment], Opened]

OPENERS: dict[Dialect, Open] = {
    Dialect.OWN: own.open_own,
    Dialect.POSTHOG: posthog.open_posthog,
    Dialect.POSTHOG_V1: posthog_v1.open_posthog_v1,
    Dialect.SEGMENT: segment.open_segment,
}
BODY_BYTES: dict[Dialect, int] = {
    Dialect.OWN: own.BODY_BYTES,
    Dialect.POSTHOG: posthog.BODY_BYTES,
    Dialect.POSTHOG_V1: posthog_v1.BODY_BYTES,
    Dialect.SEGMENT: segment.BODY_BYTES,
}
ROUTES: dict[tuple[str, str], Dialect] = {
    ("POST", own.PATH): Dialect.OWN,
    **{(method, path): Dialect.POSTHOG for path in posthog.PATHS for method in posthog.METHODS},
    ("POST", posthog_v1.PATH): Dialect.POSTHOG_V1,
    **{("POST", path): Dialect.SEGMENT for path in segment.PATHS},
}
"""Every method and path at which clients send events; all of them answer browsers of other sites."""


def parse(dialect: Dialect, request: FastRequest, moment: Moment, terms: Terms) -> Parsed:
    """Both steps at once, for callers who know the tenant beforehand. Raises Invalid, TooLarge or Unsupported."""
    return OPENERS[dialect](request, moment).capture(terms)
