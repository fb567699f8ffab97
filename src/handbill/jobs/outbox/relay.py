"""The fair relay: from the outbox to the queues, each tenant in its turn.

A cycle takes rows (`FOR UPDATE SKIP LOCKED`), adds their jobs, marks the rows relayed, and commits. Whatever dies in
between leaves the rows pending; the next cycle adds the same ids, which the queue knows already. So nothing is lost,
and a job that ran in the meantime is recognised by its outbox id (`handled_once`). Several relays may run: a row that
one of them holds is invisible to the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from handbill.infra.postgres import Database, Tx
from handbill.infra.redis import Redis
from handbill.jobs import store
from handbill.jobs.outbox import shares
from handbill.jobs.outbox.admission import Admission
from handbill.jobs.outbox.handover import Handover
from handbill.jobs.queue import Queues
from handbill.jobs.records import Lane, Taken
from handbill.kit import task_health
from handbill.kit.clock import Clock, SystemClock
from handbill.kit.errors import Busy
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs, metrics

_log = logs.get("relay")
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0


class RelayPolicy(msgspec.Struct, frozen=True):
    """The numbers of the relay; `per_tenant` binds only while others want the same room."""

    per_tenant: int = 50
    per_cycle: int = 500
    lanes: int = 500
    horizon_s: float = 1.0
    poll_s: float = 1.0
    hungry_s: float = 0.1


class Pace(msgspec.Struct, frozen=True):
    """What a cycle came to: jobs relayed, whether due work was held back, and when the next delayed row is due."""

    relayed: int = 0
    hungry: bool = False
    next_due: float | None = None
    errors: tuple[Exception, ...] = ()
    """Why queues could not be served; the others were."""

    def plus(self, other: Pace) -> Pace:
        dues = [due for due in (self.next_due, other.next_due) if due is not None]
        errors = self.errors + other.errors
        return Pace(self.relayed + other.relayed, self.hungry or other.hungry, min(dues, default=None), errors)


class _Pause(msgspec.Struct, frozen=True):
    """A queue that could not be served is left alone until then; the pause grows while it keeps failing."""

    seconds: float
    until: float


class Relay:
    def __init__(
        self,
        database: Database,
        redis: Redis,
        queues: Queues,
        admission: Admission,
        *,
        slots: Callable[[str], int],
        policy: RelayPolicy | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
    ) -> None:
        self._database = database
        self._redis = redis
        self._queues = queues
        self._admission = admission
        self._slots = slots
        self._handover = Handover(clock, ids)
        self.policy = policy or RelayPolicy()
        self._clock = clock or SystemClock()
        self._turn: dict[str, int] = {}
        self._pauses: dict[str, _Pause] = {}

    async def cycle(self) -> Pace:
        """Once through every queue that has pending work.

        A queue that raises is tried again after a pause of its own; `errors` of the result say why. Raises only Busy,
        if every queue that was tried met it: then the engine is at fault.
        """
        async with self._database.worker() as tx:
            names = await store.pending_queues(tx)
        self._pauses = {name: pause for name, pause in self._pauses.items() if name in names}
        pace, tried = Pace(), 0
        for name in names:
            left = self._pauses[name].until - self._clock.monotonic() if name in self._pauses else 0.0
            if left > 0:
                pace = pace.plus(Pace(next_due=left))
                continue
            tried += 1
            pace = pace.plus(await self._try(name))
            task_health.heartbeat()
        if tried and len(pace.errors) == tried and all(isinstance(error, Busy) for error in pace.errors):
            raise pace.errors[0]
        return pace

    async def _try(self, name: str) -> Pace:
        try:
            pace = await self.serve(name)
        except Exception as error:  # noqa: BLE001 - the other queues get their turn; the caller reports it
            seconds = min(self._pauses[name].seconds * 2, LONGEST_PAUSE_S) if name in self._pauses else FIRST_PAUSE_S
            self._pauses[name] = _Pause(seconds, self._clock.monotonic() + seconds)
            _log.error("relay.queue_failed", queue=name, error=f"{type(error).__name__}: {error}", pause_s=seconds)
            return Pace(next_due=seconds, errors=(error,))
        self._pauses.pop(name, None)
        return pace

    async def serve(self, name: str) -> Pace:
        """One cycle of one queue, in one transaction."""
        view = await self._admission.look(name)
        room = self._admission.room(name, view, self._slots(name), self.policy.per_cycle)
        async with self._database.worker() as tx:
            lanes = await self._lanes(tx, name)
            wants = await self._admission.wants(name, view, lanes, self.policy.per_cycle)
            taken, served = await self._take(tx, name, lanes, wants, room)
            if taken:
                await self._handover(tx, self._queues.queue(name), taken, first=view.flooded)
        self._rotate(name, lanes, served)
        for row in taken:
            metrics.OUTBOX_AGE_SECONDS.labels(name).observe(max(0.0, row.age + min(0.0, row.wait)))
        metrics.OUTBOX_RELAYED.labels(name).inc(len(taken))
        return self._pace(lanes, taken)

    async def _lanes(self, tx: Tx, name: str) -> list[Lane]:
        """The next lanes in the round, beginning behind the one served last."""
        most, horizon, turn = self.policy.lanes, self.policy.horizon_s, self._turn.get(name, -1)
        lanes = await store.pending_lanes(tx, name, turn, most, horizon)
        if turn >= 0 and len(lanes) < most:
            lanes += await store.pending_lanes(tx, name, -1, most - len(lanes), horizon, turn)
        return lanes

    async def _take(
        self, tx: Tx, name: str, lanes: Sequence[Lane], wants: Sequence[int], room: int
    ) -> tuple[list[Taken], list[int]]:
        """Fill the room evenly; what a lane leaves unused goes to those that have more."""
        rows: dict[int, list[Taken]] = {}
        left = {lane.number: want for lane, want in zip(lanes, wants, strict=True) if want > 0}
        cap, moment = self.policy.per_tenant, 0
        while room > 0 and left:
            numbers = list(left)
            granted = shares.fill([min(want, cap) for want in left.values()], room)
            asked = [(number, share) for number, share in zip(numbers, granted, strict=True) if share]
            moment = moment or await self._redis.time_ms()
            found = await store.take_pending(
                tx, name, [n for n, _ in asked], [share for _, share in asked], self.policy.horizon_s, moment
            )
            got: dict[int, int] = {}
            for row in found:
                rows.setdefault(row.lane, []).append(row)
                got[row.lane] = got.get(row.lane, 0) + 1
            room -= len(found)
            for number, share in asked:
                left[number] -= got.get(number, 0)
                if got.get(number, 0) < share or left[number] <= 0:
                    del left[number]  # dry, or out of tokens, or held by another relay
            cap = room
        return shares.interleave(list(rows.values())), list(rows)

    def _rotate(self, name: str, lanes: Sequence[Lane], served: Sequence[int]) -> None:
        """Begin behind the last lane served; when nobody was, behind the last one looked at."""
        if served:
            order = {lane.number: place for place, lane in enumerate(lanes)}
            everybody = len(served) == len(lanes) < self.policy.lanes
            self._turn[name] = served[0] if everybody else max(served, key=lambda number: order[number])
        elif lanes:
            self._turn[name] = lanes[-1].number if len(lanes) >= self.policy.lanes else -1

    def _pace(self, lanes: Sequence[Lane], taken: Sequence[Taken]) -> Pace:
        due = sum(lane.due for lane in lanes)
        waits = [max(0.0, lane.wait - self.policy.horizon_s) for lane in lanes if not lane.due]
        return Pace(len(taken), hungry=due > 0, next_due=min(waits, default=None))
