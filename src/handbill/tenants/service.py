"""The tenants' verbs: every change in one transaction with its audit row, then told to the other processes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from msgspec import UNSET, structs

from handbill.infra.postgres import Database, Tx, UniqueViolation
from handbill.infra.redis import Redis, SubscriptionTask
from handbill.infra.redis.keys import Keys
from handbill.infra.safe_http import SafeHttpClient
from handbill.infra.state import StateTable
from handbill.jobs.service import Outbox
from handbill.kit import etags
from handbill.kit.clock import Clock, SystemClock
from handbill.kit.errors import Busy, Conflict, Fault, Invalid, NotFound
from handbill.kit.ids import Ids
from handbill.kit.moments import moment_faults
from handbill.kit.pages import Page, page
from handbill.kit.telemetry import logs
from handbill.tenants import jwks, jwt, keys, person_store, store
from handbill.tenants.accounts import LOGIN_STEP_S, Accounts
from handbill.tenants.audit import Audit
from handbill.tenants.cursors import after_id, id_of
from handbill.tenants.directory import FRESH_S, Directory, Profile, secret_place
from handbill.tenants.erasure import ERASE, QUEUE, Eraser, Erasures
from handbill.tenants.exports import EXPORT, Exports
from handbill.tenants.grants import actor_name, current_authority
from handbill.tenants.keys import csrf_matches, find_keys
from handbill.tenants.logins import LoginLimits
from handbill.tenants.model import (
    CHANGES,
    Actor,
    AuditEntry,
    JwtRules,
    Key,
    KeyMade,
    NewKey,
    NewTenant,
    SettingsPatch,
    Tenant,
    TenantPatch,
    TenantSettings,
    Tier,
)
from handbill.tenants.passwords import Passwords
from handbill.tenants.places import check_region, check_zone
from handbill.tenants.replays import Replays, check_key, request_hash
from handbill.tenants.seals import Sealer

__all__ = [
    "ERASE",
    "EXPORT",
    "QUEUE",
    "STATE",
    "Accounts",
    "Audit",
    "Directory",
    "Eraser",
    "Erasures",
    "Exports",
    "Profile",
    "Replays",
    "TenantService",
    "check_key",
    "csrf_matches",
    "find_keys",
    "request_hash",
]

OVERLAP_S = 86_400
ALL = 1_000_000
ERASURES_END_AFTER = timedelta(days=3)
"""Longer than any job of an erasure lives."""

STATE = (
    StateTable("tenants.tenants", ("tenant_id",), frozenset({"updated_at"})),
    StateTable("tenants.settings", ("tenant_id",), frozenset({"updated_at"})),
    StateTable("tenants.api_keys", ("tenant_id", "key_id"), frozenset({"last_used_at"})),
    StateTable("tenants.users", ("tenant_id", "user_id"), frozenset({"updated_at"})),
    StateTable("tenants.audit_log", ("tenant_id", "audit_id")),
    StateTable("tenants.erasures", ("tenant_id", "erasure_id")),
)
"""Sessions, idempotency keys and exports are left out: they come and go by themselves."""

log = logs.get("tenants")


class TenantService:
    """The room's one face. Built by the wiring; `start` begins to listen for changes told by other processes."""

    def __init__(
        self,
        database: Database,
        redis: Redis,
        *,
        seal_key: bytes,
        clock: Clock | None = None,
        session_hours: int = 12,
        login_step_s: float = LOGIN_STEP_S,
        key_cache_seconds: float = FRESH_S,
        passwords: Passwords | None = None,
        redis_keys: Keys | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._ids = Ids(self._clock)
        self._database = database
        self._redis = redis
        self._sealer = Sealer(seal_key)
        self._http = SafeHttpClient(jwks.POLICY)
        keysets = jwks.KeySets(self._http, self._clock)
        self.audit = Audit(self._clock, self._ids)
        self.directory = Directory(database, self._sealer, keysets, self._clock, fresh_s=key_cache_seconds)
        self._listener = SubscriptionTask("tenants-changes", redis, (CHANGES,), self.directory.on_change)
        outbox = Outbox(redis, self._ids)
        self.erasures = Erasures(database, outbox, self.audit, self._clock, self._ids)
        self.exports = Exports(database, outbox, self.audit, self.erasures, self._clock, self._ids)
        self.replays = Replays(database, self._clock)
        self.accounts = Accounts(
            database,
            LoginLimits(redis, redis_keys or Keys(), seal_key),
            self.audit,
            passwords or Passwords(),
            self._tell,
            self._clock,
            self._ids,
            session_hours=session_hours,
            login_step_s=login_step_s,
        )

    async def start(self) -> None:
        """Begin to follow changes in the background, whether or not Redis answers yet."""
        await self._listener.start()

    async def stop(self) -> None:
        """End it, and close the connections to tenants' servers."""
        await self._listener.stop()
        await self._http.close()

    # --- the operator's verbs: across tenants, command line only

    async def create_tenant(self, new: NewTenant, *, actor: str) -> Tenant:
        check_zone(new.time_zone)
        try:
            async with self._database.worker() as tx:
                tenant = await store.create_tenant(tx, self._ids.new(), new, self._clock.now())
                await self._note(tx, tenant.tenant_id, actor, "tenant.create", tenant, None, tenant)
        except UniqueViolation:
            raise Conflict(f"Another tenant has the slug {new.slug}; nothing was changed.", code="SLUG_TAKEN") from None
        return tenant

    async def list_tenants(self) -> list[Tenant]:
        async with self._database.worker() as tx:
            return await store.list_tenants(tx)

    async def find_tenant(self, name: str | int) -> Tenant:
        """A tenant by its number or its slug."""
        async with self._database.worker() as tx:
            found = None
            if str(name).isdigit() and int(name) < 2**31:
                found = await store.read_tenant(tx, int(name))
            return _there(found or await store.find_tenant_by_slug(tx, str(name)))

    async def suspend(self, tenant_id: int, *, actor: str) -> Tenant:
        return await self._update(tenant_id, "tenant.suspend", actor, status="suspended")

    async def resume(self, tenant_id: int, *, actor: str) -> Tenant:
        return await self._update(tenant_id, "tenant.resume", actor, status="active")

    async def set_limits(self, tenant_id: int, limits: dict[str, float], *, actor: str) -> TenantSettings:
        """Overrides of the house's limits are the operator's to give: a tenant does not set its own."""
        if any(value < 0 for value in limits.values()):
            raise Invalid("A limit cannot be negative.", faults=[Fault("limits", "must be 0 or more")])
        async with self._database.worker() as tx:
            tenant = _there(await store.read_tenant(tx, tenant_id, lock=True))
            kept = await store.read_settings(tx, tenant_id)
            wanted = structs.replace(kept, shown=structs.replace(kept.shown, limits=dict(limits)))
            await store.update_settings(tx, tenant_id, wanted, self._clock.now())
            await self._note(
                tx, tenant_id, actor, "tenant.limits", tenant, {"limits": kept.shown.limits}, {"limits": limits}
            )
            after = await store.read_settings(tx, tenant_id)
        await self._tell(tenant_id)
        return after.shown

    async def set_tier(self, tenant_id: int, tier: Tier, *, actor: str) -> Tenant:
        """The tier is the administrator's to give: it decides how much of the installation a tenant may use."""
        return await self._update(tenant_id, "tenant.tier", actor, tier=tier)

    async def sweep(self) -> dict[str, int]:
        """Remove sessions, idempotency keys and exports that have expired, and end erasures that no job works on."""
        now = self._clock.now()
        removed = await store.sweep(self._database, now)
        async with self._database.worker() as tx:
            return {
                **removed,
                "exports": await person_store.sweep_exports(tx, now),
                "erasures": await person_store.end_old_erasures(tx, now, now - ERASURES_END_AFTER),
            }

    async def _update(self, tenant_id: int, action: str, actor: str, **changes: str) -> Tenant:
        async with self._database.worker() as tx:
            before = _there(await store.read_tenant(tx, tenant_id, lock=True))
            wanted = structs.replace(before, **changes)
            if wanted == before:
                return before
            after = await store.update_tenant(tx, wanted, self._clock.now())
            await self._note(tx, tenant_id, actor, action, before, before, after)
        await self._tell(tenant_id)
        return after

    # --- the tenant and its settings

    async def get_tenant(self, tenant_id: int) -> tuple[Tenant, TenantSettings]:
        async with self._database.tenant(tenant_id) as tx:
            tenant = _there(await store.read_tenant(tx, tenant_id))
            return tenant, (await store.read_settings(tx, tenant_id)).shown

    async def change_tenant(
        self, tenant_id: int, patch: TenantPatch, *, actor: str, if_version: int | None = None
    ) -> tuple[Tenant, TenantSettings]:
        """Name, time zone and settings in one transaction. The tenant's version moves with each, for If-Match."""
        async with self._database.tenant(tenant_id) as tx:
            before = _there(await store.read_tenant(tx, tenant_id, lock=True))
            etags.check(if_version, before.version)
            kept = await store.read_settings(tx, tenant_id)
            wanted = before
            if patch.name is not UNSET:
                wanted = structs.replace(wanted, name=patch.name)
            if patch.time_zone is not UNSET:
                check_zone(patch.time_zone)
                wanted = structs.replace(wanted, time_zone=patch.time_zone)
            now = self._clock.now()
            after = await store.update_tenant(tx, wanted, now)
            await self._note(tx, tenant_id, actor, "tenant.change", before, before, after)
            if patch.settings is not UNSET:
                changed = self._patched(tenant_id, kept, patch.settings)
                await store.update_settings(tx, tenant_id, changed, now)
                await self._note(tx, tenant_id, actor, "tenant.settings", before, kept.shown, changed.shown)
            settings = (await store.read_settings(tx, tenant_id)).shown
        await self._tell(tenant_id)
        return after, settings

    async def default_region(self, tenant_id: int) -> str | None:
        """Where the tenant's phone numbers in national form are dialled, if it has said so."""
        async with self._database.tenant(tenant_id) as tx:
            return (await store.read_settings(tx, tenant_id)).shown.default_region

    def _patched(self, tenant_id: int, kept: store.StoredSettings, patch: SettingsPatch) -> store.StoredSettings:
        shown, sealed = kept.shown, kept.sealed_secret
        if patch.jwt_secret is not UNSET:
            sealed = None
            if patch.jwt_secret is not None:
                sealed = self._sealer.seal(patch.jwt_secret.encode(), secret_place(tenant_id))
            shown = structs.replace(shown, jwt_secret_set=sealed is not None)
        if patch.jwt is not UNSET:
            self._check_rules(patch.jwt)
            shown = structs.replace(shown, jwt=patch.jwt)
        if patch.privacy is not UNSET:
            shown = structs.replace(shown, privacy=patch.privacy)
        if patch.default_region is not UNSET:
            check_region(patch.default_region)
            shown = structs.replace(shown, default_region=patch.default_region)
        if shown.jwt.kind == "hs256" and sealed is None:
            raise Invalid("HS256 needs a secret.", faults=[Fault("settings.jwt_secret", "is needed for hs256")])
        return store.StoredSettings(shown, sealed)

    def _check_rules(self, rules: JwtRules) -> None:
        jwt.check_rules(rules)
        if rules.jwks_url is not None:
            self._http.check(rules.jwks_url, "settings.jwt.jwks_url")
        if rules.jwks is not None:
            jwks.check(rules.jwks, "settings.jwt.jwks")

    # --- keys

    async def create_key(self, tenant_id: int, new: NewKey, *, actor: Actor) -> KeyMade:
        """A fresh key; its clear text is in the answer and, for a secret key, nowhere else ever again."""
        now = self._clock.now()
        if new.kind == "write" and new.scopes:
            raise Invalid("A write key has no scopes.", faults=[Fault("scopes", "must be empty for a write key")])
        if new.expires_at is not None and new.expires_at <= now:
            raise Invalid("The key would already be expired.", faults=[Fault("expires_at", "must be in the future")])
        if faults := moment_faults("expires_at", new.expires_at):
            raise Invalid("The key would expire at a time that cannot be kept.", faults=faults)
        async with self._database.tenant(tenant_id) as tx:
            authority = await current_authority(tx, tenant_id, actor, now)
            authority.require_scopes(frozenset(new.scopes), "create this key")
            authority.require_expiry(new.expires_at)
            made = await self._insert_key(tx, tenant_id, new, None)
            await self._note(tx, tenant_id, actor, "key.create", made.info, None, made.info)
        await self._tell(tenant_id)
        return made

    async def list_keys(self, tenant_id: int) -> list[Key]:
        async with self._database.tenant(tenant_id) as tx:
            return await store.list_keys(tx, tenant_id, None, ALL)

    async def key_page(self, tenant_id: int, cursor: str | None, limit: int) -> Page[Key]:
        async with self._database.tenant(tenant_id) as tx:
            rows = await store.list_keys(tx, tenant_id, after_id(cursor), limit + 1)
        return page(rows, limit, lambda row: id_of(row.key_id))

    async def rotate_key(self, tenant_id: int, key_id: UUID, *, actor: Actor, overlap_s: int = OVERLAP_S) -> KeyMade:
        """A new key of the same kind, scopes and expiry; the old one works on until the overlap ends."""
        now = self._clock.now()
        async with self._database.tenant(tenant_id) as tx:
            old = _key(await store.read_key(tx, tenant_id, key_id, lock=True))
            authority = await current_authority(tx, tenant_id, actor, now)
            authority.require_scopes(frozenset(old.scopes), "rotate this key")
            if not old.usable(now):
                raise Conflict("The key is revoked or expired; create a new one instead.", code="KEY_REVOKED")
            successor = await store.find_successor(tx, tenant_id, key_id)
            if successor is not None:
                raise Conflict(
                    f"The key was rotated before: its successor is {successor}. Rotate that one, or create a new key.",
                    code="KEY_ROTATED",
                )
            authority.require_expiry(old.expires_at)
            new = NewKey(kind=old.kind, name=old.name, scopes=old.scopes, expires_at=old.expires_at)
            made = await self._insert_key(tx, tenant_id, new, old.key_id)
            ends = _sooner(old.expires_at, now + timedelta(seconds=overlap_s))
            ended = await store.end_key(tx, tenant_id, key_id, ends, None)
            await self._note(tx, tenant_id, actor, "key.rotate", old, old, ended)
            await self._note(tx, tenant_id, actor, "key.create", made.info, None, made.info)
        await self._tell(tenant_id)
        return made

    async def revoke_key(self, tenant_id: int, key_id: UUID, *, actor: Actor) -> Key:
        """Ends a key at once. Revoking it again changes nothing."""
        now = self._clock.now()
        async with self._database.tenant(tenant_id) as tx:
            old = _key(await store.read_key(tx, tenant_id, key_id, lock=True))
            authority = await current_authority(tx, tenant_id, actor, now)
            authority.require_scopes(frozenset(old.scopes), "revoke this key")
            if old.revoked_at is not None:
                return old
            ended = await store.end_key(tx, tenant_id, key_id, old.expires_at, now)
            await self._note(tx, tenant_id, actor, "key.revoke", old, old, ended)
        await self._tell(tenant_id)
        return ended

    async def _insert_key(self, tx: Tx, tenant_id: int, new: NewKey, replaces: UUID | None) -> KeyMade:
        clear = keys.make(keys.WRITE if new.kind == "write" else keys.SECRET)
        key = Key(
            key_id=self._ids.new(),
            kind=new.kind,
            name=new.name,
            hint=keys.hint(clear),
            scopes=sorted(set(new.scopes)),
            created_at=self._clock.now(),
            expires_at=new.expires_at,
            replaces=replaces,
            clear_key=clear if new.kind == "write" else None,
        )
        return KeyMade(await store.create_key(tx, tenant_id, key, keys.digest(clear)), clear)

    # --- the log

    async def audit_page(self, tenant_id: int, cursor: str | None, limit: int) -> Page[AuditEntry]:
        async with self._database.tenant(tenant_id) as tx:
            rows = await store.list_audit(tx, tenant_id, after_id(cursor), limit + 1)
        return page(rows, limit, lambda row: id_of(row.audit_id))

    async def _note(
        self, tx: Tx, tenant_id: int, actor: Actor, action: str, thing: Tenant | Key, before: Any, after: Any
    ) -> None:
        name = f"tenant {thing.slug}" if isinstance(thing, Tenant) else f"key {thing.key_id}"
        who = actor_name(actor)
        await self.audit.write(tx, tenant_id, actor=who, action=action, object=name, before=before, after=after)

    async def _tell(self, tenant_id: int) -> None:
        """Other processes forget at once; if Redis is away they forget by themselves within seconds."""
        self.directory.forget(tenant_id)
        try:
            await self._redis.call("PUBLISH", CHANGES, str(tenant_id))
        except Busy as error:
            log.warning("change-not-told", tenant=tenant_id, code=error.code)


def _there(tenant: Tenant | None) -> Tenant:
    if tenant is None:
        raise NotFound("There is no such tenant.", code="TENANT_NOT_FOUND")
    return tenant


def _key(key: Key | None) -> Key:
    if key is None:
        raise NotFound("There is no such key in this tenant.", code="KEY_NOT_FOUND")
    return key


def _sooner(one: datetime | None, other: datetime) -> datetime:
    return other if one is None or other < one else one
