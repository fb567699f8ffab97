"""The face of the ad stats: for the wiring, the shells, reports and the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from uuid import UUID

import msgspec

from handbill.adstats import store
from handbill.adstats.accounts import Accounts, Seals
from handbill.adstats.connections import Connections
from handbill.adstats.dispatch import Dispatch
from handbill.adstats.editor import Editor
from handbill.adstats.imports import Importer
from handbill.adstats.model import Mode, ProviderName
from handbill.adstats.providers.port import ProviderError, StatProvider
from handbill.adstats.reading import Explained, Reading, StatsAnswer, StatsQuery, StatsRow
from handbill.adstats.rounding import ratio
from handbill.adstats.syncing import Syncing
from handbill.adstats.table import as_csv
from handbill.infra.postgres import Database, PostgresError
from handbill.infra.state import StateTable
from handbill.jobs.service import JobsService
from handbill.kit.clock import Clock
from handbill.kit.errors import HandbillError
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs
from handbill.kit.token_ends import TokenSummary
from handbill.tenants.service import Audit

__all__ = ["STATE", "AdstatsService", "Explained", "StatsAnswer", "StatsQuery", "StatsRow", "as_csv", "ratio"]

_log = logs.get("adstats")
LISTING_PACE = timedelta(hours=1)
_VOLATILE = frozenset({"updated_at"})
STATE = (
    StateTable("adstats.fb_connections", ("tenant_id", "connection_id"), _VOLATILE | {"verified_at"}),
    StateTable("adstats.sellpages", ("tenant_id", "sellpage_id"), _VOLATILE),
    StateTable("adstats.entities", ("tenant_id", "entity_id"), _VOLATILE),
    StateTable(
        "adstats.ad_stats_daily", ("tenant_id", "entity_type", "entity_id", "stat_date"), frozenset({"fetched_at"})
    ),
    StateTable(
        "adstats.ad_stats_ledger",
        ("tenant_id", "entity_type", "entity_id", "stat_date", "believed_on"),
        frozenset({"believed_at"}),
    ),
    StateTable("adstats.sellpage_stats_daily", ("tenant_id", "sellpage_id", "stat_date", "ad_source", "currency")),
    StateTable("adstats.backfills", ("tenant_id", "backfill_id")),
    StateTable(
        "adstats.backfill_parts", ("tenant_id", "backfill_id", "entity_type", "date_from"), frozenset({"ended_at"})
    ),
)
"""Raw rows are left out: how often an answer was seen depends on how often somebody asked."""


class Campaign(msgspec.Struct, frozen=True):
    """What a report needs to know of a campaign to find our own counts of it."""

    entity_id: UUID
    name: str
    utm_campaign: str | None
    banner_campaign_id: UUID | None


class AdstatsService:
    def __init__(
        self,
        database: Database,
        jobs: JobsService,
        audit: Audit,
        seals: Seals,
        providers: Mapping[ProviderName, StatProvider],
        clock: Clock,
        *,
        mode: Mode = "latest",
        raw_days: int = 35,
    ) -> None:
        ids = Ids(clock)
        self._database = database
        self._providers = providers
        self._clock = clock
        self._raw_days = raw_days
        self.mode = mode
        accounts = Accounts(database, providers, seals, audit, clock)
        self.syncing = Syncing(database, accounts, clock, ids, mode=mode)
        look_backs = {name: provider.look_back_days for name, provider in providers.items()}
        self.connections = Connections(database, accounts, audit, clock, ids, look_backs)
        self.editor = Editor(database, audit, clock, ids, accounts.ad_sources)
        self.importer = Importer(database, accounts, audit, clock, ids)
        self.dispatch = Dispatch(database, jobs, audit, clock, ids, mode)
        self.reading = Reading(database, mode)

    async def start(self) -> None:
        """Nothing runs of itself; connections to platforms are opened when they are needed."""

    async def stop(self) -> None:
        for provider in self._providers.values():
            await provider.close()

    async def tenant_of(self, seller: UUID) -> int | None:
        async with self._database.worker() as tx:
            return await store.tenant_of(tx, seller)

    async def summarise_tokens(self, now: datetime) -> TokenSummary:
        """The tokens of all active accounts of all tenants."""
        async with self._database.worker() as tx:
            return await store.summarise_tokens(tx, now)

    async def explain(self, tenant: int, entity: UUID, day: date) -> Explained:
        found = await self.editor.entity(tenant, entity)
        return await self.reading.explain(tenant, entity, found.name, found.entity_type, day)

    async def campaigns(self, tenant: int, ids: list[UUID]) -> list[Campaign]:
        return [msgspec.convert(dict(row), Campaign) for row in await self.reading.campaigns(tenant, ids)]

    async def meet(self, tenant: int, connections: Sequence[UUID]) -> None:
        """Import what runs on accounts that spoke of strangers, each at most once an hour. No sync fails by this."""
        now = self._clock.now()
        for connection in connections:
            async with self._database.worker() as tx:
                ours = await store.claim_listing(tx, tenant, connection, now, now - LISTING_PACE)
            if not ours:
                continue
            try:
                told = await self.importer.fetch(tenant, connection, actor="system")
            except (HandbillError, ProviderError) as error:
                _log.warning("ad-import-failed", connectionId=str(connection), error=str(error)[:300])
            except PostgresError as error:  # its words may quote what the platform told
                _log.warning("ad-import-failed", connectionId=str(connection), error=f"not written ({error.sqlstate})")
            else:
                _log.info("ad-import-complete", connectionId=str(connection), created=told.created)

    async def retention(self) -> list[date]:
        """Make the next month; drop months whose last day is past restating and past what is kept. Ledgers stay."""
        now = self._clock.now()
        dropped: list[date] = []
        async with self._database.worker() as tx:
            await store.make_month(tx, (now.date().replace(day=28) + timedelta(days=4)).replace(day=1))
            days = max(self._raw_days, await store.longest_look_back(tx) + 2)
            months = await store.raw_months(tx)
        for month in months:
            after = (month.replace(day=28) + timedelta(days=4)).replace(day=1)
            if (now.date() - after).days >= days:
                async with self._database.worker() as tx:
                    await store.drop_month(tx, month, now)
                dropped.append(month)
        _log.info("adstats-retention", dropped=[month.isoformat() for month in dropped])
        return dropped
