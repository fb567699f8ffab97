"""Forgetting somebody, and telling what is kept: memberships, and the projection of an id."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from handbill.infra.postgres import Database
from handbill.segments.projector import Projector
from handbill.segments.store import S


class Erasure:
    def __init__(self, database: Database, projector: Projector) -> None:
        self._database = database
        self._projector = projector

    async def erase(self, tenant_id: int, subjects: list[str]) -> Mapping[str, int]:
        """Safe to repeat. What a change of the person brings back meanwhile goes with the person itself."""
        async with self._database.worker() as tx:
            await tx.execute(S.lock_tenant, tenant_id)
            await tx.fetchval(S.lock_rules, tenant_id)
            gone = Counter(row[0] for row in await tx.fetch(S.erase_people, tenant_id, subjects))
            left = sorted(gone)
            if left:
                await tx.execute(S.add_sizes, tenant_id, left, [-gone[each] for each in left])
            await self._projector.drop(tenant_id, subjects)
        return {"segments.segment_members": gone.total()}

    async def export(self, tenant_id: int, subject: str, limit: int) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        async with self._database.tenant(tenant_id) as tx:
            rows = await tx.fetch(S.export_person, tenant_id, subject, limit)
        return {"segments.segment_members": [{"segment_id": str(row[0]), "name": row[1]} for row in rows]}
