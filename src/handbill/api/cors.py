"""CORS for the routes that browsers on other sites may call: those that take a publishable key, or none."""

from __future__ import annotations

from collections.abc import Iterable

_ALLOWED_HEADERS = (
    b"authorization, content-type, content-encoding, x-write-key, x-api-key, x-request-id, "
    b"posthog-sdk-info, posthog-attempt, posthog-request-id, posthog-request-timestamp, "
    b"x-retry-count, anonymousid, sentat, "  # Segment's when it repeats a request; RudderStack's, and when it does
    b"rsa-recovered, rsa-retry-attempt, rsa-retry-reason, rsa-since-first-attempt, rsa-since-last-attempt"
)
_METHODS = b"GET, POST, OPTIONS"


class Cors:
    """No credentials are ever allowed across sites: a cookie of ours means nothing on these routes."""

    def __init__(self, origins: Iterable[str]) -> None:
        self._origins = frozenset(origin.rstrip("/").encode() for origin in origins)

    def headers(self, origin: bytes | None) -> list[tuple[bytes, bytes]]:
        if origin is None:
            return []
        if b"*" in self._origins:
            return [
                (b"access-control-allow-origin", b"*"),
                (b"access-control-expose-headers", b"x-request-id, retry-after"),
            ]
        if origin in self._origins:
            return [
                (b"access-control-allow-origin", origin),
                (b"access-control-expose-headers", b"x-request-id, retry-after"),
                (b"vary", b"origin"),
            ]
        return []

    def preflight(self, origin: bytes | None) -> list[tuple[bytes, bytes]]:
        allowed = self.headers(origin)
        if not allowed:
            return []
        return [
            *allowed,
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", _ALLOWED_HEADERS),
            (b"access-control-max-age", b"86400"),
        ]
