"""The directory: who stands behind a key, a session or a user's token, answered from memory on the hot path.

An answer is trusted for a few seconds and forgotten at once when its tenant tells of a change. While PostgreSQL is away
the last good answer is used for ten minutes more (failing open, metered): a key cannot be revoked while its table is
away, and tracking must go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec

from handbill.infra.postgres import Database
from handbill.kit.bounds import CREDENTIALS, UNKNOWN_CREDENTIALS
from handbill.kit.caches import LruCache
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Forbidden, Unauthorized
from handbill.kit.telemetry import logs, metrics
from handbill.tenants import jwt, keys, store
from handbill.tenants.jwks import KeySets
from handbill.tenants.model import ROLE_SCOPES, WRITE_KEY_SCOPES, Principal, Tenant, TenantSettings
from handbill.tenants.seals import Sealer

FRESH_S = 5.0
UNKNOWN_S = 1.0
STALE_S = 600.0
ASK_AGAIN_S = 2.0
"""While PostgreSQL is away, one request in so many seconds finds out whether it is back."""

log = logs.get("tenants")
T = TypeVar("T")
_MEMORY = {
    prefix[:3]: metrics.TENANTS_LOOKUPS.labels(prefix[:3], "memory")
    for prefix in (keys.WRITE, keys.SECRET, keys.SESSION)
}
"""Bound once: looking a label up costs more than the answer from memory."""


class Profile(msgspec.Struct, frozen=True):
    """A tenant with its settings and its opened secret, for the rooms that ask on every request."""

    tenant: Tenant
    settings: TenantSettings
    jwt_secret: bytes | None


class _Found(msgspec.Struct, frozen=True):
    """A remembered answer. `tenant_id` 0 = nobody."""

    tenant_id: int
    principal: Principal | None
    suspended: bool
    fresh_until: float
    stale_until: float


class Directory:
    def __init__(
        self, database: Database, sealer: Sealer, keysets: KeySets, clock: Clock, *, fresh_s: float = FRESH_S
    ) -> None:
        self._database = database
        self._sealer = sealer
        self._keysets = keysets
        self._clock = clock
        self._fresh_s = fresh_s
        self._found: LruCache[bytes, _Found] = LruCache(CREDENTIALS, _entry_bytes)
        self._unknown: LruCache[bytes, _Found] = LruCache(UNKNOWN_CREDENTIALS, _entry_bytes)
        """Apart from the others, so that keys that somebody makes up push no real one out."""
        self._profiles: dict[int, tuple[Profile, float]] = {}
        self._flights: dict[bytes, asyncio.Future[_Found]] = {}
        self._generation = 0
        self._away = False  # PostgreSQL did not answer the last question
        self._ask_again = 0.0
        self._tokens = jwt.Memory(clock)

    # --- the questions

    async def write_key(self, key: str) -> Principal | None:
        """The tenant behind a publishable key; None for anything else."""
        return await self._ask(keys.WRITE, key, self._load_key)

    async def secret_key(self, key: str) -> Principal | None:
        return await self._ask(keys.SECRET, key, self._load_key)

    async def session(self, token: str) -> Principal | None:
        return await self._ask(keys.SESSION, token, self._load_session)

    async def profile(self, tenant_id: int) -> Profile:
        """The tenant and its settings, a few seconds old at most."""
        now = self._clock.monotonic()
        known = self._profiles.get(tenant_id)
        if known is not None and now < known[1]:
            return known[0]
        stale = known is not None and now < known[1] + STALE_S
        if known is not None and stale and self._away and now < self._ask_again:
            metrics.TENANTS_LOOKUPS.labels("profile", "stale").inc()
            return known[0]
        generation = self._generation
        try:
            loaded = await self._heard(self._load_profile(tenant_id))
        except Busy:
            self._ask_again = now + ASK_AGAIN_S
            if known is None or not stale:
                raise
            metrics.TENANTS_LOOKUPS.labels("profile", "stale").inc()
            return known[0]
        if generation == self._generation:
            self._profiles[tenant_id] = (loaded, now + self._fresh_s)
        return loaded

    async def user_token(self, tenant_id: int, token: str) -> Principal:
        """The tenant's own user behind a JWT. Raises Unauthorized (BAD_TOKEN) when it does not hold."""
        profile = await self.profile(tenant_id)
        _refuse_suspended(profile.tenant.status == "suspended")
        jwt.check_length(token)
        version = profile.settings.version
        verified = self._tokens.find(tenant_id, version, token)
        if verified is None:
            rules = profile.settings.jwt
            keyset = rules.jwks
            if rules.kind == "jwks" and rules.jwks_url is not None:
                keyset = await self._keysets.get(rules.jwks_url, jwt.key_id(token))
            verified = jwt.verify(token, rules, secret=profile.jwt_secret, keys=keyset, clock=self._clock)
            self._tokens.keep(tenant_id, version, token, verified)
        return Principal(
            tenant_id,
            "jwt",
            WRITE_KEY_SCOPES,
            actor="user token",
            subject=verified.subject,
        )

    # --- forgetting

    def forget(self, tenant_id: int | None = None) -> None:
        """Drops what is known of a tenant, and of nobody; of everyone when no tenant is named."""
        self._generation += 1
        self._flights.clear()  # whoever asks from now on asks anew
        if tenant_id is None:
            self._found.clear()
            self._unknown.clear()
            self._profiles.clear()
            return
        self._profiles.pop(tenant_id, None)
        self._unknown.clear()
        self._found.discard(lambda found: found.tenant_id == tenant_id)

    def on_change(self, _: str, message: bytes) -> None:
        """Forget the tenant whose number was published; all after a gap, when something may have been missed."""
        self.forget(int(message) if message.isdigit() else None)

    # --- the answers

    async def _ask(self, prefix: str, key: str, load: Callable[[bytes], Awaitable[_Found]]) -> Principal | None:
        if not key.startswith(prefix) or not keys.well_formed(key):
            return None
        digest = keys.digest(key)
        found: _Found | None = self._found.get(digest) or self._unknown.get(digest)
        if found is None or self._clock.monotonic() >= found.fresh_until:
            found = await self._fresh(digest, prefix, found, load)
        else:
            _MEMORY[prefix[:3]].inc()
        _refuse_suspended(found.suspended)
        return found.principal

    async def _fresh(
        self, digest: bytes, prefix: str, old: _Found | None, load: Callable[[bytes], Awaitable[_Found]]
    ) -> _Found:
        """PostgreSQL's word, or the last good one while it is away. Once it is known to be away nobody waits for it."""
        flight = self._fly(digest, prefix, load)
        good = old is not None and old.principal is not None and self._clock.monotonic() < old.stale_until
        if good and self._away:
            assert old is not None
            metrics.TENANTS_LOOKUPS.labels(prefix[:3], "stale").inc()
            return old
        try:
            return await asyncio.shield(flight)
        except Busy:
            if not good or old is None:
                raise
            metrics.TENANTS_LOOKUPS.labels(prefix[:3], "stale").inc()
            return old

    def _fly(self, digest: bytes, prefix: str, load: Callable[[bytes], Awaitable[_Found]]) -> asyncio.Future[_Found]:
        """One question at a time about one key: whoever asks meanwhile waits for the same answer."""
        flight = self._flights.get(digest)
        if flight is None:
            flight = asyncio.ensure_future(self._load(digest, prefix, load))
            self._flights[digest] = flight
            flight.add_done_callback(lambda done: self._landed(digest, done))
        return flight

    async def _load(self, digest: bytes, prefix: str, load: Callable[[bytes], Awaitable[_Found]]) -> _Found:
        generation = self._generation
        found = await self._heard(load(digest))
        metrics.TENANTS_LOOKUPS.labels(prefix[:3], "postgres").inc()
        if generation == self._generation:  # a change that was told meanwhile makes the answer good for one use only
            self._remember(digest, found)
        return found

    def _remember(self, digest: bytes, found: _Found) -> None:
        here, there = (self._found, self._unknown) if found.principal is not None else (self._unknown, self._found)
        here[digest] = found
        there.pop(digest, None)

    async def _heard(self, question: Awaitable[T]) -> T:
        """Ask PostgreSQL, and remember whether it answered."""
        try:
            answer = await question
        except Busy:
            self._away = True
            raise
        self._away = False
        return answer

    def _landed(self, digest: bytes, flight: asyncio.Future[_Found]) -> None:
        if self._flights.get(digest) is flight:
            del self._flights[digest]
        if not flight.cancelled():
            flight.exception()  # seen, even if everyone who asked has gone

    async def _load_key(self, digest: bytes) -> _Found:
        async with self._database.lookup() as tx:
            hit = await store.find_key(tx, digest)
        if hit is None:
            return self._nobody()
        tenant_id, key_id = hit
        now = self._clock.now()
        async with self._database.tenant(tenant_id) as tx:
            key = await store.read_key(tx, tenant_id, key_id)
            tenant = await store.read_tenant(tx, tenant_id)
            if key is None or tenant is None or not key.usable(now):
                return self._nobody()
            await store.touch_key(tx, tenant_id, key_id, now)
        if key.kind == "write":
            principal = Principal(tenant_id, "write_key", WRITE_KEY_SCOPES, f"key {key.hint}")
        else:
            actor = f"key {key.name} ({key.hint})"
            principal = Principal(tenant_id, "secret_key", frozenset(key.scopes), actor, key_id=key_id)
        lives = self._fresh_s
        if key.expires_at is not None:
            lives = min(lives, (key.expires_at - now).total_seconds())
        return self._somebody(principal, tenant, lives)

    async def _load_session(self, digest: bytes) -> _Found:
        async with self._database.lookup() as tx:
            hit = await store.find_session(tx, digest)
        if hit is None:
            return self._nobody()
        tenant_id, session_id = hit
        async with self._database.tenant(tenant_id) as tx:
            session = await store.read_session(tx, tenant_id, session_id)
            tenant = await store.read_tenant(tx, tenant_id)
        now = self._clock.now()
        if session is None or tenant is None or now >= session.expires_at:
            return self._nobody()
        user = session.user
        principal = Principal(
            tenant_id,
            "session",
            ROLE_SCOPES[user.role],
            f"user {user.user_id}",
            role=user.role,
            user_id=user.user_id,
            session_id=session_id,
        )
        return self._somebody(principal, tenant, min(self._fresh_s, (session.expires_at - now).total_seconds()))

    async def _load_profile(self, tenant_id: int) -> Profile:
        async with self._database.tenant(tenant_id) as tx:
            tenant = await store.read_tenant(tx, tenant_id)
            if tenant is None:
                raise Unauthorized("There is no such tenant.")
            kept = await store.read_settings(tx, tenant_id)
        secret = None
        if kept.sealed_secret is not None:
            secret = self._sealer.open(kept.sealed_secret, secret_place(tenant_id))
        return Profile(tenant, kept.shown, secret)

    def _nobody(self) -> _Found:
        until = self._clock.monotonic() + UNKNOWN_S
        return _Found(0, None, False, until, until)

    def _somebody(self, principal: Principal, tenant: Tenant, lives: float) -> _Found:
        now = self._clock.monotonic()
        stale = now + (STALE_S if lives >= self._fresh_s else lives)
        return _Found(tenant.tenant_id, principal, tenant.status == "suspended", now + lives, stale)


def _entry_bytes(_: bytes, found: _Found) -> int:
    """A key's scopes are counted by their number: most share one set."""
    return 500 if found.principal is None else 800 + 100 * len(found.principal.scopes)


def secret_place(tenant_id: int) -> str:
    """Where a tenant's JWT secret belongs: it opens nowhere else."""
    return f"tenant {tenant_id} jwt"


def _refuse_suspended(suspended: bool) -> None:
    if suspended:
        raise Forbidden(
            "The tenant is suspended; nothing was done. The operator of this installation can resume it.",
            code="TENANT_SUSPENDED",
        )
