"""Changes of what runs: sellpages, campaigns, ad sets, ads. Each one transaction with its audit row."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

import msgspec
from msgspec import UNSET, structs

from handbill.adstats import store
from handbill.adstats.model import (
    Entity,
    EntityPatch,
    NewEntity,
    NewSellpage,
    ProviderName,
    Sellpage,
    SellpagePatch,
)
from handbill.infra.postgres import Database, ForeignKeyViolation, Tx, UniqueViolation
from handbill.kit import etags, pages
from handbill.kit.clock import Clock
from handbill.kit.errors import Conflict, Fault, Invalid, NotFound
from handbill.kit.ids import Ids
from handbill.kit.pages import Page
from handbill.tenants.service import Audit

T = TypeVar("T")
MOST_MONEY = Decimal(10) ** 12
"""Of a budget; what is spent of it, and its ratios, must fit their columns too."""
ABOVE = {"ADSET": "CAMPAIGN", "AD": "ADSET"}


class Editor:
    def __init__(
        self,
        database: Database,
        audit: Audit,
        clock: Clock,
        ids: Ids,
        ad_sources: Mapping[ProviderName, str],
    ) -> None:
        self._database = database
        self._audit = audit
        self._clock = clock
        self._ids = ids
        self._ad_sources = ad_sources

    # --- sellpages

    async def create_sellpage(self, tenant: int, new: NewSellpage, *, actor: str) -> Sellpage:
        async with self._database.tenant(tenant) as tx:
            made = await store.create_sellpage(tx, tenant, self._ids.new(), new.name, new.url, self._clock.now())
            await self._note(tx, tenant, actor, "sellpage.create", made.sellpage_id, None, made)
        return made

    async def sellpage(self, tenant: int, page: UUID) -> Sellpage:
        async with self._database.tenant(tenant) as tx:
            return found(await store.find_sellpage(tx, tenant, page), "SELLPAGE")

    async def list_sellpages(self, tenant: int, cursor: str | None, limit: int) -> Page[Sellpage]:
        async with self._database.tenant(tenant) as tx:
            rows = await store.list_sellpages(tx, tenant, after(cursor), limit + 1)
        return pages.page(rows, limit, lambda row: (str(row.sellpage_id),))

    async def change_sellpage(
        self, tenant: int, page: UUID, patch: SellpagePatch, *, version: int | None, actor: str
    ) -> Sellpage:
        async with self._database.tenant(tenant) as tx:
            before = found(await store.find_sellpage(tx, tenant, page, lock=True), "SELLPAGE")
            etags.check(version, before.version)
            wanted = structs.replace(before, **_given(patch))
            made = await store.update_sellpage(tx, tenant, wanted, self._clock.now())
            await self._note(tx, tenant, actor, "sellpage.change", page, before, made)
        return made

    async def delete_sellpage(self, tenant: int, page: UUID, *, version: int | None, actor: str) -> None:
        async with self._database.tenant(tenant) as tx:
            before = found(await store.find_sellpage(tx, tenant, page, lock=True), "SELLPAGE")
            etags.check(version, before.version)
            if not await store.delete_sellpage(tx, tenant, page):
                raise Conflict(
                    "Campaigns lead to this sellpage; nothing was changed. Move them to another first.",
                    code="SELLPAGE_IN_USE",
                )
            await self._note(tx, tenant, actor, "sellpage.delete", page, before, None)

    # --- campaigns, ad sets, ads

    async def create_entity(self, tenant: int, new: NewEntity, *, actor: str) -> Entity:
        check_money(new.budget)
        entity_id = self._ids.new()
        try:
            async with self._database.tenant(tenant) as tx:
                connection, campaign = await self._above(tx, tenant, new, entity_id)
                entity = Entity(
                    entity_id, new.entity_type, connection, campaign, new.name, new.parent_id, new.sellpage_id,
                    new.external_id, new.status, new.budget_type, new.budget, new.utm_campaign, new.banner_campaign_id,
                )  # fmt: skip
                made = await store.create_entity(tx, tenant, entity, self._clock.now())
                await self._note(tx, tenant, actor, "ad_entity.create", made.entity_id, None, made)
        except UniqueViolation:
            raise Conflict(
                f"The account has another {new.entity_type} {new.external_id}; nothing was changed.",
                code="AD_ENTITY_TAKEN",
            ) from None
        except ForeignKeyViolation:
            raise _gone() from None
        return made

    async def _above(self, tx: Tx, tenant: int, new: NewEntity, entity_id: UUID) -> tuple[UUID, UUID]:
        """The connection and the campaign of a new entity, as what stands above it says."""
        if new.entity_type == "CAMPAIGN":
            if new.connection_id is None or new.parent_id is not None:
                raise _refused("connection_id", "a campaign names its connection and no parent")
            await self._sellpage_there(tx, tenant, new.sellpage_id)
            kept = found(await store.find_connection(tx, tenant, new.connection_id), "AD_CONNECTION")
            self._check_external_id(kept.shown.provider, new.external_id)
            return kept.shown.connection_id, entity_id
        if new.parent_id is None or new.sellpage_id is not None:
            raise _refused("parent_id", "an ad set names its campaign, an ad its ad set, and neither a sellpage")
        parent = found(await store.find_entity(tx, tenant, new.parent_id), "AD_ENTITY")
        if parent.entity_type != ABOVE[new.entity_type]:
            raise _refused("parent_id", f"must be of type {ABOVE[new.entity_type]}")
        if new.connection_id not in (None, parent.connection_id):
            raise _refused("connection_id", "must be the parent's")
        kept = found(await store.find_connection(tx, tenant, parent.connection_id), "AD_CONNECTION")
        self._check_external_id(kept.shown.provider, new.external_id)
        return parent.connection_id, parent.campaign_id

    async def entity(self, tenant: int, entity: UUID) -> Entity:
        async with self._database.tenant(tenant) as tx:
            return found(await store.find_entity(tx, tenant, entity), "AD_ENTITY")

    async def list_entities(
        self, tenant: int, cursor: str | None, limit: int, level: str | None, connection: UUID | None,
        parent: UUID | None, status: str | None,
    ) -> Page[Entity]:  # fmt: skip
        async with self._database.tenant(tenant) as tx:
            rows = await store.list_entities(tx, tenant, after(cursor), limit + 1, level, connection, parent, status)
        return pages.page(rows, limit, lambda row: (str(row.entity_id),))

    async def change_entity(
        self, tenant: int, entity: UUID, patch: EntityPatch, *, version: int | None, actor: str
    ) -> Entity:
        """A campaign that moves to another sellpage takes its days along, in the same transaction."""
        if patch.budget is not UNSET:
            check_money(patch.budget)
        async with self._database.tenant(tenant) as tx:
            if patch.sellpage_id is not UNSET:  # before the row's own lock, as an import takes them
                await store.lock_seller(tx, tenant)
            before = found(await store.find_entity(tx, tenant, entity, lock=True), "AD_ENTITY")
            etags.check(version, before.version)
            wanted = structs.replace(before, **_given(patch))
            moved = wanted.sellpage_id != before.sellpage_id
            if moved:
                if before.entity_type != "CAMPAIGN":
                    raise _refused("sellpage_id", "only a campaign leads to a sellpage")
                await self._sellpage_there(tx, tenant, wanted.sellpage_id)
            try:
                made = await store.update_entity(tx, tenant, wanted, self._clock.now())
            except ForeignKeyViolation:
                raise _gone() from None
            if moved:
                days = await store.campaign_days(tx, tenant, entity)
                await store.roll_sellpages(tx, tenant, days, self._ad_sources)
            await self._note(tx, tenant, actor, "ad_entity.change", entity, before, made)
        return made

    # --- inside

    async def _sellpage_there(self, tx: Tx, tenant: int, page: UUID | None) -> None:
        if page is not None:
            found(await store.find_sellpage(tx, tenant, page), "SELLPAGE")

    def _check_external_id(self, provider: ProviderName, external_id: str | None) -> None:
        """A platform reports by its own ids: an entity without one would never have figures. The mock needs none."""
        if external_id is None and provider != "MOCK":
            raise _refused(
                "external_id", "must be the platform's id of it; only an entity of a MOCK account needs none"
            )

    async def _note(
        self, tx: Tx, tenant: int, actor: str, action: str, thing: UUID, before: msgspec.Struct | None,
        after: msgspec.Struct | None,
    ) -> None:  # fmt: skip
        what = f"{action.partition('.')[0]} {thing}"
        await self._audit.write(tx, tenant, actor=actor, action=action, object=what, before=before, after=after)


def found(thing: T | None, what: str) -> T:
    if thing is None:
        raise NotFound(f"There is no such {what.lower().replace('_', ' ')}.", code=f"{what}_NOT_FOUND")
    return thing


def after(cursor: str | None, default: UUID = store.FIRST) -> UUID:
    """Lists of this room are ordered by id, and their cursors hold the last one."""
    if cursor is None:
        return default
    (text,) = pages.decode(cursor, (str,))
    try:
        return UUID(str(text))
    except ValueError:
        raise Invalid("The cursor is not one of ours; start again without it.", code="BAD_CURSOR") from None


def _given(patch: msgspec.Struct) -> dict[str, Any]:
    values = {name: getattr(patch, name) for name in patch.__struct_fields__}
    return {name: value for name, value in values.items() if value is not UNSET}


def _gone() -> Conflict:
    """What was there when we looked was deleted before we wrote; only sellpages can be."""
    return Conflict("The sellpage was deleted meanwhile; nothing was changed. Name another.", code="SELLPAGE_GONE")


def _refused(field: str, reason: str) -> Invalid:
    return Invalid(f"Nothing was changed: {field} {reason}.", faults=[Fault(field, reason)])


def check_money(amount: Decimal) -> None:
    """What fits the column: finite, not below zero, twelve digits before the point and four after."""
    if not amount.is_finite() or not 0 <= amount < MOST_MONEY or amount != round(amount, 4):
        raise _refused("budget", "must be a number from 0 to 999999999999 with at most four places")
