"""A seller with ad accounts and a tree of campaigns, and the ad stats' service over the test's own engines."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Any
from uuid import UUID

from handbill.adstats.model import (
    LEVELS,
    Entity,
    Level,
    Mode,
    NewConnection,
    NewEntity,
    NewSellpage,
    ProviderName,
    SyncJob,
)
from handbill.adstats.providers.mock import Manners, MockProvider
from handbill.adstats.providers.port import StatProvider
from handbill.adstats.service import AdstatsService
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.jobs.service import JobsService
from handbill.kit.clock import Clock
from handbill.kit.ids import Ids
from handbill.tenants.audit import Audit
from handbill.tenants.seals import Sealer
from tests.kit.clocks import FakeClock

SEALS = Sealer(b"s" * 32)


def _rows(table: str, order: str, leave: str) -> Sql:
    return Sql(
        f"select to_jsonb(t) - '{leave}' as row from {table} t where tenant_id = $1 order by {order}", "test_rows"
    )


STATE = (
    _rows("adstats.ad_stats_daily", "entity_id, stat_date", "fetched_at"),
    _rows("adstats.ad_stats_ledger", "entity_id, stat_date, believed_on", "believed_at"),
    _rows("adstats.sellpage_stats_daily", "sellpage_id, stat_date, currency", "none"),
)
RAW = Sql("select count(*)::int from adstats.ad_stats_raw where tenant_id = $1", "test_raw")


def service(
    database: Database,
    redis: Redis,
    clock: Clock,
    *,
    manners: Manners | None = None,
    mode: Mode = "latest",
    providers: dict[ProviderName, StatProvider] | None = None,
    prefix: str | None = None,
    seals: Sealer = SEALS,
) -> AdstatsService:
    """Queues under a prefix of their own: other tests' workers must not take our jobs."""
    audit = Audit(clock, Ids(clock))
    jobs = JobsService(database, redis, audit=audit, prefix=prefix or f"bull-{uuid.uuid4().hex[:12]}")
    mock = MockProvider(clock, manners)
    given: dict[ProviderName, StatProvider] = providers or {"MOCK": mock, "META": mock}
    return AdstatsService(database, jobs, audit, seals, given, clock, mode=mode)


@dataclass
class Shop:
    """One seller: its tenant, its accounts, and all entities in order of making."""

    tenant: int
    seller: UUID
    accounts: list[UUID] = field(default_factory=list)
    sellpages: list[UUID] = field(default_factory=list)
    entities: list[Entity] = field(default_factory=list)

    def of(self, level: Level) -> list[Entity]:
        return [entity for entity in self.entities if entity.entity_type == level]

    def job(self, first: date, last: date, level: Level) -> SyncJob:
        return SyncJob(self.seller, first, last, level)


async def a_shop(
    adstats: AdstatsService,
    database: Database,
    tenant: int,
    *,
    tree: Sequence[Sequence[int]] = ((2, 1), (3,)),
    accounts: int = 1,
    currency: str = "USD",
    zone: str = "UTC",
    **connection: Any,
) -> Shop:
    """`tree`: for each campaign its ad sets, for each of those its number of ads."""
    async with database.worker() as tx:
        seller = await tx.fetchval(
            Sql("select public_id from tenants.tenants where tenant_id = $1", "test_seller"), tenant
        )
    shop = Shop(tenant, seller)
    edit = adstats.editor
    for number in range(2):
        made = await edit.create_sellpage(tenant, NewSellpage(f"Page {number}"), actor="test")
        shop.sellpages.append(made.sellpage_id)
    for number in range(accounts):
        new = NewConnection("MOCK", f"{1000 + number}", f"Account {number}", currency, zone, **connection)
        account = (await adstats.connections.create(tenant, new, actor="test")).connection_id
        shop.accounts.append(account)
        for at, sets in enumerate(tree):
            page = shop.sellpages[at % 3] if at % 3 < 2 else None
            campaign = await edit.create_entity(
                tenant,
                NewEntity("CAMPAIGN", f"Campaign {at}", account, sellpage_id=page, budget=Decimal(100 + at)),
                actor="test",
            )
            shop.entities.append(campaign)
            for place, ads in enumerate(sets):
                adset = await edit.create_entity(
                    tenant, NewEntity("ADSET", f"Set {place}", parent_id=campaign.entity_id), actor="test"
                )
                shop.entities.append(adset)
                for one in range(ads):
                    shop.entities.append(
                        await edit.create_entity(
                            tenant, NewEntity("AD", f"Ad {one}", parent_id=adset.entity_id), actor="test"
                        )
                    )
    return shop


async def synced(adstats: AdstatsService, shop: Shop, first: date, last: date | None = None) -> None:
    """All levels, one after the other."""
    for level in LEVELS:
        ended = await adstats.syncing.run(shop.tenant, shop.job(first, last or first, level))
        assert not ended.trouble, ended.trouble


async def state(database: Database, tenant: int) -> list[list[str]]:
    """What may not differ between two histories that tell the same."""
    async with database.worker() as tx:
        return [[row["row"] for row in await tx.fetch(statement, tenant)] for statement in STATE]


__all__ = ["FakeClock", "Shop", "a_shop", "service", "state", "synced"]
