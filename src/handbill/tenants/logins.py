"""Limits on failed logins: per client address, and per client address and e-mail address.

No limit counts an e-mail address alone: anybody could then keep its owner out. A browser that logged in before carries
a token for its e-mail address and has a limit of its own, so that nobody on the same network, or behind the same
proxy, can keep it out either.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import secrets
from typing import Any, Protocol

import msgspec

from handbill.infra.redis.keys import Keys
from handbill.kit.errors import Busy, Throttled
from handbill.kit.telemetry import metrics

FAILURES_PER_ADDRESS = 100
FAILURES_PER_PAIR = 10
"""Of one client address with one e-mail address, and of one browser that logged in before."""
WINDOW_S = 900
BROWSER_TOKEN_DAYS = 180
_NONCE = 16
_TOKEN = _NONCE + hashlib.sha256().digest_size
_TOKEN_TEXT = len(base64.urlsafe_b64encode(bytes(_TOKEN)))


class Counting(Protocol):
    """The part of Redis that counts failed logins."""

    async def many(self, commands: Any) -> list[Any]: ...


class Attempt(msgspec.Struct, frozen=True):
    """One try to log in, counted as failed until it succeeds."""

    shared: tuple[str, ...]
    """Counters that count others' tries as well."""
    own: str
    known_browser: bool


class LoginLimits:
    """Counts tries in Redis, in windows of fifteen minutes. While Redis is away nobody is refused; that is metered."""

    def __init__(self, redis: Counting, redis_keys: Keys, secret: bytes) -> None:
        self._redis = redis
        self._redis_keys = redis_keys
        self._secret = hashlib.sha256(b"handbill-browser\0" + secret).digest()

    async def begin(self, email: str, address: str, browser: str | None = None) -> Attempt:
        """Counts a try before the password is checked, so that tries in parallel count too."""
        email = email.lower()
        known = browser is not None and self._is_token(browser, email)
        if known:
            limits = [(self._counter("browser", browser or ""), FAILURES_PER_PAIR)]
        else:
            networks = _networks(address)
            limits = [(self._counter("address", one), FAILURES_PER_ADDRESS * times) for one, times in networks]
            limits += [(self._counter("pair", one, email), FAILURES_PER_PAIR * times) for one, times in networks]
        for counter, allowed in limits:
            await self._count(counter, allowed)
        counters = [counter for counter, _ in limits]
        return Attempt(tuple(counters[:-1]), counters[-1], known_browser=known)

    async def succeed(self, attempt: Attempt) -> None:
        """A good login is no failure: it leaves the shared counts and ends its own."""
        commands: list[tuple[Any, ...]] = [("DEL", attempt.own)]
        for counter in attempt.shared:
            commands += [("SET", counter, 0, "EX", WINDOW_S, "NX"), ("DECR", counter)]
        try:
            await self._redis.many(commands)
        except Busy:
            metrics.TENANTS_LIMIT_OPEN.inc()

    def browser_token(self, email: str) -> str:
        """For a browser whose login succeeded: proves on its next login that it knows this e-mail address."""
        nonce = secrets.token_bytes(_NONCE)
        return base64.urlsafe_b64encode(nonce + self._mark(nonce, email.lower())).decode()

    async def _count(self, counter: str, allowed: int) -> None:
        try:
            _, tries, seconds = await self._redis.many(
                [("SET", counter, 0, "EX", WINDOW_S, "NX"), ("INCR", counter), ("TTL", counter)]
            )
        except Busy:
            metrics.TENANTS_LIMIT_OPEN.inc()
            return
        if int(tries) > allowed:
            metrics.TENANTS_LOGINS.labels("throttled").inc()
            raise Throttled(
                "Too many failed logins from here; wait before the next try.",
                code="LOGIN_THROTTLED",
                retry_after=max(1, int(seconds)),
            )

    def _counter(self, kind: str, *parts: str) -> str:
        """No address is readable in Redis."""
        digest = hmac.new(self._secret, "\0".join(parts).encode(), hashlib.sha256).hexdigest()
        return self._redis_keys.plain("login", kind, digest[:32])

    def _is_token(self, token: str, email: str) -> bool:
        if len(token) != _TOKEN_TEXT or not token.isascii():
            return False
        try:
            raw = base64.urlsafe_b64decode(token)
        except (ValueError, binascii.Error):
            return False
        return hmac.compare_digest(raw[_NONCE:], self._mark(raw[:_NONCE], email))

    def _mark(self, nonce: bytes, email: str) -> bytes:
        return hmac.new(self._secret, nonce + email.encode(), hashlib.sha256).digest()


def _networks(address: str) -> list[tuple[str, int]]:
    """What counts as one client, widest first, and how many times the usual number of failures it may have.

    An IPv6 client has a whole /64, and many have a /48: the wider one is limited too, to ten times as much.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return [(address, 1)]
    if isinstance(parsed, ipaddress.IPv4Address):
        return [(str(parsed), 1)]
    if parsed.ipv4_mapped is not None:
        return [(str(parsed.ipv4_mapped), 1)]
    return [(str(ipaddress.ip_network((parsed, bits), strict=False)), times) for bits, times in ((48, 10), (64, 1))]
