"""Folding and what follows it, for a whole process: batches ask, one folding answers all who asked before it began.

A crash between a batch and its folding leaves marks; one between a folding and those who follow it leaves a followup.
Both are found again by `mend`, and both may be done twice.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

from handbill.infra import sqlfiles
from handbill.infra.postgres import Database
from handbill.kit.telemetry import metrics
from handbill.kit.tenant_rounds import TenantRounds
from handbill.people.folding import Also, Folder

S = sqlfiles.load("handbill.people")
_AT_ONCE = 100

Follower = Callable[[int, Sequence[str]], Awaitable[None]]
"""Told (tenant, ids) when these ids were joined to others or parted from them: at least once, after the commit."""


class Keeper:
    def __init__(self, database: Database, followers: Sequence[Follower] = ()) -> None:
        self.folder = Folder(database)
        self._database = database
        self._followers = tuple(followers)
        self._rounds: TenantRounds[int] = TenantRounds("people-mender")
        self._locks: dict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._begun: dict[int, int] = defaultdict(int)
        self._done: dict[int, int] = defaultdict(int)

    async def settle(self, tenant_id: int) -> None:
        """Everything marked before this call is folded when it returns. Lanes that ask together share one folding."""
        mine = self._begun[tenant_id]
        async with self._locks[tenant_id]:
            if self._done[tenant_id] > mine:
                return
            self._begun[tenant_id] += 1
            number = self._begun[tenant_id]
            await self.folder.fold(tenant_id)
            await self.follow(tenant_id)
            self._done[tenant_id] = number

    async def void(self, tenant_id: int, key: bytes, actor: str, also: Also | None = None) -> None:
        await self.folder.void(tenant_id, key, actor, also)
        await self.follow(tenant_id)

    async def restore(self, tenant_id: int, key: bytes, also: Also | None = None) -> None:
        await self.folder.restore(tenant_id, key, also)
        await self.follow(tenant_id)

    async def follow(self, tenant_id: int) -> None:
        """Tell those who follow what was joined and parted. What a dead process had claimed is claimed again."""
        while True:
            async with self._database.worker() as tx:
                rows = await tx.fetch(S.claim_followups, tenant_id, _AT_ONCE)
            if not rows:
                return
            for row in sorted(rows):
                for follower in self._followers:
                    await follower(tenant_id, row["ids"])
            async with self._database.worker() as tx:
                await tx.execute(S.done_followups, tenant_id, [row["followup_id"] for row in rows])

    async def mend(self, older: timedelta) -> int:
        """What crashes left behind, of everybody; for how many tenants it was done."""
        async with self._database.worker() as tx:
            tenants = sorted(row[0] for row in await tx.fetch(S.tenants_unfolded, older))
        mended = len(await self._rounds.for_each_tenant(tenants, self.settle))
        metrics.PEOPLE_MENDED.inc(mended)
        return mended
