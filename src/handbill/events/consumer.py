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
from handbill.events.shipping import LaneShipper
from handbill.events.shipping_insert import Shipping
from handbill.events.store import EventStore
from handbill.infra.journal.lanes import Lanes
from handbill.infra.journal.port import Journal
from handbill.infra.postgres import Database
from handbill.kit.errors import Busy
from handbill.kit.ids import Ids
from handbill.kit.pulse import Pulse
from handbill.kit.telemetry import logs

_log = logs.get("consumer")
_ROUND_S = 60.0
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
        pulse: Pulse,
        policy: ConsumerPolicy | None = None,
        ids: Ids | None = None,
        shipping: Shipping | None = None,
    ) -> None:
        self._database = database
        self._journal = journal
        self._lanes = lanes
        self._sinks = tuple(sinks)
        self._worker = worker
        self._pulse = pulse
        self._policy = policy or ConsumerPolicy()
        self._store = EventStore()
        self._lease = timedelta(seconds=self._policy.lease_s)
        self._shipping = shipping
        self._commit = Commit(database, self._store, self._sinks, ids or Ids(), self._lease, ships=shipping is not None)
        self._runs: dict[str, tuple[LaneRun, asyncio.Task[None]]] = {}
        self._ships: dict[str, tuple[LaneShipper, asyncio.Task[None]]] = {}
        self._leader: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self.ready = asyncio.Event()

    async def start(self) -> None:
        self._stopping.clear()
        self._leader = asyncio.create_task(self._lead(), name="consume-lead")

    async def stop(self) -> None:
        """Finish the batches under way, hand the lanes back, and go."""
        self._stopping.set()
        if self._leader is not None:
            await asyncio.gather(self._leader, return_exceptions=True)
            self._leader = None
        for run, _ in self._runs.values():
            run.stop()
        await asyncio.gather(*(task for _, task in self._runs.values()), return_exceptions=True)
        for shipper, _ in self._ships.values():
            shipper.stop()
        for lane in list(self._runs):
            await self._let_go(lane)
        try:
            async with self._database.worker() as tx:
                await self._store.leave(tx, self._worker, self._lease * 3)
        except Busy:
            _log.warning("consumer-left-unheard", worker=self._worker)

    def lanes(self) -> list[str]:
        """The lanes this process owns now."""
        return sorted(self._runs)

    async def _lead(self) -> None:
        """Keep the leases, notice lost lanes, and take or give lanes until everybody has a fair share."""
        every = self._policy.lease_s / 4
        known = False
        while not self._stopping.is_set():
            self._pulse.beat()
            try:
                if not known:
                    async with self._database.worker() as tx:
                        for lane, number in self._lanes.all():
                            await self._store.add_lane(tx, lane, number)
                    known = True
                async with asyncio.timeout(_ROUND_S):  # a round that hangs would cost every lane its lease
                    await self._share()
                self.ready.set()
            except Busy as error:
                self._pulse.failed(error)
                _log.warning("consumer-waits", reason=error.code)
            except Exception as error:  # noqa: BLE001 - whoever leads must not die unheard: told, counted, tried again
                self._pulse.failed(error)
                _log.error("consumer-broken", error=f"{type(error).__name__}: {error}")
            try:
                await asyncio.wait_for(self._stopping.wait(), every * (0.8 + 0.4 * random.random()))
            except TimeoutError:
                continue

    async def _share(self) -> None:
        async with self._database.worker() as tx:
            alive = await self._store.announce(tx, self._worker, self._lease)
            ours = await self._store.renew(tx, self._worker, list(self._runs), self._lease)
        for lane, (run, task) in list(self._runs.items()):
            dead = task.done() or (lane in self._ships and self._ships[lane][1].done())
            if dead or ours.get(lane) != run.owned.epoch:
                await self._let_go(lane)
        share = -(-len(self._lanes.all()) // max(alive, 1))
        while len(self._runs) > share:
            await self._let_go(next(reversed(self._runs)))
        while len(self._runs) < share and await self._take():
            pass

    async def _take(self) -> bool:
        wanted = [lane for lane, _ in self._lanes.all() if lane not in self._runs]
        async with self._database.worker() as tx:
            state = await self._store.claim(tx, wanted, self._worker, self._lease)
        if state is None:
            return False
        owned: Owned = state.owned
        shipper = None
        if self._shipping is not None:
            shipper = LaneShipper(owned, self._shipping, self._pulse)
            self._ships[owned.lane] = (shipper, asyncio.create_task(shipper.run(), name=f"ship-{owned.lane}"))
        run = LaneRun(
            state, self._database, self._store, self._journal, self._commit, self._sinks, self._policy, self._pulse,
            overflow=self._lanes.is_overflow(owned.lane), shipper=shipper,
        )  # fmt: skip
        task = asyncio.create_task(run.run(), name=f"lane-{owned.lane}")
        self._runs[owned.lane] = (run, task)
        _log.info("lane-taken", lane=owned.lane, epoch=owned.epoch, cursor=state.cursor)
        return True

    async def _let_go(self, lane: str) -> None:
        run, task = self._runs.pop(lane)
        run.stop()
        done = await asyncio.gather(task, return_exceptions=True)
        error = done[0]
        if lane in self._ships:  # after the lane: its last batch wants to go, too
            await self._end_shipping(lane)
        if isinstance(error, LaneLost):
            _log.info("lane-lost", lane=lane, epoch=run.owned.epoch)
        elif isinstance(error, BaseException):
            self._pulse.failed(error)
            _log.error("lane-failed", lane=lane, error=f"{type(error).__name__}: {error}")
        try:
            async with self._database.worker() as tx:
                await self._store.release(tx, run.owned, run.projected)
        except Busy:
            _log.warning("lane-release-unheard", lane=lane, detail="its lease will run out by itself")

    async def _end_shipping(self, lane: str) -> None:
        """One more try, then whatever is left waits for the lane's next owner."""
        shipper, task = self._ships.pop(lane)
        shipper.stop()
        await asyncio.wait([task], timeout=_LAST_SHIPMENT_S)
        task.cancel()
        ended = (await asyncio.gather(task, return_exceptions=True))[0]
        if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
            self._pulse.failed(ended)
            _log.error("shipper-failed", lane=lane, error=f"{type(ended).__name__}: {ended}")
