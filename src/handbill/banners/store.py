"""Rows of the catalogue in and out: one function a query, each inside the transaction it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from handbill.banners.model import Banner, BannerFilter, Campaign, Deciding, Placement
from handbill.infra import sqlfiles
from handbill.infra.postgres import Tx

S = sqlfiles.load("handbill.banners")

T = TypeVar("T")


class UnreadableRow(msgspec.Struct, frozen=True):
    """A stored row that this version cannot read: what it is, its number, and why."""

    kind: str
    id: int
    reason: str


class TenantRows(msgspec.Struct):
    """One tenant's catalog as stored. `deciding` is None when its row cannot be read."""

    banners: list[Banner]
    placements: list[Placement]
    campaigns: list[Campaign]
    unreadable: list[UnreadableRow]
    deciding: Deciding | None = Deciding()


_JSON = ("targeting", "variants", "caps")


def _as(kind: type[T], row: Mapping[str, Any]) -> T:
    fields = dict(row)
    for name in _JSON:
        if isinstance(fields.get(name), str):
            fields[name] = msgspec.json.decode(fields[name])
    return msgspec.convert(fields, kind)


def _json(value: object) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


# --- for the copy in memory


async def now(tx: Tx) -> datetime:
    moment: datetime = await tx.fetchval(S.now)
    return moment


async def all_versions(tx: Tx) -> dict[int, int]:
    return dict(await tx.fetch(S.all_versions))


async def version_of(tx: Tx, tenant_id: int) -> int:
    """0 for a tenant that has no catalogue yet."""
    return await tx.fetchval(S.version_of, tenant_id) or 0


async def versions_since(tx: Tx, since: datetime) -> dict[int, int]:
    return dict(await tx.fetch(S.versions_since, since))


async def load(tx: Tx, tenants: Sequence[int]) -> dict[int, TenantRows]:
    """The catalogs of these tenants. A row that cannot be read is listed as such; the others are not affected."""
    found = {tenant_id: TenantRows([], [], [], []) for tenant_id in tenants}
    for row in await tx.fetch(S.load_banners, list(tenants)):
        _append(found[row["tenant_id"]].banners, Banner, row, found[row["tenant_id"]].unreadable)
    for row in await tx.fetch(S.load_placements, list(tenants)):
        _append(found[row["tenant_id"]].placements, Placement, row, found[row["tenant_id"]].unreadable)
    for row in await tx.fetch(S.load_campaigns, list(tenants)):
        _append(found[row["tenant_id"]].campaigns, Campaign, row, found[row["tenant_id"]].unreadable)
    for row in await tx.fetch(S.load_deciding, list(tenants)):
        rows = found[row["tenant_id"]]
        try:
            rows.deciding = _as(Deciding, row)
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            rows.unreadable.append(UnreadableRow("deciding", row["tenant_id"], str(error)))
            rows.deciding = None
    return found


def _append(rows: list[T], kind: type[T], row: Mapping[str, Any], unreadable: list[UnreadableRow]) -> None:
    try:
        rows.append(_as(kind, row))
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        unreadable.append(UnreadableRow(kind.__name__.lower(), row["id"], str(error)))


async def person_rules(tx: Tx, tenant_id: int) -> list[tuple[str, Any]]:
    """Names and rules of banners that ask about the person."""
    return [(row["name"], msgspec.json.decode(row["targeting"])) for row in await tx.fetch(S.person_rules, tenant_id)]


async def address_rules(tx: Tx, tenant_id: int) -> list[str]:
    """The rules that may have patterns, as JSON."""
    return [row["targeting"] for row in await tx.fetch(S.address_rules, tenant_id)]


async def find_public(tx: Tx, kind: str, public_id: UUID) -> tuple[int, int] | None:
    row = await tx.fetchrow(S.find_public, kind, public_id)
    return (row["tenant_id"], row["id"]) if row else None


async def by_number(tx: Tx, kind: str, number: int, tenant_id: int | None) -> tuple[int, int] | None:
    """(tenant, number) of what a job of another program names by our number, deleted or not."""
    if kind == "banner":
        row = await tx.fetchrow(S.banner_by_number, number)
        return (row["tenant_id"], row["id"]) if row else None
    assert tenant_id is not None
    statement = S.placement_by_number if kind == "placement" else S.campaign_by_number
    found = await tx.fetchval(statement, tenant_id, number)
    return (tenant_id, found) if found is not None else None


async def read_any_banner(tx: Tx, tenant_id: int, banner_id: int) -> Banner | None:
    """Also a deleted one: it may still be counted and explained."""
    row = await tx.fetchrow(S.read_deleted_banner, tenant_id, banner_id)
    return _as(Banner, row) if row else None


async def changed(tx: Tx, tenant_id: int) -> None:
    await tx.fetchval(S.changed_catalogue, tenant_id)


# --- placements


async def create_placement(tx: Tx, place: Placement) -> Placement:
    row = await tx.fetchrow(
        S.create_placement,
        place.tenant_id,
        place.public_id,
        place.name,
        place.slug,
        place.description,
        place.ranking,
        _json(place.caps),
        place.created_at,
    )
    return _as(Placement, row or {})


async def find_placement(tx: Tx, tenant_id: int, public_id: UUID, *, lock: bool = False) -> Placement | None:
    row = await tx.fetchrow(S.lock_placement if lock else S.find_placement, tenant_id, public_id)
    return _as(Placement, row) if row else None


async def update_placement(tx: Tx, place: Placement, at: datetime) -> Placement:
    row = await tx.fetchrow(
        S.update_placement, place.tenant_id, place.id, place.name, place.slug, place.description, place.ranking,
        _json(place.caps), at, place.limits_raised_at,
    )  # fmt: skip
    return _as(Placement, row or {})


async def delete_placement(tx: Tx, place: Placement, at: datetime) -> None:
    await tx.execute(S.delete_placement, place.tenant_id, place.id, at)


async def list_placements(tx: Tx, tenant_id: int, after: int, limit: int, search: str | None) -> list[Placement]:
    return [_as(Placement, row) for row in await tx.fetch(S.list_placements, tenant_id, after, limit, search)]


async def ids_of_placements(tx: Tx, tenant_id: int, publics: Sequence[UUID]) -> dict[UUID, int]:
    rows = await tx.fetch(S.ids_of_placements, tenant_id, list(publics))
    return {row["public_id"]: row["id"] for row in rows}


async def public_placements(tx: Tx, tenant_id: int, ids: Sequence[int]) -> dict[int, UUID]:
    return dict(await tx.fetch(S.public_placements, tenant_id, list(ids)))


# --- campaigns


async def create_campaign(tx: Tx, campaign: Campaign) -> Campaign:
    row = await tx.fetchrow(
        S.create_campaign,
        campaign.tenant_id,
        campaign.public_id,
        campaign.name,
        campaign.status,
        campaign.is_active,
        campaign.starts_at,
        campaign.ends_at,
        _json(campaign.caps),
        campaign.created_at,
    )
    return _as(Campaign, row or {})


async def find_campaign(tx: Tx, tenant_id: int, public_id: UUID, *, lock: bool = False) -> Campaign | None:
    row = await tx.fetchrow(S.lock_campaign if lock else S.find_campaign, tenant_id, public_id)
    return _as(Campaign, row) if row else None


async def update_campaign(tx: Tx, campaign: Campaign, at: datetime) -> Campaign:
    row = await tx.fetchrow(
        S.update_campaign,
        campaign.tenant_id,
        campaign.id,
        campaign.name,
        campaign.status,
        campaign.is_active,
        campaign.starts_at,
        campaign.ends_at,
        _json(campaign.caps),
        at,
        campaign.limits_raised_at,
    )
    return _as(Campaign, row or {})


async def delete_campaign(tx: Tx, campaign: Campaign, at: datetime) -> None:
    await tx.execute(S.delete_campaign, campaign.tenant_id, campaign.id, at)


async def list_campaigns(
    tx: Tx, tenant_id: int, after: int, limit: int, status: str | None, search: str | None
) -> list[Campaign]:
    return [_as(Campaign, row) for row in await tx.fetch(S.list_campaigns, tenant_id, after, limit, status, search)]


async def public_campaigns(tx: Tx, tenant_id: int, ids: Sequence[int]) -> dict[int, UUID]:
    return dict(await tx.fetch(S.public_campaigns, tenant_id, list(ids)))


# --- banners


def _told(banner: Banner) -> tuple[object, ...]:
    """The columns a person decides, in the order both statements take them."""
    return (
        banner.campaign_id, banner.name, banner.title, banner.description, banner.image_url, banner.cta_link,
        banner.asset_url, banner.x_times, banner.y_hours, banner.z_duration_sec, banner.is_active, banner.publish_at,
        banner.expires_at, banner.schedule_status, banner.placement_ids, _json(banner.targeting), banner.priority,
        banner.weight, banner.revenue, _json(banner.variants), banner.holdout_percent, _json(banner.caps),
        banner.cap_mode, banner.cap_by,
    )  # fmt: skip


async def create_banner(tx: Tx, banner: Banner) -> Banner:
    row = await tx.fetchrow(S.create_banner, banner.tenant_id, banner.public_id, *_told(banner), banner.created_at)
    return _as(Banner, row or {})


async def update_banner(tx: Tx, banner: Banner, at: datetime) -> Banner:
    row = await tx.fetchrow(
        S.update_banner, banner.tenant_id, banner.id, *_told(banner), banner.archived_at, at, banner.limits_raised_at
    )
    return _as(Banner, row or {})


async def delete_banner(tx: Tx, banner: Banner, at: datetime) -> None:
    await tx.execute(S.delete_banner, banner.tenant_id, banner.id, at)


async def find_banner(tx: Tx, tenant_id: int, public_id: UUID, *, lock: bool = False) -> Banner | None:
    row = await tx.fetchrow(S.lock_banner if lock else S.find_banner, tenant_id, public_id)
    return _as(Banner, row) if row else None


async def list_banners(
    tx: Tx, tenant_id: int, after: int, limit: int, chosen: BannerFilter, campaign: int | None, placement: int | None
) -> list[Banner]:
    rows = await tx.fetch(
        S.list_banners,
        tenant_id,
        after,
        limit,
        chosen.archived,
        chosen.schedule_status,
        chosen.is_active,
        campaign,
        placement,
        chosen.search,
    )
    return [_as(Banner, row) for row in rows]


# --- deciding


async def read_deciding(tx: Tx, tenant_id: int) -> Deciding:
    row = await tx.fetchrow(S.read_deciding, tenant_id)
    return _as(Deciding, row) if row else Deciding()


async def write_deciding(tx: Tx, tenant_id: int, deciding: Deciding, at: datetime) -> Deciding:
    row = await tx.fetchrow(S.write_deciding, tenant_id, deciding.ranking, deciding.smart_scheduling, at)
    return _as(Deciding, row or {})


async def rates(tx: Tx, tenants: Sequence[int], since: datetime) -> dict[int, tuple[int, int]]:
    """(impressions, clicks) of every banner of these tenants since then, over all lanes and placements."""
    rows = await tx.fetch(S.rates, list(tenants), since)
    return {row["banner_id"]: (row["impressions"], row["clicks"]) for row in rows}


# --- schedules


async def sync_banners(tx: Tx, at: datetime) -> list[tuple[int, str]]:
    """(tenant, new status) of every banner whose status the clock changed."""
    return [(row["tenant_id"], row["status"]) for row in await tx.fetch(S.sync_banners, at)]


async def sync_campaigns(tx: Tx, at: datetime) -> list[tuple[int, str]]:
    return [(row["tenant_id"], row["status"]) for row in await tx.fetch(S.sync_campaigns, at)]
