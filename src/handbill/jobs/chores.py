"""The room's loops, each a small service with start and stop. The worker's shell runs them; the leader runs some."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from handbill.infra.redis import Redis
from handbill.jobs.cron import Schedule, Schedulers
from handbill.jobs.dead.ledger import Ledger
from handbill.jobs.dead.sweeper import Sweeper
from handbill.jobs.gauges import Gauges
from handbill.jobs.keys import QueueKeys
from handbill.jobs.outbox.producer import WAKE_CHANNEL
from handbill.jobs.outbox.relay import Pace, Relay
from handbill.kit.errors import Busy
from handbill.kit.pulse import Pulse
from handbill.kit.telemetry import logs

_log = logs.get("chores")

FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 5.0


class Loop:
    """Does one thing again and again. An error is told, counted and followed by a growing pause, never by the end."""

    def __init__(self, name: str, pulse: Pulse | None = None) -> None:
        self.name = name
        self.ready = asyncio.Event()
        self._pulse = pulse or Pulse(name)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self.name)

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def turn(self) -> None:
        """One round, the pause at its end included."""
        raise NotImplementedError

    async def _run(self) -> None:
        pause = 0.1
        while True:
            self._pulse.beat()
            try:
                await self.turn()
                pause = 0.1
            except Exception as error:  # noqa: BLE001 - the shell counts errors and ends the process when there are too many
                self._pulse.failed(error)
                word = _log.warning if isinstance(error, Busy) else _log.error
                word("chore-error", chore=self.name, error=f"{type(error).__name__}: {error}")
                self.ready.set()  # an engine that is away must not keep the worker from saying that it is up
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE_S)


class RelayChore(Loop):
    """Relays while there is work; otherwise waits for a wake-up, the next due time or the poll, whichever is first."""

    def __init__(self, relay: Relay, redis: Redis, *, pulse: Pulse | None = None, name: str = "relay") -> None:
        super().__init__(name, pulse)
        self._relay = relay
        self._redis = redis
        self._wake = asyncio.Event()
        self._listening = asyncio.Event()
        self._pause = FIRST_PAUSE_S
        self._listener: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._listener = asyncio.create_task(self._listen(), name=f"{self.name}-wake")
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.gather(self._listener, return_exceptions=True)

    async def turn(self) -> None:
        await self._listening.wait()  # first listen, then look: nothing can fall in between
        self._wake.clear()
        pace = await self._relay.cycle()
        self.ready.set()
        if pace.relayed:
            self._pulse.processed(pace.relayed)
            self._pause = FIRST_PAUSE_S
            return
        try:
            await asyncio.wait_for(self._wake.wait(), self._patience(pace))
            self._pause = FIRST_PAUSE_S
        except TimeoutError:
            self._pause = min(self._pause * 2, self._relay.policy.hungry_s)

    def _patience(self, pace: Pace) -> float:
        """Work held back (no room, no token) is looked at again soon, and ever less often while nothing changes."""
        poll = self._relay.policy.poll_s
        if pace.hungry:
            return min(self._pause, poll)
        return poll if pace.next_due is None else min(poll, max(pace.next_due, FIRST_PAUSE_S))

    async def _listen(self) -> None:
        async with self._redis.subscribe(WAKE_CHANNEL) as messages:
            self._listening.set()
            async for _ in messages:
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
        pulse: Pulse | None = None,
        name: str = "ledger",
    ) -> None:
        super().__init__(name, pulse)
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
                self._pulse.beat()
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
            self._pulse.processed(total)
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
        pulse: Pulse | None = None,
        name: str = "sweep",
    ) -> None:
        super().__init__(name, pulse)
        self._sweeper = sweeper
        self._ledger = ledger
        self._queues = queues
        self._every_s = every_s
        self._rounds = 0

    async def turn(self) -> None:
        if count := await self._sweeper.sweep():
            self._pulse.processed(count)
        for queue in await self._queues():
            await self._ledger.reconcile(queue)
        if self._rounds % 100 == 0:
            await self._sweeper.prune()
        self._rounds += 1
        self.ready.set()
        await _rest(self._every_s, self._pulse)


class CronChore(Loop):
    """Keeps the schedules in place: Redis may be wiped, and somebody may have removed one by hand."""

    def __init__(
        self,
        schedulers: Schedulers,
        schedules: Sequence[Schedule],
        *,
        every_s: float = 60.0,
        pulse: Pulse | None = None,
        name: str = "cron",
    ) -> None:
        super().__init__(name, pulse)
        self._schedulers = schedulers
        self._schedules = tuple(schedules)
        self._every_s = every_s

    async def turn(self) -> None:
        changed = await self._schedulers.ensure(self._schedules)
        if changed:
            _log.info("schedules-placed", schedules=changed)
            self._pulse.processed(len(changed))
        self.ready.set()
        await _rest(self._every_s, self._pulse)


class GaugeChore(Loop):
    """Measures depth and age, for the Prometheus page and its alerts."""

    def __init__(
        self, gauges: Gauges, *, every_s: float = 15.0, pulse: Pulse | None = None, name: str = "gauges"
    ) -> None:
        super().__init__(name, pulse)
        self._gauges = gauges
        self._every_s = every_s

    async def turn(self) -> None:
        await self._gauges.measure()
        self._pulse.processed()
        self.ready.set()
        await _rest(self._every_s, self._pulse)


async def _rest(seconds: float, pulse: Pulse) -> None:
    """A long pause in short steps, so that the shell sees the loop alive."""
    while seconds > 0:
        await asyncio.sleep(min(seconds, 5.0))
        pulse.beat()
        seconds -= 5.0
