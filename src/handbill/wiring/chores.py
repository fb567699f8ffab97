"""The chores behind the API, by kind: what `handbill worker --only KIND` chooses from."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from handbill.active_hours.sink import ActiveHoursSink
from handbill.banners.service import BannerSink
from handbill.caps.sink import CapsSink
from handbill.events.consumer import Consumer
from handbill.events.incoming import Incoming
from handbill.events.policy import ConsumerPolicy
from handbill.jobs.chores import GaugeChore, LedgerChore, Loop, RelayChore, SweepChore
from handbill.jobs.gauges import Gauges
from handbill.jobs.leader import LeaderChore
from handbill.kit.ids import new_id
from handbill.people.sink import PeopleSink
from handbill.segments.sink import SegmentsSink
from handbill.wiring import messaging, queues, shipping
from handbill.wiring.house import House
from handbill.wiring.token_ends import Summarise, TokenEnds

KINDS = ("relay", "consume", "jobs", "cron")


class Chore(Protocol):
    """One small service: it runs between start and stop on background tasks, which register themselves.

    A chore may have `ready: asyncio.Event`; the shell then waits for it before it says that the worker is ready.
    """

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Plan(msgspec.Struct, frozen=True):
    """A chore before it exists: its kind, its name and how it is built."""

    kind: str
    name: str
    build: Callable[[House], Chore]


class TenantsSweep(Loop):
    """Removes expired sessions, idempotency keys and exports once an hour, and at each start."""

    def __init__(self, house: House) -> None:
        super().__init__("tenants-sweep")
        self._tenants = house.tenants

    async def turn(self) -> None:
        await self._tenants.sweep()
        await self.rest(3_600)


class CapsKeeper(Loop):
    """Sees every second whether Redis still has its caps, and rebuilds them from PostgreSQL when it was wiped."""

    def __init__(self, house: House) -> None:
        super().__init__("caps-keeper")
        self._caps = house.caps

    async def turn(self) -> None:
        if await self._caps.ensure(new_id().hex) is not None:
            self.health.processed()
        self.ready.set()
        await self.rest(1)


class RaisedLimits(Loop):
    """After a limit was raised, tells Redis of the views that the old one had let go."""

    def __init__(self, house: House) -> None:
        super().__init__("raised-limits")
        self._backfill = house.banners.backfill

    async def turn(self) -> None:
        await self._backfill.run()
        await self.rest(1)


class ActiveHoursPruning(Loop):
    """Drops weeks of activity that no profile reads any more once an hour, and at each start."""

    def __init__(self, house: House) -> None:
        super().__init__("active-hours-pruning")
        self._keeper = house.segments.keeper

    async def turn(self) -> None:
        await self._keeper.prune_active_hours()
        await self.rest(3_600)


class PeopleMender(Loop):
    """Folds what a process that died between its commit and its folding has left behind."""

    def __init__(self, house: House) -> None:
        super().__init__("people-mender")
        self._people = house.people

    async def turn(self) -> None:
        await self._people.mend()
        await self.rest(5)


class IncomingDrain(Loop):
    """Takes what other programs add to the compatibility stream; where no stream is set it has nothing to do."""

    def __init__(self, house: House) -> None:
        super().__init__("incoming")
        stream = house.settings.events.incoming_stream
        self._incoming = stream and Incoming(
            house.database, house.redis, house.edge, house.tenants, house.clock, stream=stream, worker=new_id().hex
        )

    async def turn(self) -> None:
        drained = await self._incoming.drain() if self._incoming else 0
        self.ready.set()
        if drained:
            self.health.processed(drained)
        else:
            await self.rest(0.5 if self._incoming else 10)


class SegmentsKeeper(Loop):
    """Holds changed people against the segments' rules, and keeps what decisions know of them."""

    def __init__(self, house: House) -> None:
        super().__init__("segments")
        self._keeper = house.segments.keeper

    async def turn(self) -> None:
        done = await self._keeper.turn()
        self.ready.set()
        if done:
            self.health.processed(done)
        else:
            await self._keeper.wait(0.5)


def _consume(house: House) -> Chore:
    given = house.settings.events
    return Consumer(
        house.database,
        house.journal,
        house.lanes,
        [
            BannerSink(house.database),
            CapsSink(house.database, house.caps),
            ActiveHoursSink(house.catalogue.learns_active_hours, house.clock),
            PeopleSink(house.people.keeper, house.clock, house.people.new_names),
            SegmentsSink(house.segments.keeper),
        ],
        worker=f"{socket.gethostname()}:{os.getpid()}:{new_id().hex[-8:]}",
        policy=ConsumerPolicy(
            batch_events=given.batch_events,
            batch_wait_ms=given.batch_wait_ms,
            lease_s=given.lease_s,
            overflow_share=given.overflow_share,
            trim_after_s=given.trim_after_s,
        ),
        shipping=shipping.shipping(house),
    )


def _relay(house: House) -> Chore:
    return RelayChore(house.jobs.relay, house.redis)


def _ledger(house: House) -> Chore:
    jobs, prefix = house.jobs, house.settings.jobs.prefix
    return LedgerChore(jobs.ledger, house.redis, jobs.known_queues, prefix=prefix)


def _token_sources(house: House) -> dict[str, Summarise]:
    return {"whatsapp": house.messaging.tokens.summarise, "meta_ads": house.adstats.summarise_tokens}


def _leader(house: House) -> Chore:
    """What one process of all does, whichever leads at the moment."""
    jobs = house.jobs
    led = (
        SweepChore(jobs.sweeper, jobs.ledger, jobs.known_queues),
        GaugeChore(Gauges(house.database, jobs.queues, jobs.known_queues)),
        TenantsSweep(house),
        RaisedLimits(house),
        PeopleMender(house),
        ActiveHoursPruning(house),
        shipping.OverridesChore(house),
        shipping.PropertyExportChore(house),
        shipping.ExportAudit(house),
        shipping.SequenceCorrections(house),
        messaging.MessageSweep(house),
        TokenEnds(_token_sources(house), house.clock),
    )
    return LeaderChore(house.database, led)


PLANS: tuple[Plan, ...] = (
    Plan("relay", "relay", _relay),
    Plan("relay", "ledger", _ledger),
    Plan("consume", "consume", _consume),
    Plan("consume", "caps-keeper", CapsKeeper),
    Plan("consume", "incoming", IncomingDrain),
    Plan("consume", "segments", SegmentsKeeper),
    Plan("jobs", "jobs:banners", queues.banners_worker),
    Plan("jobs", "jobs:stats-sync", queues.stats_sync_worker),
    Plan("jobs", "jobs:requests", queues.requests_worker),
    Plan("jobs", "jobs:system", queues.system_worker),
    Plan("jobs", "jobs:imports", queues.ImportWorkers),
    Plan("jobs", "jobs:message_dispatch", queues.dispatch_worker),
    Plan("jobs", "jobs:message_retry", queues.retry_worker),
    Plan("jobs", "jobs:webhooks", queues.webhooks_worker),
    Plan("jobs", "webhook-work", messaging.WebhookWork),
    Plan("cron", "cron", queues.cron),
    Plan("cron", "leader", _leader),
)


def chosen(only: Sequence[str]) -> list[Plan]:
    """The plans of the given kinds; all of them when none is given."""
    return [plan for plan in PLANS if not only or plan.kind in only]
