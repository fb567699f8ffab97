"""After a limit was raised: Redis is told what the old limit had let go, and then the mark of doubt is lifted.

Until then every yes that rests on absent views is asked of PostgreSQL, so a decision is right at once and only slower.
The back-fill begins when every process must have learned of the new limit: one that still trims by the old one would
undo it.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from handbill.banners import store
from handbill.banners.catalogue import Catalogue, Snapshot
from handbill.banners.limits import SPREAD_MS
from handbill.caps.service import CapsService
from handbill.infra.postgres import Database
from handbill.infra.sqlfiles import Sql
from handbill.kit.clock import Clock, to_ms
from handbill.kit.tenant_rounds import TenantRounds

STEP_TIMEOUT_S = 600.0
"""One tenant's history is read from its beginning each time: a limit that is too short would never let it end."""


class Raised(msgspec.Struct, frozen=True):
    """Something whose limit was raised, and when."""

    settle: Sql
    id: int
    at: datetime


class Backfill:
    """Looks only at tenants whose catalogue has changed, until nothing of theirs is in doubt."""

    def __init__(self, database: Database, catalogue: Catalogue, caps: CapsService, clock: Clock) -> None:
        self._database = database
        self._catalogue = catalogue
        self._caps = caps
        self._clock = clock
        self._rounds: TenantRounds[int] = TenantRounds("raised-limits", timeout_s=STEP_TIMEOUT_S, clock=clock)
        self._look = set(catalogue.tenants())
        catalogue.watch(self._look.add)

    async def run(self) -> int:
        """One turn; how many limits were settled."""
        return sum((await self._rounds.for_each_tenant(sorted(self._look), self._step)).values())

    async def _step(self, tenant_id: int) -> int:
        raised = list(_raised(self._catalogue.tenant(tenant_id)))
        if not raised:
            self._look.discard(tenant_id)
        spread = [each for each in raised if self._clock.now_ms() > to_ms(each.at) + SPREAD_MS]
        if not spread:
            return 0
        await self._caps.backfill(tenant_id)
        return await self._settle(tenant_id, spread)

    async def _settle(self, tenant_id: int, raised: list[Raised]) -> int:
        async with self._database.worker() as tx:
            settled = sum([await tx.execute(each.settle, tenant_id, each.id, each.at) for each in raised])
            if settled:
                await store.changed(tx, tenant_id)
        if settled:
            await self._catalogue.changed(tenant_id)
        return settled


def _raised(snapshot: Snapshot) -> Iterator[Raised]:
    for settle, rows in (
        (store.S.settle_banner, snapshot.banners),
        (store.S.settle_campaign, snapshot.campaigns.values()),
        (store.S.settle_placement, snapshot.placements.values()),
    ):
        for row in rows:
            if row.limits_raised_at is not None:
                yield Raised(settle, row.id, row.limits_raised_at)
