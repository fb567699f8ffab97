"""The consumer: owns lanes by epoch, reads each lane in order, and runs the pipeline batch by batch.

Three outcomes and no fourth. Busy (an engine is away): wait with jitter and read the same range again. Poison: parked
by the commit, alone. Broken or lost: let go of the lane; whoever owns it next starts from the cursor in PostgreSQL.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta

from handbill.events.batch import Owned, Sink
from handbill.events.lanes import LaneRun
from handbill.events.pipeline.commit import Commit, LaneLost
from handbill.events.policy import ConsumerPolicy
from handbill.events.sharing import MainLanes
from handbill.events.shipping import LaneShipper
from handbill.events.shipping_insert import Shipping
from handbill.events.store import EventStore
from handbill.infra.journal.lanes import Lanes
from handbill.infra.journal.port import Journal
from handbill.infra.postgres import Database
from handbill.kit.errors import Busy
from handbill.kit.ids import Ids
from handbill.kit.task_health import TaskHealth
from handbill.kit.tasks import BackgroundTask, spawn_watched
from handbill.kit.telemetry import logs

_log = logs.get("consumer")
_LAST_SHIPMENT_S = 6.0


class Consumer:
    """A chore of the worker. `start` returns at once; lanes come and go in the background."""

    name = "consume"

    def __init__(
        self,
        database: Database,
        journal: Journal,
        lanes: Lanes,
        sinks: Sequence[Sink],
        *,
        worker: str,
        policy: ConsumerPolicy | None = None,
        ids: Ids | None = None,
        shipping: Shipping | None = None,
    ) -> None:
        self._database = database
        self._journal = journal
        self._lanes = lanes
        self._sinks = tuple(sinks)
        self._worker = worker
        self._policy = policy or ConsumerPolicy()
        self._store = EventStore()
        self._main_lanes = MainLanes(database, self._store, journal, lanes)
        self._lease = timedelta(seconds=self._policy.lease_s)
        self._shipping = shipping
        self._commit = Commit(database, self._store, self._sinks, ids or Ids(), self._lease, ships=shipping is not None)
        self._runs: dict[str, tuple[LaneRun, asyncio.Task[None]]] = {}
        self._ships: dict[str, tuple[LaneShipper, asyncio.Task[None]]] = {}
        self._handovers: dict[str, asyncio.Task[None]] = {}
        """Lanes that are being given up. The leases of the others are renewed meanwhile."""
        self._is_announced = False
        self._sharing = asyncio.Lock()
        self._leader = BackgroundTask(self.name, self._keep_lanes)
        self.ready = self._leader.ready

    async def start(self) -> None:
        await self._leader.start()

    async def stop(self) -> None:
        """Finish the batches under way, hand the lanes back, and go."""
        async with self._sharing:  # a lane that was just claimed gets its run before everything ends
            await self._leader.stop()
        for lane in list(self._runs):
            self._let_go(lane)
        await asyncio.gather(*self._handovers.values(), return_exceptions=True)
        try:
            async with self._database.worker() as tx:
                await self._store.leave(tx, self._worker, self._lease * 3)
        except Busy:
            _log.warning("consumer-left-unheard", worker=self._worker)

    def lanes(self) -> list[str]:
        """The lanes this process owns now."""
        return sorted(self._runs)

    def healths(self) -> list[TaskHealth]:
        """Of the distribution of lanes, of each lane and of each lane's export."""
        runs = [run.health for run, _ in self._runs.values()]
        return [self._leader.health, *runs, *(shipper.health for shipper, _ in self._ships.values())]

    async def _keep_lanes(self) -> None:
        """Keep the leases, notice lost lanes, and take or give lanes until everybody has a fair share."""
        async with self._sharing:
            if not self._is_announced:
                async with self._database.worker() as tx:
                    for lane, number in self._lanes.all():
                        await self._store.add_lane(tx, lane, number)
                self._is_announced = True
            await self._share()
        self.ready.set()
        await self._leader.rest(self._policy.lease_s / 4 * (0.8 + 0.4 * random.random()))

    async def _share(self) -> None:
        async with self._database.worker() as tx:
            alive = await self._store.announce(tx, self._worker, self._lease)
            ours = await self._store.renew(tx, self._worker, list(self._runs), self._lease)
        for lane, (run, task) in list(self._runs.items()):
            dead = task.done() or (lane in self._ships and self._ships[lane][1].done())
            if dead or run.health.is_silent() or ours.get(lane) != run.owned.epoch:
                self._let_go(lane)
        share = -(-len(self._lanes.all()) // max(alive, 1))
        while len(self._runs) > share:
            self._let_go(next(reversed(self._runs)))
        while len(self._runs) < share and await self._take():
            pass

    async def _take(self) -> bool:
        wanted = [lane for lane, _ in self._lanes.all() if lane not in self._runs and lane not in self._handovers]
        async with self._database.worker() as tx:
            state = await self._store.claim(tx, wanted, self._worker, self._lease)
        if state is None:
            return False
        owned: Owned = state.owned
        shipper = None
        if self._shipping is not None:
            shipper = LaneShipper(owned, self._shipping, TaskHealth(f"export-{owned.lane}"))
            self._ships[owned.lane] = (shipper, spawn_watched(shipper.run, shipper.health))
        main_lanes = self._main_lanes if self._lanes.is_overflow(owned.lane) else None
        run = LaneRun(
            state, self._database, self._store, self._journal, self._commit, self._sinks, self._policy,
            TaskHealth(f"lane-{owned.lane}"), main_lanes=main_lanes, shipper=shipper,
        )  # fmt: skip
        task = spawn_watched(run.run, run.health)
        self._runs[owned.lane] = (run, task)
        _log.info("lane-taken", lane=owned.lane, epoch=owned.epoch, cursor=state.cursor)
        return True

    def _let_go(self, lane: str) -> None:
        """Begin to give the lane up. That may take as long as a batch and an export: nobody waits for it here."""
        run, task = self._runs.pop(lane)
        ship = self._ships.pop(lane, None)
        health = TaskHealth(f"lane-handover-{lane}")
        handover = spawn_watched(lambda: self._hand_over(run, task, ship), health)
        self._handovers[lane] = handover
        handover.add_done_callback(lambda _: self._handovers.pop(lane))

    async def _hand_over(
        self, run: LaneRun, task: asyncio.Task[None], ship: tuple[LaneShipper, asyncio.Task[None]] | None
    ) -> None:
        lane = run.owned.lane
        run.stop()
        if not run.health.is_silent():
            await asyncio.wait([task], timeout=run.health.limit_s)
        if not task.done():  # it hangs, and would not notice: its next owner starts from the cursor
            _log.error("lane.hung", lane=lane, seconds=round(run.health.silent_seconds()))
            task.cancel()
        done = await asyncio.gather(task, return_exceptions=True)
        error = done[0]
        if ship is not None:  # after the lane: its last batch wants to go, too
            await self._end_shipping(lane, *ship)
        if isinstance(error, LaneLost):
            _log.info("lane-lost", lane=lane, epoch=run.owned.epoch)
        elif isinstance(error, BaseException):
            self._leader.health.failed(error)
            _log.error("lane-failed", lane=lane, error=f"{type(error).__name__}: {error}")
        try:
            async with self._database.worker() as tx:
                await self._store.release(tx, run.owned, run.projected)
        except Busy:
            _log.warning("lane-release-unheard", lane=lane, detail="its lease will run out by itself")

    async def _end_shipping(self, lane: str, shipper: LaneShipper, task: asyncio.Task[None]) -> None:
        """One more try, then whatever is left waits for the lane's next owner."""
        shipper.stop()
        await asyncio.wait([task], timeout=_LAST_SHIPMENT_S)
        task.cancel()
        ended = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
            self._leader.health.failed(ended)
            _log.error("shipper-failed", lane=lane, error=f"{type(ended).__name__}: {ended}")
