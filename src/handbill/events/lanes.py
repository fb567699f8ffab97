"""One owned lane: read, pipeline, commit, project, in order, until told to stop or the lane is lost."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from datetime import timedelta

from handbill.events.batch import Batch, Sink
from handbill.events.model import Row
from handbill.events.pipeline.commit import Commit, PoisonFlood
from handbill.events.pipeline.steps import STEPS, read
from handbill.events.policy import ConsumerPolicy
from handbill.events.sharing import MainLanes, leave_time
from handbill.events.shipping import LaneShipper
from handbill.events.shipping_insert import between
from handbill.events.store import EventStore, LaneState
from handbill.infra.journal.lanes import position
from handbill.infra.journal.port import Entry, Journal
from handbill.infra.postgres import Database
from handbill.kit.errors import Broken, Busy, EngineRefused
from handbill.kit.task_health import TaskHealth
from handbill.kit.telemetry import logs, metrics, tracing

_log = logs.get("lane")
_IDLE_S = 1.0
_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0
_TRIM_EVERY_S = 10.0


class LaneRun:
    def __init__(
        self,
        state: LaneState,
        database: Database,
        store: EventStore,
        journal: Journal,
        commit: Commit,
        sinks: Sequence[Sink],
        policy: ConsumerPolicy,
        health: TaskHealth,
        *,
        main_lanes: MainLanes | None = None,
        shipper: LaneShipper | None = None,
    ) -> None:
        self.owned = state.owned
        self.cursor = state.cursor
        self.projected = state.projected
        self._database = database
        self._store = store
        self._journal = journal
        self._commit = commit
        self._sinks = tuple(sinks)
        self._policy = policy
        self.health = health
        self._main_lanes = main_lanes  # of an overflow lane: those that it leaves time to
        self._shipper = shipper
        self._stopping = asyncio.Event()
        self._waiting: list[tuple[str, list[Row], list[Row]]] = []  # committed, not yet projected
        self._trimmed_at = 0.0
        self._looked = state.cursor  # how far the lane has looked for other tenants behind a flood

    def stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        wait = _FIRST_WAIT_S
        caught_up = False
        while not self._stopping.is_set():
            try:
                if not caught_up:
                    await self._project_again()
                    caught_up = True
                await self._once()
                wait = _FIRST_WAIT_S
            except Busy as error:
                self.health.failed(error)
                await self._pause(wait * (0.5 + random.random()))
                wait = min(wait * 2, _LONGEST_WAIT_S)
            except (Broken, EngineRefused) as error:
                self.health.failed(error)
                if isinstance(error, PoisonFlood) and await self._look_behind_flood(error):
                    continue
                _log.error("lane-broken", lane=self.owned.lane, error=f"{type(error).__name__}: {error}")
                await self._pause(_LONGEST_WAIT_S)

    async def _once(self) -> None:
        self.health.heartbeat()
        await self._project()
        entries = await self._gather()
        if entries:
            started = time.monotonic()
            with tracing.span("batch", {"lane": self.owned.lane, "entries": len(entries)}):
                count = await self._process(entries)
            self.health.processed(count)
            if self._main_lanes is not None:  # a noisy tenant's lane works its share of the time while others wait
                worked_s = time.monotonic() - started
                await leave_time(worked_s, self._policy.overflow_share, self._others_wait, self._pause)
        await self._trim()
        self.health.succeeded()

    async def _others_wait(self) -> bool:
        self.health.heartbeat()
        return self._main_lanes is not None and not self._stopping.is_set() and await self._main_lanes.have_work()

    async def _look_behind_flood(self, flood: PoisonFlood) -> bool:
        """Try events of other tenants behind the rejected batch: does the database accept any of them?

        Each look goes on where the last one ended, so a long backlog is read once.
        """
        after = max(self.cursor, self._looked, key=position)
        try:
            while entries := await self._journal.read(self.owned.lane, after, events=self._policy.batch_events):
                self.health.heartbeat()
                after = self._looked = entries[-1].id
                bodies = [body for entry in entries for body in entry.bodies]
                rows = read(Batch(self.owned, self.cursor, after, bodies, self.projected)).rows
                others = [row for row in rows if row.event.tenant not in flood.tenant_ids]
                if others and await self._commit.try_tenants(others, self.owned.number):
                    return True
        except (Busy, Broken, EngineRefused) as error:
            self.health.failed(error)
        return False

    async def _gather(self) -> list[Entry]:
        """Entries behind the cursor: at once when there are enough, else what a short wait brings together."""
        limit = self._policy.batch_events
        entries = await self._journal.read(self.owned.lane, self.cursor, events=limit)
        if not entries:
            await self._news()
            entries = await self._journal.read(self.owned.lane, self.cursor, events=limit)
        missing = limit - sum(len(entry.bodies) for entry in entries)
        if entries and missing > 0 and not self._stopping.is_set():
            await self._pause(self._policy.batch_wait_ms / 1000)
            entries += await self._journal.read(self.owned.lane, entries[-1].id, events=missing)
        return entries

    async def _news(self) -> None:
        """Until something is behind the cursor, a second has passed, or we are told to stop."""
        waiting = asyncio.create_task(self._journal.wait(self.owned.lane, self.cursor, _IDLE_S))
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([waiting, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not waiting.done():
                waiting.cancel()
            done = await asyncio.gather(waiting, stopping, return_exceptions=True)
        if isinstance(done[0], Exception):
            raise done[0]

    async def _process(self, entries: Sequence[Entry]) -> int:
        bodies = [body for entry in entries for body in entry.bodies]
        batch = Batch(self.owned, self.cursor, entries[-1].id, bodies, self.projected)
        for step in STEPS:
            started = time.perf_counter()
            batch = step(batch)
            metrics.PIPELINE_SECONDS.labels(step.__name__).observe(time.perf_counter() - started)
            await asyncio.sleep(0)  # others run between the steps of a large batch
        started = time.perf_counter()
        batch = await self._commit(batch)
        metrics.PIPELINE_SECONDS.labels("commit").observe(time.perf_counter() - started)
        self.cursor = batch.end
        if self._shipper is not None:
            self._shipper.offer(batch)
        self._waiting.append((batch.end, batch.survivors, batch.refused))
        _count(batch)
        await self._project()
        return len(bodies)

    async def _project(self) -> None:
        """Tell Redis what was counted. It may be away: the rows wait, and the projected cursor stays behind."""
        while self._waiting:
            end, survivors, refused = self._waiting[0]
            await self._tell(survivors, refused)
            self._waiting.pop(0)
            self.projected = end

    async def _tell(self, survivors: Sequence[Row], refused: Sequence[Row]) -> None:
        for sink in self._sinks:
            try:
                await sink.project(survivors, refused)
            except (Broken, EngineRefused) as error:
                # Poison must not hold up the lane: PostgreSQL has the truth, and marks that the mender finds.
                self.health.failed(error)
                _log.error("projection-failed", lane=self.owned.lane, error=f"{type(error).__name__}: {error}")

    async def _project_again(self) -> None:
        """The last owner may have died between its commit and its projection: repeat that part from the manifests."""
        if self.projected == self.cursor:
            return
        async with self._database.worker() as tx:
            manifests = await self._store.manifests(tx, self.owned.lane, self.projected)
        for manifest in manifests:
            bodies = await between(self._journal, self.owned.lane, manifest.start, manifest.end, manifest.events)
            batch = read(Batch(self.owned, manifest.start, manifest.end, bodies, self.projected))
            survivors: list[Row] = []
            refused: list[Row] = []
            for row in batch.rows:
                survived = manifest.survivors[row.place >> 3] >> (row.place & 7) & 1
                (survivors if survived else refused).append(row)
            await self._tell(survivors, refused)
        async with self._database.worker() as tx:
            await self._store.move_projected(tx, self.owned, self.cursor)
        self.projected = self.cursor

    async def _trim(self) -> None:
        """Forget what is committed, shipped and old; never more than that."""
        if time.monotonic() - self._trimmed_at < _TRIM_EVERY_S:
            return
        self._trimmed_at = time.monotonic()
        lag = await self._journal.lag(self.owned.lane, self.cursor)
        metrics.JOURNAL_LAG_EVENTS.labels(self.owned.lane).set(lag.events)
        metrics.JOURNAL_LAG_SECONDS.labels(self.owned.lane).set(lag.seconds)
        if lag.gap:
            metrics.JOURNAL_GAPS.inc()
            _log.error(
                "journal-gap",
                lane=self.owned.lane,
                cursor=self.cursor,
                detail="the journal ends before the cursor: entries may be lost",
            )
        age = self._policy.trim_after_s
        async with self._database.worker() as tx:
            unfinished = await self._store.oldest_unfinished(tx, self.owned.lane)
            await self._store.forget_batches(tx, self.owned.lane, self.projected, timedelta(seconds=age))
        needed = min(unfinished or self.projected, self.projected, key=position)
        await self._journal.trim(self.owned.lane, needed, older_s=age)

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return


def _count(batch: Batch) -> None:
    metrics.EVENTS_COUNTED.inc(len(batch.survivors))
    for item in batch.parked:
        metrics.EVENTS_PARKED.labels(item.reason).inc()
    for (_, _, kind, reason), number in batch.drops.items():
        metrics.EVENTS_DROPPED.labels(kind, reason).inc(number)
