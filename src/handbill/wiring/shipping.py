"""What stands between PostgreSQL and ClickHouse: shipping, overrides, and how long history is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from sys import getsizeof
from typing import TYPE_CHECKING
from uuid import UUID

from handbill.banners.public_ids import PublicIds
from handbill.events.export_audit import ExportAuditor
from handbill.events.history import History
from handbill.events.history_intake import HistoryIntake
from handbill.events.policy import ShippingPolicy
from handbill.events.reshipping import Reshipping
from handbill.events.sequence_corrector import SequenceCorrector
from handbill.events.shipping_insert import Shipping
from handbill.events.shipping_rows import RowMaker, retention_class
from handbill.infra.migrations import migrate_clickhouse
from handbill.jobs.chores import Loop
from handbill.kit.bounds import PERSON_IDS
from handbill.kit.caches import GenerationCache
from handbill.kit.errors import Unauthorized
from handbill.people.model import person_id
from handbill.people.overrides import Overrides
from handbill.people.property_export import PropertyExport
from handbill.people.squash import LOCK as SQUASH_LOCK
from handbill.people.squash import Squash

if TYPE_CHECKING:  # the house itself has parts of this
    from handbill.wiring.house import House

_EVERY_S = 1.0
_AUDIT_EVERY_S = 15.0
_CORRECT_EVERY_S = 10.0
_CORRECTING_S = 1.0


def shipping(house: House) -> Shipping:
    given = house.settings.events
    return Shipping(
        house.database,
        house.clickhouse,
        house.journal,
        RowMaker(PersonIds().of, house.banners.show.country, PublicIds(house.database).of),
        squashed=Overrides(house.database, house.clickhouse).squashed,
        classes=Retentions(house),
        erased=house.tenants.erasures.since,
        migrate=lambda: migrate_clickhouse(house.clickhouse),
        policy=ShippingPolicy(
            ship_events=given.ship_events,
            ship_wait_s=given.ship_wait_s,
            most_events=given.ship_most_events,
            hold_events=given.ship_most_events,
        ),
    )


def history_intake(house: House) -> HistoryIntake:
    return HistoryIntake(house.clickhouse, Retentions(house), house.clock)


def reshipping(house: House) -> Reshipping:
    return Reshipping(house.database, shipping(house), SQUASH_LOCK)


def history(house: House) -> History:
    squash = Squash(house.database, house.clickhouse, house.events.shipments)
    return History(house.clickhouse, house.clock, squash.run)


class PersonIds:
    """Ids of people by their distinct ids: to work one out takes 2 us, to find it here a tenth of that."""

    def __init__(self) -> None:
        self._ids: GenerationCache[tuple[int, str], UUID] = GenerationCache(PERSON_IDS, _entry_bytes)

    def of(self, tenant_id: int, distinct_id: str) -> UUID:
        key = (tenant_id, distinct_id)
        found = self._ids.get(key)
        if found is None:
            found = self._ids[key] = person_id(tenant_id, distinct_id)
        return found


def _entry_bytes(key: tuple[int, str], _: UUID) -> int:
    return getsizeof(key[1]) + 200


class Retentions:
    """The class of each tenant: its own number of days, or else the installation's."""

    def __init__(self, house: House) -> None:
        self._directory = house.tenants.directory
        self._days = house.settings.events.history_days

    async def __call__(self, tenants: Iterable[int]) -> Mapping[int, int]:
        return {tenant: kept for tenant in tenants if (kept := retention_class(await self._of(tenant)))}

    async def _of(self, tenant: int) -> int:
        try:
            own = (await self._directory.profile(tenant)).settings.privacy.retention_days
        except Unauthorized:  # the tenant is gone; its events are kept as long as the installation's
            own = None
        return self._days if own is None else own


class OverridesChore(Loop):
    """Tells ClickHouse within about a second who an id is by now."""

    def __init__(self, house: House) -> None:
        super().__init__("overrides")
        self._overrides = Overrides(house.database, house.clickhouse)

    async def turn(self) -> None:
        await self._overrides.ship()
        self.ready.set()
        await self.rest(_EVERY_S)


class PropertyExportChore(Loop):
    """Tells ClickHouse within about a second what people are like by now."""

    def __init__(self, house: House) -> None:
        super().__init__("person-properties")
        self._export = PropertyExport(house.database, house.clickhouse)

    async def turn(self) -> None:
        sent = await self._export.ship()
        self.ready.set()
        self.health.processed(sent)
        await self.rest(0.0 if sent else _EVERY_S)


class ExportAudit(Loop):
    """Counts the rows of exported batches a second time, while the journal still has their events."""

    def __init__(self, house: House) -> None:
        super().__init__("export-audit")
        self._auditor = ExportAuditor(shipping(house), house.clock)

    async def turn(self) -> None:
        await self._auditor.run()
        self.ready.set()
        await self.rest(_AUDIT_EVERY_S)


class SequenceCorrections(Loop):
    """Gives rows in ClickHouse the smaller sequences that copies brought after they were exported."""

    def __init__(self, house: House) -> None:
        super().__init__("sequence-corrections")
        self._corrector = SequenceCorrector(house.database, house.clickhouse, house.clock)

    async def turn(self) -> None:
        more = await self._corrector.run()
        self.ready.set()
        await self.rest(_CORRECTING_S if more else _CORRECT_EVERY_S)
