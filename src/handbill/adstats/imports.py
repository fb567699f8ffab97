"""Entities in bulk, by the platform's ids: from a list that is sent, or from the platform itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from msgspec import structs

from handbill.adstats import store
from handbill.adstats.accounts import Accounts
from handbill.adstats.editor import ABOVE, check_money, found
from handbill.adstats.model import LEVELS, Connection, Entity, Imported, Listed
from handbill.adstats.providers.port import ProviderError, ProviderThrottled, TokenDead
from handbill.infra.postgres import Database, Tx
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Conflict, Fault, Invalid
from handbill.kit.ids import Ids
from handbill.tenants.service import Audit

MOST = 5_000
_TOLD = ("name", "status", "budget_type", "budget", "utm_campaign")


class Importer:
    def __init__(self, database: Database, accounts: Accounts, audit: Audit, clock: Clock, ids: Ids) -> None:
        self._database = database
        self._accounts = accounts
        self._audit = audit
        self._clock = clock
        self._ids = ids

    async def take(self, tenant: int, connection: UUID, listed: Sequence[Listed], *, actor: str) -> Imported:
        """Make what is new, change what differs, leave the rest. Nothing is removed: what is gone has a status."""
        if len(listed) > MOST:
            raise Invalid(f"At most {MOST} entities at once.", faults=[Fault("entities", f"at most {MOST}")])
        for one in listed:
            check_money(one.budget)
        async with self._database.tenant(tenant) as tx:
            kept = found(await store.find_connection(tx, tenant, connection), "AD_CONNECTION")
            await store.lock_seller(tx, tenant)
            told = await self._merge(tx, tenant, kept.shown, listed)
            await self._audit.write(
                tx, tenant, actor=actor, action="ad_entity.import", object=f"ad_connection {connection}", after=told
            )
        return told

    async def _merge(self, tx: Tx, tenant: int, connection: Connection, listed: Sequence[Listed]) -> Imported:
        names = {one.external_id for one in listed} | {one.parent_external_id or "" for one in listed}
        here = await store.by_external(tx, tenant, connection.connection_id, sorted(names))
        known = {(one.entity_type, one.external_id or ""): one for one in here}
        counts = {"created": 0, "changed": 0, "unchanged": 0}
        refused: list[str] = []
        now = self._clock.now()
        for level in LEVELS:
            for one in listed:
                if one.entity_type != level:
                    continue
                parent = None
                if level in ABOVE:
                    parent = known.get((ABOVE[level], one.parent_external_id or ""))  # type: ignore[arg-type]
                    if parent is None:
                        refused.append(one.external_id)
                        continue
                entity, how = await self._one(
                    tx, tenant, connection, one, parent, known.get((level, one.external_id)), now
                )
                known[level, one.external_id] = entity
                counts[how] += 1
        return Imported(counts["created"], counts["changed"], counts["unchanged"], refused[:100])

    async def _one(
        self, tx: Tx, tenant: int, connection: Connection, one: Listed, parent: Entity | None, before: Entity | None,
        now: datetime,
    ) -> tuple[Entity, str]:  # fmt: skip
        fields = {name: getattr(one, name) for name in _TOLD}
        if before is None:
            made = self._ids.new()
            entity = Entity(
                made, one.entity_type, connection.connection_id, parent.campaign_id if parent else made,
                parent_id=parent.entity_id if parent else None, external_id=one.external_id, **fields,
            )  # fmt: skip
            return await store.create_entity(tx, tenant, entity, now), "created"
        if fields["utm_campaign"] is None:
            fields["utm_campaign"] = before.utm_campaign
        wanted = structs.replace(before, **fields)
        if wanted == before:
            return before, "unchanged"
        return await store.update_entity(tx, tenant, wanted, now), "changed"

    async def fetch(self, tenant: int, connection: UUID, *, actor: str) -> Imported:
        """Ask the platform for what runs on the account, and take all of it."""
        async with self._database.tenant(tenant) as tx:
            kept = found(await store.find_connection(tx, tenant, connection), "AD_CONNECTION")
        provider = self._accounts.provider(kept.shown.provider)
        try:
            kept = await self._accounts.verify(tenant, kept)  # budgets are in the account's currency
            listed = await provider.list_entities(self._accounts.open(tenant, kept))
        except TokenDead as error:
            raise Conflict(f"The account must be connected again: {error}.", code="AD_TOKEN_DEAD") from None
        except ProviderThrottled as error:
            raise Busy(f"{error}; nothing was changed.", code="AD_PLATFORM", retry_after=error.retry_after_s) from None
        except ProviderError as error:
            raise Busy(f"{error}; nothing was changed.", code="AD_PLATFORM", retry_after=60) from None
        done = Imported(0, 0, 0, [])
        for start in range(0, len(listed), MOST):  # campaigns come first, so that a parent is never in a later piece
            part = await self.take(tenant, connection, listed[start : start + MOST], actor=actor)
            done = Imported(
                done.created + part.created, done.changed + part.changed, done.unchanged + part.unchanged,
                (done.refused + part.refused)[:100],
            )  # fmt: skip
        return done
