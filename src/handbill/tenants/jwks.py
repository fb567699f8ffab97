"""Key sets fetched from a tenant's URL: kept ten minutes, fetched anew for an unseen key, stale rather than none."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import msgspec

from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Invalid
from handbill.kit.telemetry import metrics
from handbill.kit.untrusted_json import UNREADABLE

FRESH_S = 600.0
AGAIN_S = 60.0
MOST = 1_000


class Fetch(Protocol):
    async def get(self, url: str) -> bytes: ...


class _Known(msgspec.Struct):
    keys: dict[str, Any]
    fetched_at: float
    tried_at: float


class KeySets:
    """The key sets of all tenants that name a URL, by URL."""

    def __init__(self, fetch: Fetch, clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._locks: dict[str, asyncio.Lock] = {}

    async def get(self, url: str, kid: str | None) -> dict[str, Any]:
        known = self._known.get(url)
        if known is not None and not self._due(known, kid):
            return known.keys
        lock = self._locks.setdefault(url, asyncio.Lock())
        async with lock:
            known = self._known.get(url)
            if known is not None and not self._due(known, kid):
                return known.keys
            return await self._refresh(url, known)

    def _due(self, known: _Known, kid: str | None) -> bool:
        now = self._clock.monotonic()
        if now - known.tried_at < AGAIN_S:
            return False
        unseen = kid is not None and all(entry.get("kid") != kid for entry in known.keys["keys"])
        return unseen or now - known.fetched_at >= FRESH_S

    async def _refresh(self, url: str, known: _Known | None) -> dict[str, Any]:
        now = self._clock.monotonic()
        try:
            keys = parse(await self._fetch.get(url))
        except (Busy, Invalid) as error:
            metrics.TENANTS_JWKS_FETCHES.labels("failed").inc()
            if known is None:
                raise Busy(
                    f"The tenant's key set could not be fetched: {error.detail}", code="OUTGOING_FAILED", retry_after=60
                ) from None
            known.tried_at = now  # fails open on purpose: a key set that was good stays good while its host is away
            return known.keys
        metrics.TENANTS_JWKS_FETCHES.labels("fetched").inc()
        if len(self._known) >= MOST and url not in self._known:
            oldest = min(self._known, key=lambda name: self._known[name].fetched_at)
            del self._known[oldest]
            self._locks.pop(oldest, None)
        self._known[url] = _Known(keys, now, now)
        return keys


def parse(body: bytes) -> dict[str, Any]:
    """A key set as it must look: an object with a list of at most a hundred objects under `keys`."""
    try:
        keys = msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE:
        raise Invalid("The key set is not a JSON object.") from None
    check(keys)
    return keys


def check(keys: dict[str, Any]) -> None:
    """Refuses anything but public keys: a secret that is published is no secret."""
    entries = keys.get("keys")
    if not isinstance(entries, list) or len(entries) > 100 or not all(isinstance(entry, dict) for entry in entries):
        raise Invalid("The key set must hold a list of at most 100 keys under `keys`.")
    if any(entry.get("kty") == "oct" or "d" in entry for entry in entries):
        raise Invalid("The key set holds a secret key; publish only public keys.")
