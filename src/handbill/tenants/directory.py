"""The directory: who stands behind a key, a session or a user's token, answered from memory on the hot path.

An answer is trusted for a few seconds (`fresh_s`) and forgotten at once when Redis carries a change of its tenant. For
`REFRESHED` times as long an older answer about a write key or a tenant is still given at once, while a new one is
fetched in the background: no hot route waits for PostgreSQL. An answer that is older still, and every older answer
about a secret key or a session, waits for PostgreSQL, and is used only when PostgreSQL does not answer in time, for ten
minutes at most and never past the key's own end (failing open, metered): a key cannot be revoked while its table is
away, and tracking must go on. What was never seen before is refused with 503 while PostgreSQL does not answer.

After a gap in the messages from Redis, in which a revocation may have been missed, every answer counts as old: each is
asked for again, and is used only while PostgreSQL does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

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
REFRESHED = 5.0
STALE_S = 600.0

log = logs.get("tenants")
T = TypeVar("T")
_MEMORY = {
    prefix[:3]: metrics.TENANTS_LOOKUPS.labels(prefix[:3], "memory")
    for prefix in (keys.WRITE, keys.SECRET, keys.SESSION)
}
"""Bound once: looking a label up costs more than the answer from memory."""


class Profile(msgspec.Struct, frozen=True):
    """A tenant with its settings, for whoever asks on every request. Its secret is opened only to verify a token: one
    that does not open concerns nothing else."""

    tenant: Tenant
    settings: TenantSettings
    sealed_jwt_secret: bytes | None


class _Found(msgspec.Struct, frozen=True):
    """A remembered answer. `tenant_id` 0 = nobody."""

    tenant_id: int
    principal: Principal | None
    suspended: bool
    fresh_until: float
    stale_until: float
    gaps: int = 0
    """Gaps in the messages from Redis before it was loaded: after a later one it is not trusted any more."""


_Load = Callable[[bytes], Coroutine[Any, Any, _Found]]


class _KeptProfile(msgspec.Struct, frozen=True):
    """A remembered profile."""

    profile: Profile
    fresh_until: float
    gaps: int


class Directory:
    def __init__(
        self, database: Database, sealer: Sealer, keysets: KeySets, clock: Clock, *, fresh_s: float = FRESH_S
    ) -> None:
        self._database = database
        self._hot = database.hot
        self._sealer = sealer
        self._keysets = keysets
        self._clock = clock
        self._fresh_s = fresh_s
        self._found: LruCache[bytes, _Found] = LruCache(CREDENTIALS, _entry_bytes)
        self._unknown: LruCache[bytes, _Found] = LruCache(UNKNOWN_CREDENTIALS, _entry_bytes)
        """Apart from the others, so that keys that somebody makes up push no real one out."""
        self._profiles: dict[int, _KeptProfile] = {}
        self._flights: dict[bytes | int, asyncio.Future[Any]] = {}
        """Look-ups under way, by the digest of a key or the id of a tenant."""
        self._generation = 0
        self._gaps = 0
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
        """The tenant and its settings, a few seconds old at most while PostgreSQL answers."""
        now = self._clock.monotonic()
        kept = self._profiles.get(tenant_id)
        if kept is not None and now < kept.fresh_until and kept.gaps == self._gaps:
            return kept.profile
        is_usable = kept is not None and now < kept.fresh_until + STALE_S
        if kept is not None and is_usable and self._hot.is_silent(has_fallback=True):
            metrics.TENANTS_LOOKUPS.labels("profile", "stale").inc()
            return kept.profile
        flight = self._fly(tenant_id, lambda: self._keep_profile(tenant_id))
        if kept is not None and is_usable and self._is_given_at_once(kept, now):
            return kept.profile
        try:
            return await self._wait(flight, has_fallback=is_usable)
        except Busy:
            if kept is None or not is_usable:
                raise
            metrics.TENANTS_LOOKUPS.labels("profile", "stale").inc()
            return kept.profile

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
            secret = self._jwt_secret(tenant_id, profile.sealed_jwt_secret)
            verified = jwt.verify(token, rules, secret=secret, keys=keyset, clock=self._clock)
            self._tokens.keep(tenant_id, version, token, verified)
        return Principal(
            tenant_id,
            "jwt",
            WRITE_KEY_SCOPES,
            actor="user token",
            subject=verified.subject,
        )

    # --- forgetting

    def forget(self, tenant_id: int) -> None:
        """Drops what is known of a tenant, and of nobody."""
        self._forget_unknown()
        self._profiles.pop(tenant_id, None)
        self._found.discard(lambda found: found.tenant_id == tenant_id)

    def on_change(self, _: str, message: bytes) -> None:
        """Forget the tenant whose number was published; trust no answer after a gap, when one may have been missed."""
        if message.isdigit():
            self.forget(int(message))
        else:
            self._forget_unknown()
            self._gaps += 1

    def _forget_unknown(self) -> None:
        self._generation += 1
        self._flights.clear()  # whoever asks from now on asks anew
        self._unknown.clear()

    # --- the answers

    async def _ask(self, prefix: str, key: str, load: _Load) -> Principal | None:
        if not key.startswith(prefix) or not keys.well_formed(key):
            return None
        digest = keys.digest(key)
        found: _Found | None = self._found.get(digest) or self._unknown.get(digest)
        if found is None or self._clock.monotonic() >= found.fresh_until or found.gaps != self._gaps:
            found = await self._fresh(digest, prefix, found, load)
        else:
            _MEMORY[prefix[:3]].inc()
        _refuse_suspended(found.suspended)
        return found.principal

    async def _fresh(self, digest: bytes, prefix: str, old: _Found | None, load: _Load) -> _Found:
        """PostgreSQL's answer, or the last good one: at once for a write key that was asked for a little while ago."""
        now = self._clock.monotonic()
        is_usable = old is not None and old.principal is not None and now < old.stale_until
        if old is not None and is_usable and self._hot.is_silent(has_fallback=True):
            metrics.TENANTS_LOOKUPS.labels(prefix[:3], "stale").inc()
            return old
        flight = self._fly(digest, lambda: self._load(digest, prefix, load))
        if old is not None and is_usable and prefix == keys.WRITE and self._is_given_at_once(old, now):
            _MEMORY[prefix[:3]].inc()
            return old
        try:
            return await self._wait(flight, has_fallback=is_usable)
        except Busy:
            if old is None or not is_usable:
                raise
            metrics.TENANTS_LOOKUPS.labels(prefix[:3], "stale").inc()
            return old

    def _is_given_at_once(self, kept: _Found | _KeptProfile, now: float) -> bool:
        return kept.gaps == self._gaps and now < kept.fresh_until + REFRESHED * self._fresh_s

    def _fly(self, key: bytes | int, work: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Future[T]:
        """One look-up at a time of one key or tenant: whoever asks meanwhile waits for the same answer."""
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.ensure_future(self._hot.run(work))
            self._flights[key] = flight
            flight.add_done_callback(lambda done: self._landed(key, done))
        return flight

    async def _wait(self, flight: asyncio.Future[T], *, has_fallback: bool) -> T:
        """The flight's answer. Its own timeout is for those who have no other answer."""
        if has_fallback:
            return await self._hot.wait(flight, has_fallback=True)
        return await asyncio.shield(flight)

    async def _load(self, digest: bytes, prefix: str, load: _Load) -> _Found:
        generation = self._generation
        found = await load(digest)
        metrics.TENANTS_LOOKUPS.labels(prefix[:3], "postgres").inc()
        if generation == self._generation:  # a change that was told meanwhile makes the answer good for one use only
            self._remember(digest, msgspec.structs.replace(found, gaps=self._gaps))
            if prefix == keys.WRITE and found.principal is not None:
                self._refresh_profile(found.tenant_id)
        return found

    def _refresh_profile(self, tenant_id: int) -> None:
        """Look the tenant up beside its key: its first event may come when PostgreSQL does not answer any more."""
        kept = self._profiles.get(tenant_id)
        if kept is None or self._clock.monotonic() >= kept.fresh_until or kept.gaps != self._gaps:
            self._fly(tenant_id, lambda: self._keep_profile(tenant_id))

    async def _keep_profile(self, tenant_id: int) -> Profile:
        generation = self._generation
        profile = await self._load_profile(tenant_id)
        if generation == self._generation:
            self._profiles[tenant_id] = _KeptProfile(profile, self._clock.monotonic() + self._fresh_s, self._gaps)
        return profile

    def _remember(self, digest: bytes, found: _Found) -> None:
        here, there = (self._found, self._unknown) if found.principal is not None else (self._unknown, self._found)
        here[digest] = found
        there.pop(digest, None)

    def _landed(self, key: bytes | int, flight: asyncio.Future[Any]) -> None:
        if self._flights.get(key) is flight:
            del self._flights[key]
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
        lives = STALE_S if key.expires_at is None else (key.expires_at - now).total_seconds()
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
        return self._somebody(principal, tenant, (session.expires_at - now).total_seconds())

    async def _load_profile(self, tenant_id: int) -> Profile:
        async with self._database.tenant(tenant_id) as tx:
            tenant = await store.read_tenant(tx, tenant_id)
            if tenant is None:
                raise Unauthorized("There is no such tenant.")
            kept = await store.read_settings(tx, tenant_id)
        return Profile(tenant, kept.shown, kept.sealed_secret)

    def _jwt_secret(self, tenant_id: int, sealed: bytes | None) -> bytes | None:
        return None if sealed is None else self._sealer.open(sealed, secret_place(tenant_id))

    def _nobody(self) -> _Found:
        until = self._clock.monotonic() + UNKNOWN_S
        return _Found(0, None, False, until, until)

    def _somebody(self, principal: Principal, tenant: Tenant, lives: float) -> _Found:
        """An answer that is used for `lives` seconds at most."""
        now = self._clock.monotonic()
        suspended = tenant.status == "suspended"
        return _Found(
            tenant.tenant_id, principal, suspended, now + min(self._fresh_s, lives), now + min(STALE_S, lives)
        )


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
