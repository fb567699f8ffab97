"""Which dialect is spoken at which address, and the one way to read any of them."""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from handbill.events.dialects import own, posthog, posthog_v1, segment
from handbill.events.dialects.canon import Dialect, Moment, Opened, Parsed, Terms
from handbill.events.dialects.unpack import Steps, finish
from handbill.kit.fast import FastRequest


class Reader(msgspec.Struct, frozen=True):
    """How requests of one dialect are read, step by step; each step is cheap as long as the one before it is not done.

    `key_of` returns None where the key can only be in the body, and an empty text where there is none at all.
    """

    key_of: Callable[[FastRequest], str | None]
    body_of: Callable[[FastRequest, int], Steps[bytes]]
    open: Callable[[FastRequest, bytes, Moment], Opened]


READERS: dict[Dialect, Reader] = {
    Dialect.OWN: Reader(own.key_of, own.body_of, own.open_own),
    Dialect.POSTHOG: Reader(posthog.key_of, posthog.body_of, posthog.open_posthog),
    Dialect.POSTHOG_V1: Reader(posthog_v1.key_of, posthog_v1.body_of, posthog_v1.open_posthog_v1),
    Dialect.SEGMENT: Reader(segment.key_of, segment.body_of, segment.open_segment),
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


def open_request(dialect: Dialect, request: FastRequest, moment: Moment) -> Opened:
    """All of a request but its events. Raises Invalid, TooLarge or Unsupported when nothing of it can be read."""
    reader = READERS[dialect]
    return reader.open(request, finish(reader.body_of(request, sys.maxsize)), moment)


def parse(dialect: Dialect, request: FastRequest, moment: Moment, terms: Terms) -> Parsed:
    """Every step at once, for callers who have the tenant beforehand. Raises Invalid, TooLarge or Unsupported."""
    return open_request(dialect, request, moment).capture(terms)
