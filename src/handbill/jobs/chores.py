"""The room's loops, each a small service with start and stop. The worker's shell runs them; the leader runs some."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from handbill.infra.redis import Redis, SubscriptionTask
from handbill.jobs.cron import Schedule, Schedulers
from handbill.jobs.dead.ledger import Ledger
from handbill.jobs.dead.sweeper import Sweeper
from handbill.jobs.gauges import Gauges
from handbill.jobs.keys import QueueKeys
from handbill.jobs.outbox.producer import WAKE_CHANNEL
from handbill.jobs.outbox.relay import Pace, Relay
from handbill.kit.task_health import TaskHealth
from handbill.kit.tasks import BackgroundTask
from handbill.kit.telemetry import logs

_log = logs.get("chores")

FIRST_WAIT_S = 0.005


class Loop(BackgroundTask):
    """A background task as a class: `turn` is one run."""

    def __init__(self, name: str, health: TaskHealth | None = None) -> None:
        super().__init__(name, self.turn, health=health)

    async def turn(self) -> None:
        """One round, the pause at its end included."""
        raise NotImplementedError


class RelayChore(Loop):
    """Relays while there is work; otherwise waits for a wake-up, the next due time or the poll, whichever is first."""

    def __init__(self, relay: Relay, redis: Redis, *, health: TaskHealth | None = None, name: str = "relay") -> None:
        super().__init__(name, health)
        self._relay = relay
        self._redis = redis
        self._wake = asyncio.Event()
        self._pause = FIRST_WAIT_S
        self._listener = SubscriptionTask(f"{name}-wake", redis, (WAKE_CHANNEL,), self._on_wake)

    async def start(self) -> None:
        await self._listener.start()
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        await self._listener.stop()

    async def turn(self) -> None:
        await self._listener.subscribed.wait()  # first listen, then look: nothing can fall in between
        self._wake.clear()
        pace = await self._relay.cycle()
        for error in pace.errors:
            self.health.failed(error)
        self.ready.set()
        if pace.relayed:
            self.health.processed(pace.relayed)
            self._pause = FIRST_WAIT_S
            return
        try:
            await asyncio.wait_for(self._wake.wait(), self._patience(pace))
            self._pause = FIRST_WAIT_S
        except TimeoutError:
            self._pause = min(self._pause * 2, self._relay.policy.hungry_s)

    def _patience(self, pace: Pace) -> float:
        """Work held back (no room, no token) is looked at again soon, and ever less often while nothing changes."""
        poll = self._relay.policy.poll_s
        if pace.hungry:
            return min(self._pause, poll)
        return poll if pace.next_due is None else min(poll, max(pace.next_due, FIRST_WAIT_S))

    def _on_wake(self, channel: str, message: bytes) -> None:
        self._wake.set()


class LedgerChore(Loop):
    """Follows the events of every known queue: dead letters, and outbox rows whose job is over."""

    def __init__(
        self,
        ledger: Ledger,
        redis: Redis,
        queues: Callable[[], Awaitable[Sequence[str]]],
        *,
        prefix: str = "bull",
        block_s: float = 1.0,
        refresh_s: float = 5.0,
        health: TaskHealth | None = None,
        name: str = "ledger",
    ) -> None:
        super().__init__(name, health)
        self._ledger = ledger
        self._redis = redis
        self._queues = queues
        self._prefix = prefix
        self._block_s = block_s
        self._refresh_s = refresh_s

    async def turn(self) -> None:
        """Catch up with every queue, then listen on one connection until it is time to look for new queues."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._refresh_s
        names = list(await self._queues())
        await self._catch_up(names)
        self.ready.set()
        if not names:
            await asyncio.sleep(self._block_s)
            return
        streams = {QueueKeys(self._prefix, queue)["events"]: queue for queue in names}
        async with self._redis.connection() as line:
            while loop.time() < until:
                places = [self._ledger.positions.get(queue, "0-0") for queue in names]
                command: tuple[str | int, ...]
                command = ("XREAD", "COUNT", 1, "BLOCK", int(self._block_s * 1000), "STREAMS", *streams, *places)
                news = await line.call(*command, timeout=self._block_s + 5)
                self.health.heartbeat()
                if news and not await self._catch_up([streams[key.decode()] for key, _ in news]):
                    await asyncio.sleep(0.05)  # another ledger is reading them

    async def _catch_up(self, names: Sequence[str]) -> int:
        """Read each to its end. What is wrong with one queue is told when the others have been read."""
        total, trouble = 0, None
        for queue in names:
            try:
                total += await self._ledger.read_all(queue)
            except Exception as error:  # noqa: BLE001 - raised below, after the neighbours had their turn
                trouble = error
        if total:
            self.health.processed(total)
        if trouble is not None:
            raise trouble
        return total


class SweepChore(Loop):
    """Now and then: rows whose job Redis forgot, failed jobs without a dead letter, effects old enough to forget."""

    def __init__(
        self,
        sweeper: Sweeper,
        ledger: Ledger,
        queues: Callable[[], Awaitable[Sequence[str]]],
        *,
        every_s: float = 30.0,
        health: TaskHealth | None = None,
        name: str = "sweep",
    ) -> None:
        super().__init__(name, health)
        self._sweeper = sweeper
        self._ledger = ledger
        self._queues = queues
        self._every_s = every_s
        self._rounds = 0

    async def turn(self) -> None:
        trouble: Exception | None = None
        for queue in await self._queues():
            try:
                if count := await self._sweeper.sweep(queue):
                    self.health.processed(count)
                await self._ledger.reconcile(queue)
            except Exception as error:  # noqa: BLE001 - raised below, after the other queues had their turn
                _log.error("sweep.queue_failed", queue=queue, error=f"{type(error).__name__}: {error}")
                trouble = error
            self.health.heartbeat()
        if self._rounds % 100 == 0:
            await self._sweeper.prune()
        self._rounds += 1
        self.ready.set()
        if trouble is not None:
            raise trouble
        await self.rest(self._every_s)


class CronChore(Loop):
    """Keeps the schedules in place: Redis may be wiped, and somebody may have removed one by hand."""

    def __init__(
        self,
        schedulers: Schedulers,
        schedules: Sequence[Schedule],
        *,
        every_s: float = 60.0,
        health: TaskHealth | None = None,
        name: str = "cron",
    ) -> None:
        super().__init__(name, health)
        self._schedulers = schedulers
        self._schedules = tuple(schedules)
        self._every_s = every_s

    async def turn(self) -> None:
        changed = await self._schedulers.ensure(self._schedules)
        if changed:
            _log.info("schedules-placed", schedules=changed)
            self.health.processed(len(changed))
        self.ready.set()
        await self.rest(self._every_s)


class GaugeChore(Loop):
    """Measures depth and age, for the Prometheus page and its alerts."""

    def __init__(
        self, gauges: Gauges, *, every_s: float = 15.0, health: TaskHealth | None = None, name: str = "gauges"
    ) -> None:
        super().__init__(name, health)
        self._gauges = gauges
        self._every_s = every_s

    async def turn(self) -> None:
        await self._gauges.measure()
        self.health.processed()
        self.ready.set()
        await self.rest(self._every_s)
