"""Public ids of banners, placements and campaigns by their numbers, for exports of events, and names by public ids."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from uuid import UUID

from handbill.infra import sqlfiles
from handbill.infra.postgres import Database
from handbill.kit.bounds import PUBLIC_IDS
from handbill.kit.caches import GenerationCache

S = sqlfiles.load("handbill.banners")

Number = tuple[int, str, int]
"""(tenant, `banner`, `placement` or `campaign`, its number)"""


class PublicIds:
    """They never change, so each is read once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: GenerationCache[Number, str] = GenerationCache(PUBLIC_IDS)

    async def of(self, numbers: Collection[Number]) -> Mapping[Number, str]:
        """Deleted ones too; a number that names nothing is left out."""
        found = {number: public_id for number in numbers if (public_id := self._known.get(number)) is not None}
        unknown = sorted(set(numbers) - found.keys())
        if unknown:
            tenants, kinds, ids = zip(*unknown, strict=True)
            async with self._database.worker() as tx:
                rows = await tx.fetch(S.public_ids_of_tenants, tenants, kinds, ids)
            for row in rows:
                number = (row["tenant_id"], row["kind"], row["id"])
                found[number] = self._known[number] = str(row["public_id"])
        return found


class Names:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def of(self, tenant_id: int, publics: Mapping[str, UUID]) -> dict[str, str]:
        """The names of the `banner`, `placement` and `campaign` with these public ids, deleted ones too."""
        wanted = (publics.get(kind) for kind in ("banner", "placement", "campaign"))
        async with self._database.tenant(tenant_id) as tx:
            rows = await tx.fetch(S.names_by_public_id, tenant_id, *wanted)
        return {row["kind"]: row["name"] for row in rows}
