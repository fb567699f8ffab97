"""Rows in and out: one function a query, each inside the transaction it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from handbill.adstats.model import (
    Backfill,
    Connection,
    Due,
    Entity,
    Level,
    ProviderName,
    RawStatRow,
    Sellpage,
    SyncJob,
    SyncState,
)
from handbill.infra import sqlfiles
from handbill.infra.postgres import Tx
from handbill.kit.token_ends import LISTED, SOON, EndingToken, TokenSummary

S = sqlfiles.load("handbill.adstats")
T = TypeVar("T")
FIRST = UUID(int=0)
LAST = UUID(int=(1 << 128) - 1)


def _as(kind: type[T], row: Mapping[str, Any]) -> T:
    return msgspec.convert(dict(row), kind)


class Kept(msgspec.Struct, frozen=True):
    """A connection as it stands in its table: with its sealed token."""

    shown: Connection
    sealed: bytes | None
    waiting: bool = False
    """Whether a backfill of the seller waits for syncs."""
    tree: Sequence[Entity] = ()


_tree = msgspec.json.Decoder(list[Entity]).decode


def _kept(row: Mapping[str, Any]) -> Kept:
    tree = row.get("tree")
    return Kept(_as(Connection, row), row["token_sealed"], row.get("waiting", False), _tree(tree) if tree else ())


# --- sellers


async def tenant_of(tx: Tx, seller: UUID) -> int | None:
    found: int | None = await tx.fetchval(S.tenant_of_seller, seller)
    return found


async def seller_of(tx: Tx, tenant: int) -> UUID:
    found: UUID = await tx.fetchval(S.seller_of_tenant, tenant)
    return found


# --- connections


async def create_connection(tx: Tx, tenant: int, new: Connection, sealed: bytes | None, at: datetime) -> Kept:
    row = await tx.fetchrow(
        S.create_connection, tenant, new.connection_id, new.provider, new.external_id, new.name, new.currency,
        new.time_zone, new.look_back_days, new.token_state, sealed, new.token_changed_at, at,
        new.token_ends_at, new.verified_at,
    )  # fmt: skip
    return _kept(row or {})


async def find_connection(tx: Tx, tenant: int, connection: UUID, *, lock: bool = False) -> Kept | None:
    row = await tx.fetchrow(S.lock_connection if lock else S.read_connection, tenant, connection)
    return _kept(row) if row else None


async def list_connections(tx: Tx, tenant: int, after: UUID, limit: int) -> list[Connection]:
    return [_as(Connection, row) for row in await tx.fetch(S.list_connections, tenant, after, limit)]


async def update_connection(tx: Tx, tenant: int, wanted: Connection, sealed: bytes | None, at: datetime) -> Kept:
    row = await tx.fetchrow(
        S.update_connection, tenant, wanted.connection_id, wanted.name, wanted.is_active, wanted.look_back_days,
        wanted.token_state, sealed, wanted.token_note, wanted.token_changed_at, at, wanted.token_ends_at,
        wanted.token_checked_at, wanted.currency, wanted.time_zone, wanted.verified_at,
    )  # fmt: skip
    return _kept(row or {})


async def lock_account(tx: Tx, tenant_id: int, provider: ProviderName, external_id: str) -> Kept | None:
    row = await tx.fetchrow(S.lock_account, tenant_id, provider, external_id)
    return _kept(row) if row else None


async def note_verified(tx: Tx, tenant_id: int, connection_id: UUID, sealed: bytes | None, at: datetime) -> None:
    await tx.execute(S.note_verified, tenant_id, connection_id, sealed, at)


async def clear_verified(tx: Tx, tenant_id: int, connection_id: UUID) -> None:
    await tx.execute(S.clear_verified, tenant_id, connection_id)


async def relabel_days(tx: Tx, tenant_id: int, connection_id: UUID, currency: str) -> None:
    await tx.execute(S.relabel_days, tenant_id, connection_id, currency)


async def connection_days(tx: Tx, tenant_id: int, connection_id: UUID) -> list[date]:
    return [row["stat_date"] for row in await tx.fetch(S.connection_days, tenant_id, connection_id)]


async def delete_days_after(tx: Tx, tenant_id: int, connection_id: UUID, day: date) -> list[date]:
    """The days that went."""
    return [row["stat_date"] for row in await tx.fetch(S.delete_days_after, tenant_id, connection_id, day)]


async def restart_look_back(tx: Tx, tenant_id: int, connection_id: UUID) -> None:
    await tx.execute(S.restart_look_back, tenant_id, connection_id)


async def usable_connections(tx: Tx, tenant: int, levels: Sequence[Level] = ()) -> list[Kept]:
    return [_kept(row) for row in await tx.fetch(S.usable_connections, tenant, list(levels))]


async def kill_token(
    tx: Tx, tenant: int, connection: UUID, sealed: bytes | None, note: str, at: datetime
) -> UUID | None:
    found: UUID | None = await tx.fetchval(S.kill_token, tenant, connection, sealed, note, at)
    return found


async def claim_token_check(tx: Tx, tenant: int, connection: UUID, at: datetime, before: datetime) -> bool:
    return await tx.fetchval(S.claim_token_check, tenant, connection, at, before) is not None


async def note_token_end(tx: Tx, tenant: int, connection: UUID, sealed: bytes | None, ends_at: datetime) -> None:
    await tx.fetchval(S.note_token_end, tenant, connection, sealed, ends_at)


async def summarise_tokens(tx: Tx, now: datetime) -> TokenSummary:
    row = await tx.fetchrow(S.summarise_tokens, now, now + SOON)
    rows = await tx.fetch(S.first_token_ends, now + SOON, LISTED)
    return TokenSummary(**dict(row or {}), first=[_as(EndingToken, each) for each in rows])


async def eligible(tx: Tx, now: datetime, after: tuple[int, UUID], only: int | None, limit: int) -> list[Due]:
    return [_as(Due, row) for row in await tx.fetch(S.eligible, now, *after, only, limit)]


# --- sellpages


async def create_sellpage(tx: Tx, tenant: int, page: UUID, name: str, url: str | None, at: datetime) -> Sellpage:
    return _as(Sellpage, await tx.fetchrow(S.create_sellpage, tenant, page, name, url, at) or {})


async def find_sellpage(tx: Tx, tenant: int, page: UUID, *, lock: bool = False) -> Sellpage | None:
    row = await tx.fetchrow(S.lock_sellpage if lock else S.read_sellpage, tenant, page)
    return _as(Sellpage, row) if row else None


async def list_sellpages(tx: Tx, tenant: int, after: UUID, limit: int) -> list[Sellpage]:
    return [_as(Sellpage, row) for row in await tx.fetch(S.list_sellpages, tenant, after, limit)]


async def update_sellpage(tx: Tx, tenant: int, page: Sellpage, at: datetime) -> Sellpage:
    row = await tx.fetchrow(S.update_sellpage, tenant, page.sellpage_id, page.name, page.url, at)
    return _as(Sellpage, row or {})


async def delete_sellpage(tx: Tx, tenant: int, page: UUID) -> bool:
    return bool(await tx.execute(S.delete_sellpage, tenant, page))


# --- entities


async def create_entity(tx: Tx, tenant: int, new: Entity, at: datetime) -> Entity:
    row = await tx.fetchrow(
        S.create_entity, tenant, new.entity_id, new.entity_type, new.connection_id, new.parent_id, new.campaign_id,
        new.sellpage_id, new.external_id, new.name, new.status, new.budget_type, new.budget, new.utm_campaign,
        new.banner_campaign_id, at,
    )  # fmt: skip
    return _as(Entity, row or {})


async def find_entity(tx: Tx, tenant: int, entity: UUID, *, lock: bool = False) -> Entity | None:
    row = await tx.fetchrow(S.lock_entity if lock else S.read_entity, tenant, entity)
    return _as(Entity, row) if row else None


async def list_entities(
    tx: Tx, tenant: int, after: UUID, limit: int, level: str | None, connection: UUID | None, parent: UUID | None,
    status: str | None,
) -> list[Entity]:  # fmt: skip
    rows = await tx.fetch(S.list_entities, tenant, after, limit, level, connection, parent, status)
    return [_as(Entity, row) for row in rows]


async def update_entity(tx: Tx, tenant: int, wanted: Entity, at: datetime) -> Entity:
    row = await tx.fetchrow(
        S.update_entity, tenant, wanted.entity_id, wanted.name, wanted.status, wanted.sellpage_id, wanted.budget_type,
        wanted.budget, wanted.utm_campaign, wanted.banner_campaign_id, at,
    )  # fmt: skip
    return _as(Entity, row or {})


async def by_external(tx: Tx, tenant: int, connection: UUID, externals: Sequence[str]) -> list[Entity]:
    rows = await tx.fetch(S.entities_by_external, tenant, connection, list(externals))
    return [_as(Entity, row) for row in rows]


async def campaign_days(tx: Tx, tenant: int, campaign: UUID) -> list[date]:
    return [row["stat_date"] for row in await tx.fetch(S.campaign_days, tenant, campaign)]


# --- the stages of a sync


class Source(msgspec.Struct, frozen=True):
    """Whose figures are written: one sync of one connection and level."""

    tenant: int
    connection: UUID
    level: Level
    currency: str
    sync_id: UUID
    fetched_at: datetime


async def lock_seller(tx: Tx, tenant: int) -> None:
    await tx.fetchval(S.lock_seller, tenant)


async def make_month(tx: Tx, month: date) -> None:
    await tx.fetchval(S.raw_month, month)


async def write_raw(tx: Tx, source: Source, rows: Sequence[RawStatRow], *, increments: bool) -> list[tuple[UUID, date]]:
    """The (entity, day) pairs of which something new was told."""
    columns: list[list[Any]] = [
        [row.entity_id for row in rows],
        [row.external_id or "" for row in rows],
        [row.day for row in rows],
        *([list(column) for column in zip(*(row.figures.values() for row in rows), strict=True)] or [[]] * 8),
    ]
    if increments:
        columns.append([row.piece for row in rows])
    head = (source.tenant, source.connection, source.level, source.sync_id, source.fetched_at)
    return [tuple(row) for row in await tx.fetch(S.add_raw if increments else S.write_raw, *head, *columns)]


async def write_daily(
    tx: Tx, source: Source, days: Sequence[tuple[UUID, date]], *, add_up: bool, increments: bool
) -> int:
    entities, dates = [day[0] for day in days], [day[1] for day in days]
    head = (source.tenant, source.connection, source.level, source.currency, source.fetched_at)
    return int(await tx.fetchval(S.write_daily, *head, entities, dates, add_up, increments))


async def roll_sellpages(tx: Tx, tenant: int, days: Sequence[date], ad_sources: Mapping[ProviderName, str]) -> int:
    return int(await tx.fetchval(S.roll_sellpages, tenant, list(days), list(ad_sources), list(ad_sources.values())))


async def note_synced(tx: Tx, source: Source, depth: tuple[bool, bool, bool], unmatched: int = 0) -> None:
    head = (source.tenant, source.connection, source.level, source.sync_id, source.fetched_at)
    await tx.execute(S.note_synced, *head, *depth, unmatched)


async def claim_listing(tx: Tx, tenant: int, connection: UUID, at: datetime, before: datetime) -> bool:
    """Whether it is ours to ask the account what runs there: nobody has since `before`."""
    return await tx.fetchval(S.claim_listing, tenant, connection, at, before) is not None


async def note_failed(tx: Tx, tenant: int, connection: UUID, level: Level, at: datetime, error: str) -> None:
    await tx.execute(S.note_failed, tenant, connection, level, at, error)


async def raw_days(
    tx: Tx, tenant: int, connection: UUID, level: Level, first: date, last: date
) -> list[tuple[UUID, date]]:
    return [tuple(row) for row in await tx.fetch(S.raw_days, tenant, connection, level, first, last)]


async def sync_states(tx: Tx, tenant: int, connection: UUID | None) -> list[SyncState]:
    rows = await tx.fetch(S.sync_states, tenant, connection)
    return [_as(SyncState, {**dict(row), "level": row["entity_type"]}) for row in rows]


# --- months


async def raw_months(tx: Tx) -> list[date]:
    return [row["month"] for row in await tx.fetch(S.raw_months)]


async def drop_month(tx: Tx, month: date, at: datetime) -> None:
    await tx.execute(S.note_gone, month, at)
    await tx.fetchval(S.drop_raw_month, month)


async def any_gone(tx: Tx, first: date, last: date) -> bool:
    return bool(await tx.fetchval(S.gone_months, first, last))


async def longest_look_back(tx: Tx) -> int:
    return int(await tx.fetchval(S.longest_look_back))


# --- backfills


async def create_backfill(
    tx: Tx, tenant: int, backfill: UUID, first: date, last: date, actor: str, at: datetime
) -> None:
    await tx.execute(S.create_backfill, tenant, backfill, first, last, actor, at)


async def create_parts(tx: Tx, tenant: int, backfill: UUID, parts: Sequence[tuple[Level, date, date]]) -> None:
    columns = [list(column) for column in zip(*parts, strict=True)]
    await tx.execute(S.create_parts, tenant, backfill, *columns)


async def list_backfills(tx: Tx, tenant: int, before: UUID, limit: int, only: UUID | None = None) -> list[Backfill]:
    return [_as(Backfill, row) for row in await tx.fetch(S.list_backfills, tenant, before, limit, only)]


async def waiting_parts(tx: Tx, each: int, only: int | None) -> list[tuple[int, SyncJob]]:
    rows = await tx.fetch(S.waiting_parts, each, only)
    return [
        (row["tenant_id"], SyncJob(row["seller"], row["date_from"], row["date_to"], row["entity_type"])) for row in rows
    ]


async def end_parts(tx: Tx, tenant: int, job: SyncJob, state: str, error: str | None, at: datetime) -> int:
    return await tx.execute(S.end_parts, tenant, job.level, job.dateFrom, job.dateTo, state, error, at)
