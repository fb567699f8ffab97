"""Rows in and out: one function a query, each inside the transaction it is given."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.postgres import Database, Tx, repeat
from handbill.tenants.model import (
    AuditEntry,
    JwtRules,
    Key,
    NewTenant,
    NewUser,
    Privacy,
    Tenant,
    TenantSettings,
    User,
)

S = sqlfiles.load("handbill.tenants")


class StoredSettings(msgspec.Struct, frozen=True):
    """Settings with the sealed secret, which never leaves this slice."""

    shown: TenantSettings
    sealed_secret: bytes | None


class StoredSession(msgspec.Struct, frozen=True):
    session_id: UUID
    expires_at: datetime
    user: User


class Account(msgspec.Struct, frozen=True):
    """A user, found by an e-mail address before its tenant is known."""

    tenant_id: int
    user_id: UUID


class StoredReplay(msgspec.Struct, frozen=True):
    request_hash: bytes
    status: int | None
    content_type: str | None
    reply: bytes | None
    created_at: datetime


def _as(kind: type[Any], row: Mapping[str, Any]) -> Any:
    return msgspec.convert(dict(row), kind)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# --- tenants and settings


async def create_tenant(tx: Tx, public_id: UUID, new: NewTenant, now: datetime) -> Tenant:
    row = await tx.fetchrow(S.create_tenant, public_id, new.slug, new.name, new.tier, new.time_zone, now)
    assert row is not None
    tenant: Tenant = _as(Tenant, row)
    await tx.execute(S.create_settings, tenant.tenant_id, now)
    return tenant


async def list_tenants(tx: Tx) -> list[Tenant]:
    return [_as(Tenant, row) for row in await tx.fetch(S.list_tenants)]


async def find_tenant_by_slug(tx: Tx, slug: str) -> Tenant | None:
    row = await tx.fetchrow(S.find_tenant_by_slug, slug)
    return _as(Tenant, row) if row else None


async def read_tenant(tx: Tx, tenant_id: int, *, lock: bool = False) -> Tenant | None:
    row = await tx.fetchrow(S.lock_tenant if lock else S.read_tenant, tenant_id)
    return _as(Tenant, row) if row else None


async def update_tenant(tx: Tx, tenant: Tenant, now: datetime) -> Tenant:
    row = await tx.fetchrow(
        S.update_tenant, tenant.tenant_id, tenant.name, tenant.time_zone, tenant.status, tenant.tier, now
    )
    changed: Tenant = _as(Tenant, row or {})
    return changed


async def read_settings(tx: Tx, tenant_id: int) -> StoredSettings:
    row = await tx.fetchrow(S.read_settings, tenant_id)
    assert row is not None
    shown = TenantSettings(
        jwt=msgspec.json.decode(row["jwt"], type=JwtRules),
        jwt_secret_set=row["jwt_secret"] is not None,
        limits=msgspec.json.decode(row["limits"], type=dict[str, float]),
        privacy=msgspec.json.decode(row["privacy"], type=Privacy),
        version=row["version"],
        default_region=row["default_region"],
    )
    return StoredSettings(shown, row["jwt_secret"])


async def update_settings(tx: Tx, tenant_id: int, kept: StoredSettings, now: datetime) -> None:
    shown = kept.shown
    await tx.execute(
        S.update_settings,
        tenant_id,
        _jwt_json(shown.jwt),
        kept.sealed_secret,
        _json(shown.limits),
        _json(shown.privacy),
        now,
        shown.default_region,
    )


def _jwt_json(rules: JwtRules) -> str:
    """`required` only where it is on: processes of the release before do not know it."""
    fields = msgspec.structs.asdict(rules)
    if not rules.required:
        del fields["required"]
    return _json(fields)


# --- keys


async def find_key(tx: Tx, digest: bytes) -> tuple[int, UUID] | None:
    row = await tx.fetchrow(S.find_key, digest)
    return (row["tenant_id"], row["key_id"]) if row else None


async def create_key(tx: Tx, tenant_id: int, key: Key, digest: bytes) -> Key:
    row = await tx.fetchrow(
        S.create_key,
        tenant_id,
        key.key_id,
        key.kind,
        key.name,
        digest,
        key.clear_key,
        key.hint,
        key.scopes,
        key.replaces,
        key.created_at,
        key.expires_at,
    )
    made: Key = _as(Key, row or {})
    return made


async def read_key(tx: Tx, tenant_id: int, key_id: UUID, *, lock: bool = False) -> Key | None:
    row = await tx.fetchrow(S.lock_key if lock else S.read_key, tenant_id, key_id)
    return _as(Key, row) if row else None


async def list_keys(tx: Tx, tenant_id: int, after: UUID | None, limit: int) -> list[Key]:
    return [_as(Key, row) for row in await tx.fetch(S.list_keys, tenant_id, after, limit)]


async def end_key(
    tx: Tx, tenant_id: int, key_id: UUID, expires_at: datetime | None, revoked_at: datetime | None
) -> Key:
    row = await tx.fetchrow(S.end_key, tenant_id, key_id, expires_at, revoked_at)
    ended: Key = _as(Key, row or {})
    return ended


async def find_successor(tx: Tx, tenant_id: int, key_id: UUID) -> UUID | None:
    found: UUID | None = await tx.fetchval(S.find_successor, tenant_id, key_id)
    return found


async def touch_key(tx: Tx, tenant_id: int, key_id: UUID, now: datetime) -> None:
    await tx.execute(S.touch_key, tenant_id, key_id, now)


# --- users and sessions


async def find_accounts(tx: Tx, email: str, tenant_slug: str | None, limit: int) -> list[Account]:
    """The users with an e-mail address, of all tenants or of one, oldest first."""
    return [_as(Account, row) for row in await tx.fetch(S.find_accounts, email, tenant_slug, limit)]


async def create_user(tx: Tx, tenant_id: int, user_id: UUID, new: NewUser, password_hash: str, now: datetime) -> User:
    row = await tx.fetchrow(
        S.create_user, tenant_id, user_id, new.email.lower(), new.name, new.role, password_hash, now
    )
    made: User = _as(User, row or {})
    return made


async def read_user(tx: Tx, tenant_id: int, user_id: UUID, *, lock: bool = False) -> User | None:
    row = await tx.fetchrow(S.lock_user if lock else S.read_user, tenant_id, user_id)
    return _as(User, row) if row else None


async def read_password(tx: Tx, tenant_id: int, user_id: UUID) -> str | None:
    found: str | None = await tx.fetchval(S.read_password, tenant_id, user_id)
    return found


async def list_users(tx: Tx, tenant_id: int, after: UUID | None, limit: int) -> list[User]:
    return [_as(User, row) for row in await tx.fetch(S.list_users, tenant_id, after, limit)]


async def lock_owners(tx: Tx, tenant_id: int) -> list[UUID]:
    return [row["user_id"] for row in await tx.fetch(S.lock_owners, tenant_id)]


async def update_user(tx: Tx, tenant_id: int, user: User, password_hash: str | None, now: datetime) -> User:
    row = await tx.fetchrow(S.update_user, tenant_id, user.user_id, user.name, user.role, password_hash, now)
    changed: User = _as(User, row or {})
    return changed


async def delete_user(tx: Tx, tenant_id: int, user_id: UUID) -> None:
    await tx.execute(S.delete_user, tenant_id, user_id)


async def find_session(tx: Tx, digest: bytes) -> tuple[int, UUID] | None:
    row = await tx.fetchrow(S.find_session, digest)
    return (row["tenant_id"], row["session_id"]) if row else None


async def create_session(
    tx: Tx, tenant_id: int, session_id: UUID, user_id: UUID, digest: bytes, now: datetime, expires_at: datetime
) -> None:
    await tx.execute(S.create_session, tenant_id, session_id, user_id, digest, now, expires_at)


async def read_session(tx: Tx, tenant_id: int, session_id: UUID) -> StoredSession | None:
    row = await tx.fetchrow(S.read_session, tenant_id, session_id)
    return StoredSession(row["session_id"], row["expires_at"], _as(User, row)) if row else None


async def delete_session(tx: Tx, tenant_id: int, session_id: UUID) -> int:
    return await tx.execute(S.delete_session, tenant_id, session_id)


async def delete_sessions_of(tx: Tx, tenant_id: int, user_id: UUID, but: UUID | None = None) -> int:
    return await tx.execute(S.delete_sessions_of, tenant_id, user_id, but)


# --- audit, replays


async def write_audit(tx: Tx, tenant_id: int, entry: AuditEntry) -> None:
    await tx.execute(
        S.write_audit,
        tenant_id,
        entry.audit_id,
        entry.at,
        entry.actor,
        entry.action,
        entry.object,
        None if entry.before is None else _json(entry.before),
        None if entry.after is None else _json(entry.after),
        entry.request_id,
    )


async def list_audit(tx: Tx, tenant_id: int, after: UUID | None, limit: int) -> list[AuditEntry]:
    rows = await tx.fetch(S.list_audit, tenant_id, after, limit)
    return [_as(AuditEntry, _decoded(row, "before", "after")) for row in rows]


async def claim_replay(tx: Tx, tenant_id: int, key: str, digest: bytes, now: datetime, expires_at: datetime) -> bool:
    return await tx.fetchval(S.claim_replay, tenant_id, key, digest, now, expires_at) is not None


async def read_replay(tx: Tx, tenant_id: int, key: str) -> StoredReplay | None:
    row = await tx.fetchrow(S.read_replay, tenant_id, key)
    return _as(StoredReplay, row) if row else None


async def close_replay(tx: Tx, tenant_id: int, key: str, status: int, content_type: str, reply: bytes) -> None:
    await tx.execute(S.close_replay, tenant_id, key, status, content_type, reply)


async def release_replay(tx: Tx, tenant_id: int, key: str) -> None:
    await tx.execute(S.release_replay, tenant_id, key)


async def sweep(database: Database, now: datetime) -> dict[str, int]:
    return {
        "sessions": await repeat(database, S.sweep_sessions, now),
        "idempotency_keys": await repeat(database, S.sweep_replays, now),
    }


def _decoded(row: Mapping[str, Any], *columns: str) -> dict[str, Any]:
    values = dict(row)
    for column in columns:
        if values.get(column) is not None:
            values[column] = msgspec.json.decode(values[column])
    return values
