"""Key sets fetched from a tenant's URL: kept ten minutes, fetched anew for an unseen key, stale rather than none."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

import jwt as pyjwt
import msgspec
from cryptography.exceptions import UnsupportedAlgorithm

from handbill.infra.safe_http import HttpPolicy, RequestFailed
from handbill.kit.bounds import FAILED_KEY_SETS, KEY_SET_MAX, KEY_SETS
from handbill.kit.caches import LruCache, TtlCache, size_of
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Fault, Invalid
from handbill.kit.telemetry import logs, metrics
from handbill.kit.untrusted_json import UNREADABLE

_log = logs.get("tenants")

PUBLIC_KEY_ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "PS256", "EdDSA")
FRESH_S = 600.0
AGAIN_S = 60.0
FAILED_S = 10.0
"""For so long nobody waits for a URL that has just failed."""

POLICY = HttpPolicy(connections=100, connections_per_host=10)
"""A tenant has one URL, and a URL one fetch at a time: slow hosts of a few tenants leave connections for the others."""


class Fetch(Protocol):
    async def get(self, url: str) -> bytes: ...


class _KeySet(msgspec.Struct):
    keys: dict[str, Any]
    fetched_at: float
    tried_at: float


class KeySets:
    """The key sets of all tenants that name a URL, by URL. Whoever asks while a set is fetched waits for that fetch."""

    def __init__(self, fetch: Fetch, clock: Clock) -> None:
        self._fetch = fetch
        self._clock = clock
        self._cache: LruCache[str, _KeySet] = LruCache(KEY_SETS)
        self._failed: TtlCache[str, str] = TtlCache(FAILED_KEY_SETS, FAILED_S, clock.monotonic)
        self._fetching: dict[str, asyncio.Task[dict[str, Any]]] = {}

    async def get(self, url: str, kid: str | None) -> dict[str, Any]:
        """The keys at this URL. Raises Busy when there are none and the last fetch failed a few seconds ago."""
        cached: _KeySet | None = self._cache.get(url)
        if cached is not None and not self._due(cached, kid):
            return cached.keys
        if cached is None and (reason := self._failed.get(url)) is not None:
            raise _unavailable(reason)
        task = self._fetching.get(url)
        if task is None:
            task = self._fetching[url] = asyncio.create_task(self._refresh(url, cached), name="key-set")
            task.add_done_callback(lambda done: self._end(url, done))
        return await asyncio.shield(task)

    def _due(self, cached: _KeySet, kid: str | None) -> bool:
        now = self._clock.monotonic()
        if now - cached.tried_at < AGAIN_S:
            return False
        unseen = kid is not None and all(entry.get("kid") != kid for entry in cached.keys["keys"])
        return unseen or now - cached.fetched_at >= FRESH_S

    async def _refresh(self, url: str, cached: _KeySet | None) -> dict[str, Any]:
        now = self._clock.monotonic()
        try:
            keys = parse(await self._fetch.get(url))
        except (Busy, Invalid) as error:
            metrics.TENANTS_JWKS_FETCHES.labels("failed").inc()
            reason = error.reason if isinstance(error, RequestFailed) else error.detail
            _log.info("tenants.key_set_not_fetched", url=url.partition("?")[0][:200], reason=reason)
            if cached is None:
                self._failed[url] = error.detail
                raise _unavailable(error.detail) from None
            cached.tried_at = now  # fails open on purpose: a key set that was good stays good while its host is away
            return cached.keys
        metrics.TENANTS_JWKS_FETCHES.labels("fetched").inc()
        self._cache[url] = _KeySet(keys, now, now)
        return keys

    def _end(self, url: str, task: asyncio.Task[dict[str, Any]]) -> None:
        del self._fetching[url]
        if not task.cancelled():
            task.exception()  # read, even if everyone who waited has left


def _unavailable(reason: str) -> Busy:
    return Busy(f"The tenant's key set could not be fetched: {reason}", code="OUTGOING_FAILED", retry_after=60)


class UnusableKey(ValueError):
    """A key that no signature can be verified with: which member is wrong, and why."""

    def __init__(self, member: str, reason: str) -> None:
        super().__init__(reason)
        self.member = member
        self.reason = reason


def load_key(entry: dict[str, Any]) -> pyjwt.PyJWK:
    """The key of one entry. Raises UnusableKey unless it is a public key of an algorithm that we verify with."""
    algorithm = entry.get("alg")
    if algorithm is not None and algorithm not in PUBLIC_KEY_ALGORITHMS:
        raise UnusableKey("alg", f"must be one of {', '.join(PUBLIC_KEY_ALGORITHMS)}")
    try:
        key = pyjwt.PyJWK(entry)
    except (pyjwt.PyJWTError, UnsupportedAlgorithm, NotImplementedError, ArithmeticError, TypeError, ValueError):
        # what PyJWT and cryptography raise for members of any kind; NotImplementedError is its answer to `alg: none`
        raise UnusableKey("", "is not a public key that can be read") from None
    if key.algorithm_name not in PUBLIC_KEY_ALGORITHMS:
        raise UnusableKey("crv", f"must be a curve of {', '.join(PUBLIC_KEY_ALGORITHMS)}")
    return key


def is_for_signatures(entry: dict[str, Any]) -> bool:
    """Keys for encryption may be in a set; they are never looked at."""
    return bool(entry.get("use", "sig") == "sig")


def parse(body: bytes) -> dict[str, Any]:
    """A fetched key set, without the keys that cannot be used. Raises Invalid if it is no key set or holds a secret."""
    try:
        keys = msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE:
        raise Invalid("The key set is not a JSON object.") from None
    entries = _entries(keys)
    if size_of(entries) > KEY_SET_MAX:
        raise Invalid(f"The key set takes more than {KEY_SET_MAX} bytes of memory.")
    return {"keys": [entry for entry in entries if is_for_signatures(entry) and _is_usable(entry)]}


def check(keys: dict[str, Any], field: str) -> None:
    """Raises Invalid, naming each wrong member below `field`, unless every key for signatures can be used."""
    faults = []
    for number, entry in enumerate(_entries(keys)):
        try:
            if is_for_signatures(entry):
                load_key(entry)
        except UnusableKey as error:
            faults.append(Fault(f"{field}.keys.{number}.{error.member}".rstrip("."), error.reason))
    if faults:
        raise Invalid("The key set holds a key that cannot be used; nothing was changed.", faults=faults)


def _is_usable(entry: dict[str, Any]) -> bool:
    try:
        load_key(entry)
    except UnusableKey as error:
        _log.info("tenants.key_ignored", kid=str(entry.get("kid"))[:100], member=error.member, reason=error.reason)
        return False
    return True


def _entries(keys: dict[str, Any]) -> list[dict[str, Any]]:
    """A list of at most a hundred objects, none of them a secret: a secret that is published is none."""
    entries = keys.get("keys")
    if not isinstance(entries, list) or len(entries) > 100 or not all(isinstance(entry, dict) for entry in entries):
        raise Invalid("The key set must hold a list of at most 100 keys under `keys`.")
    if any(entry.get("kty") == "oct" or "d" in entry for entry in entries):
        raise Invalid("The key set holds a secret key; publish only public keys.")
    return entries
