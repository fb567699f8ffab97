"""The product's loop in one process: catalogue, edge, journal, pipeline, caps. Real engines, no HTTP.

Each loop has its own lanes (a key prefix and lane names of its own), so that tests of one worker do not read each
other's journals.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from handbill.active_hours.sink import ActiveHoursSink
from handbill.banners.catalogue import Catalogue
from handbill.banners.limits import CatalogueBook, banner_rules, kinds_of
from handbill.banners.model import Banner, BannerView, NewBanner, NewPlacement, PlacementView
from handbill.banners.service import BannerSink, BannersService
from handbill.caps.model import Viewer
from handbill.caps.service import CapsService
from handbill.caps.sink import CapsSink
from handbill.events.batch import Sink
from handbill.events.consumer import Consumer
from handbill.events.edge import Edge, EdgePolicy
from handbill.events.lanes import LaneRun
from handbill.events.policy import ConsumerPolicy
from handbill.events.service import EventsService, HistoryIntake, Outcome, StoredEvents
from handbill.events.shipping_insert import Shipping
from handbill.infra.journal.lanes import FIRST_OVERFLOW, Lanes, later
from handbill.infra.journal.streams import StreamsJournal
from handbill.infra.postgres import Database
from handbill.infra.redis import Keys, Redis
from handbill.infra.sqlfiles import Sql
from handbill.insights.service import EventStoreReader
from handbill.jobs.service import Outbox
from handbill.kit.clock import Clock, SystemClock
from handbill.people.keeper import Keeper
from handbill.people.service import PeopleService
from handbill.people.sink import PeopleSink
from handbill.segments.service import SegmentsService
from handbill.segments.sink import SegmentsSink
from handbill.tenants.service import TenantService
from tests.kit.captured import NothingStored
from tests.kit.ledger import Shop
from tests.kit.waiting import eventually


class OwnLanes(Lanes, frozen=True):
    """Lanes whose names begin with a word of their own: the table of lanes is shared by a worker's tests."""

    word: str = ""
    base: int = 0

    def all(self) -> list[tuple[str, int]]:
        main = [(f"{self.word}-{number}", self.base + number) for number in range(self.main)]
        spilled = [(f"{self.word}-o{number}", self.base + self.main + number) for number in range(self.overflow)]
        return main + spilled

    def is_overflow(self, lane: str) -> bool:
        return lane.rpartition("-")[2].startswith("o")

    def lane_for(self, tenant_id: int, sender: str) -> str:
        return f"{self.word}-{super().lane_for(tenant_id, sender)}"

    def overflow_for(self, tenant_id: int) -> str:
        return f"{self.word}-{super().overflow_for(tenant_id)}"


_next = [FIRST_OVERFLOW * 2]


def own_lanes(main: int = 2) -> OwnLanes:
    base, _next[0] = _next[0], _next[0] + main + 2
    return OwnLanes(main=main, overflow=1, word=uuid.uuid4().hex[:8], base=base)


@dataclass
class Loop:
    database: Database
    redis: Redis
    keys: Keys
    lanes: OwnLanes
    journal: StreamsJournal
    catalogue: Catalogue
    caps: CapsService
    edge: Edge
    events: EventsService
    banners: BannersService
    tenants: TenantService
    clock: Clock
    people: PeopleService
    segments: SegmentsService
    consumers: list[Consumer] = field(default_factory=list)

    def lane_names(self) -> list[str]:
        return [lane for lane, _ in self.lanes.all()]

    async def consumer(
        self, policy: ConsumerPolicy | None = None, *, start: bool = True, shipping: Shipping | None = None
    ) -> Consumer:
        keeper = Keeper(self.database, [self.caps.regrouped])  # one for each worker, as each process has its own
        people = PeopleSink(keeper, self.clock, self.people.new_names)
        sinks: list[Sink] = [
            BannerSink(self.database), CapsSink(self.database, self.caps),
            ActiveHoursSink(self.catalogue.learns_active_hours, self.clock), people,
            SegmentsSink(self.segments.keeper),
        ]  # fmt: skip
        name = f"worker-{uuid.uuid4().hex[:8]}"
        made = Consumer(
            self.database,
            self.journal,
            self.lanes,
            sinks,
            worker=name,
            policy=policy or ConsumerPolicy(batch_wait_ms=1),
            shipping=shipping,
        )
        self.consumers.append(made)
        if start:
            await made.start()
        return made

    async def drained(self) -> None:
        """Until every lane's cursor has reached the end of its journal, and the caps know it."""
        names = {lane for lane, _ in self.lanes.all()}

        async def done() -> bool:
            async with self.database.worker() as tx:
                rows = {row["lane"]: row for row in await tx.fetch(LANES)}
            for lane in names:
                cursor = rows[lane]["cursor"] if lane in rows else "0-0"
                if (await self.journal.lag(lane, cursor)).events:
                    return False
            runs = [each for consumer in self.consumers for each in consumer._runs.values()]
            return all(run.projected == run.cursor and _heard(run, task, rows) for run, task in runs)

        try:
            await eventually(done, timeout=120, what="the lanes are drained")
        except AssertionError as error:
            told = [(each.lanes(), [health.last_error for health in each.healths()]) for each in self.consumers]
            raise AssertionError(f"{error}; consumers: {told}") from error

    async def allowed(self, tenant: int, user: str, banner: Banner, now_ms: int) -> bool:
        """Has the banner's own cap room for this user?"""
        rules = banner_rules(banner)
        caps = await self.caps.look(Viewer(tenant, user), kinds_of(rules))
        return caps.free(rules, now_ms)

    async def shop(self, tenant: int, banners: int = 2, **fields: object) -> Shop:
        """Some banners and a placement of this tenant, by number."""
        for _ in range(banners):
            await self.banner(tenant, **fields)
        await self.placement(tenant)
        shown = self.catalogue.tenant(tenant)
        return Shop(tenant, tuple(banner.id for banner in shown.banners), (None, *shown.placements))

    async def banner(self, tenant: int, **fields: object) -> BannerView:
        told = {"x_times": 2, "y_hours": 24, "z_duration_sec": 3, **fields}
        made = await self.banners.editor.create_banner(tenant, NewBanner(**told), actor="test")  # type: ignore[arg-type]
        await self.catalogue.refresh()
        return made

    async def placement(self, tenant: int) -> PlacementView:
        new = NewPlacement(name="Home", slug=f"p-{uuid.uuid4().hex[:8]}")
        made = await self.banners.editor.create_placement(tenant, new, actor="test")
        await self.catalogue.refresh()
        return made


from handbill.events.store import S as _S  # noqa: E402 - the statement is the room's own

LANES = _S.list_lanes


def _heard(run: LaneRun, task: asyncio.Task[None], rows: Mapping[str, Any]) -> bool:
    """PostgreSQL shows a commit a moment before its consumer hears of it: then the projection has not begun."""
    row = rows.get(run.owned.lane)
    ours = row is not None and row["epoch"] == run.owned.epoch and not task.done()
    return row is None or not (ours and later(row["cursor"], run.projected))


_NOBODY = Sql("delete from events.consumers", "test_nobody", "tests", "consumers belong to the installation")


class AllCounted(StoredEvents):
    """Here is no event store, and whatever was committed is said to have counted."""

    def __init__(self) -> None: ...

    async def outcome(self, tenant_id: int, kind: str, event_id: str) -> Outcome:
        return Outcome("counted", f"Counted as {kind}.")


@asynccontextmanager
async def loop(
    database: Database, redis: Redis, *, main: int = 2, clock: Clock | None = None, lanes: OwnLanes | None = None,
    edge: EdgePolicy | None = None, keys: Keys | None = None, event_store: EventStoreReader | None = None,
    history: HistoryIntake | None = None,
) -> AsyncIterator[Loop]:  # fmt: skip
    clock = clock or SystemClock()
    keys = keys or Keys(f"t{uuid.uuid4().hex[:8]}")
    lanes = lanes or own_lanes(main)
    journal = StreamsJournal(redis, keys)
    catalogue = Catalogue(database, redis, clock)
    caps = CapsService(redis, database, CatalogueBook(catalogue), clock, keys=keys)
    tenants = TenantService(database, redis, seal_key=b"0" * 32, clock=clock)
    front = Edge(journal, lanes, database, clock, edge)
    events = EventsService(
        database, front, audit=tenants.audit, outbox=Outbox(redis), stored=AllCounted(),
        history=history or NothingStored(), clock=clock,
    )  # fmt: skip
    segments = SegmentsService(database, redis, tenants, clock, keys=keys)
    banners = BannersService(
        database, redis, tenants, catalogue, events, caps, clock, keys=keys, segments=segments, event_store=event_store
    )
    people = PeopleService(database, redis, tenants.audit, clock, followers=[caps.regrouped], keys=keys)
    caps.follow(people.groups)
    await journal.start()
    async with database.worker() as tx:
        await tx.execute(_NOBODY)  # processes that an earlier test killed would keep their share of the lanes
    await catalogue.refresh()
    await caps.rebuild(uuid.uuid4().hex)
    made = Loop(
        database, redis, keys, lanes, journal, catalogue, caps, front, events, banners, tenants, clock, people, segments
    )
    try:
        yield made
    finally:
        for consumer in made.consumers:
            await consumer.stop()
        await segments.stop()
        await tenants.stop()
        await journal.stop()


__all__: Sequence[str] = ("Loop", "OwnLanes", "loop", "own_lanes", "timedelta")
