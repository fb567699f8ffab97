"""JobWorker: start, stop, and the loop between. See docs/states.md for what can happen to a job."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import socket
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from handbill.infra.redis import RedisError
from handbill.jobs.cron import Schedulers
from handbill.jobs.defaults import Limit
from handbill.jobs.model import Job
from handbill.jobs.queue import Queues
from handbill.jobs.worker.calls import Calls, Claimed, Settled
from handbill.jobs.worker.context import AnyHandler, JobContext, OnFailed
from handbill.jobs.worker.doorbell import Doorbell
from handbill.jobs.worker.pool import CpuPool
from handbill.jobs.worker.renewal import Holdings, Renewal
from handbill.jobs.worker.running import Outcome, Running
from handbill.kit.errors import Busy, HandbillError
from handbill.kit.tasks import BackgroundTask
from handbill.kit.telemetry import logs, metrics

_log = logs.get("jobs.worker")
T = TypeVar("T")

IDLE_LOOK_S = 5.0
"""Between two tries of a dispatcher after an error."""
LOOK_FOR_DEAD_S = 0.5
"""How often workers that fell silent are looked for."""
STUBBORN_S = 5.0
"""How long a handler may ignore its interruption at stop before its job is handed back over its head."""
REFUSALS = 5
"""How often a script may be refused before its job is left to the sweep: one odd job must not hold a lane for ever."""
ANY = "*"
"""The handler under this name takes every job that has none of its own."""


class JobWorker:
    """Runs the jobs of one queue. `handlers` by job name; `concurrency` lanes; a Chore for the worker shell."""

    def __init__(
        self,
        queues: Queues,
        queue_name: str,
        handlers: Mapping[str, AnyHandler],
        *,
        concurrency: int | None = None,
        on_failed: OnFailed | None = None,
        lock_ms: int = 30_000,
        stalled_ms: int = 30_000,
        grace_s: float = 30.0,
        name: str | None = None,
        limit: Limit | None = None,
        pool: CpuPool | None = None,
    ) -> None:
        self.queue = queues.queue(queue_name)
        self.name = f"jobs:{queue_name}"
        self.worker = name or f"{socket.gethostname()}-{os.getpid()}"
        self.ready = asyncio.Event()
        self.concurrency = concurrency or self.queue.defaults.concurrency
        self._handlers = dict(handlers)
        self._on_failed = on_failed
        self._lock_ms = lock_ms
        self._stalled_ms = stalled_ms
        self._grace_s = grace_s
        self._limit = limit or self.queue.defaults.limit
        self._pool = pool or CpuPool()
        self._own_pool = pool is None
        self._schedulers = Schedulers(queues)
        self._running: dict[str, Running] = {}
        self._lanes: set[asyncio.Task[None]] = set()
        self._closing = False
        self._filling = asyncio.Lock()
        self._patience_ends = float("inf")
        self._under_way = 0
        self._mixed = False
        self._sweep_due = 0.0
        self._dispatcher = BackgroundTask(self.name, self._fill_lane)
        self.health = self._dispatcher.health
        self._tasks: list[BackgroundTask] = []
        self._seconds = metrics.JOB_SECONDS.labels(queue_name)
        self._ended = {kind: metrics.JOBS_ENDED.labels(queue_name, kind) for kind in _KINDS}

    # --- start and stop
    async def start(self) -> None:
        worker_id = uuid.uuid4().hex
        queue = self.queue
        self._calls = Calls(
            queue, worker_id, name=self.worker, slots=self.concurrency, lock_ms=self._lock_ms, limit=self._limit
        )
        self._bell = Doorbell(queue.redis, queue.keys, queue.keys.client_name(self.worker), self._has_free_lane)
        self._holdings = Holdings(queue.keys, worker_id, self._lock_ms, lost=self._lost, aborted=self._aborted)
        self._renewal = Renewal.of(queue.redis)
        self._renewal.join(self._holdings)
        self._tasks = [
            BackgroundTask(f"{self.name}:listen", self._bell.listen),
            BackgroundTask(f"{self.name}:sweep", self._sweep, period_s=min(self._stalled_ms / 1000, LOOK_FOR_DEAD_S)),
        ]
        for task in (*self._tasks, self._dispatcher):
            await task.start()
        self.ready.set()
        _log.info("worker-started", queue=queue.name, worker=self.worker, lanes=self.concurrency)

    async def stop(self) -> None:
        """Stop fetching; let running jobs end; hand back those that do not within the grace. Nothing stays active."""
        if not self._tasks or self._closing:
            return
        self._closing = True
        self._patience_ends = time.monotonic() + self._grace_s + STUBBORN_S
        self._bell.ring()
        await asyncio.gather(*(task.stop() for task in self._tasks))
        async with self._filling:  # a job that is being claimed gets its lane
            await self._dispatcher.stop()
        if self._lanes:
            await asyncio.wait(self._lanes, timeout=self._grace_s)
        for running in list(self._running.values()):
            running.interrupt("stopping")
        if self._lanes:
            await asyncio.wait(self._lanes, timeout=STUBBORN_S)
        for running in list(self._running.values()):
            _log.error("job-will-not-stop", queue=self.queue.name, job=running.job.id, kept="handed back")
            await self._insist(lambda again, r=running: self._calls.hand_back(r.job, r.token, again=again))  # type: ignore[misc]
        await self._renewal.leave(self._holdings)
        if self._own_pool:
            await self._pool.stop()
        with contextlib.suppress(HandbillError, RedisError):
            await self._calls.recount({})
            await self._calls.leave()
            await self._calls.wake()  # a marker we took may have been meant for somebody else
        _log.info("worker-stopped", queue=self.queue.name, worker=self.worker)

    def abort(self, job_id: str, reason: str = "aborted") -> bool:
        """Stop a job that runs here; it fails for good. False if it does not run here."""
        for running in self._running.values():
            if running.job.id == job_id:
                running.interrupt("aborted", reason)
                return True
        return False

    # --- fetching
    def _has_free_lane(self) -> bool:
        return len(self._lanes) < self.concurrency

    async def _fill_lane(self) -> None:
        """Start one job; when there is none to start, wait for the bell."""
        async with self._filling:
            if self._closing or await self._claim():
                return
        await self._bell.wait(IDLE_LOOK_S)

    async def _claim(self) -> bool:
        """Claim a job and open its lane; False when there is no job or no free lane."""
        self._bell.answer()
        if not self._has_free_lane():
            return False
        token = self._calls.token()
        claimed = await self._insist(lambda again: self._calls.claim(token, again=again))
        if claimed is None:
            return True
        if claimed.job is None:
            self._rest(claimed)
            return False
        self._open_lane(claimed)
        return True

    def _open_lane(self, claimed: Claimed) -> None:
        lane = asyncio.create_task(self._lane(claimed), name=f"{self.name}:lane")
        self._lanes.add(lane)
        lane.add_done_callback(self._close_lane)
        self._bell.lanes_changed()

    def _close_lane(self, lane: asyncio.Task[None]) -> None:
        self._lanes.discard(lane)
        self._bell.lanes_changed()
        if not lane.cancelled() and (error := lane.exception()) is not None:
            self.health.failed(error)
            _log.error(
                "lane-broke", queue=self.queue.name, error=repr(error), kept="its job is swept up when its lock ends"
            )
            self._bell.ring()

    def _rest(self, claimed: Claimed) -> None:
        if claimed.wait_ms:
            self._bell.ring_in(claimed.wait_ms)
        if claimed.due_ms:
            self._bell.ring_in(claimed.due_ms)

    # --- a lane
    async def _lane(self, claimed: Claimed) -> None:
        me = asyncio.current_task()
        assert me is not None
        while claimed.job is not None:
            running = Running(claimed.job, claimed.token, me)
            stale = self._running.get(self._holdings.tokens.get(claimed.job.wire_id, ""))
            if stale is not None:  # a lane of our own lost its lock, and the job came round to us again
                stale.interrupt("lost")
            self._running[claimed.token] = running
            self._holdings.tokens[claimed.job.wire_id] = claimed.token
            try:
                claimed = await self._one(running)
            finally:
                self._running.pop(running.token, None)
                if self._holdings.tokens.get(running.job.wire_id) == running.token:
                    self._holdings.tokens.pop(running.job.wire_id, None)
            self.health.processed()
        self._rest(claimed)
        if not self._closing:
            self._bell.lanes_changed()

    async def _one(self, running: Running) -> Claimed:
        job = running.job
        if self._closing:
            return await self._end(running, Outcome("back"))
        if job.scheduler is not None:
            await self._insist(lambda again: self._schedulers.advance(job))
        if self._calls.saw_tenant and not self._mixed:
            self._mixed = True
            await self._insist(lambda again: self._calls.mark_mixed())
        began = time.perf_counter()
        handler = self._handlers.get(job.name) or self._handlers.get(ANY)
        outcome = await running.run(handler, JobContext(self.queue, job, self.worker), self._pool)
        self._seconds.observe(time.perf_counter() - began)
        return await self._end(running, outcome)

    async def _end(self, running: Running, outcome: Outcome) -> Claimed:
        """Write the outcome and claim the next job in one step."""
        job, nothing = running.job, Claimed("", None)
        if outcome.kind == "gone":
            self._ended["gone"].inc()
            _log.warning("job-lock-lost", queue=job.queue, job=job.id, kept="another worker runs it")
            self._bell.ring()
            return nothing
        onward = None if self._closing else self._calls.token()
        settled = await self._insist(lambda again: self._settle(running, outcome, onward, again))
        if settled is None:
            _log.error("job-not-settled", queue=job.queue, job=job.id, kept="it is swept up when its lock ends")
            return nothing
        if settled.verdict < 0:
            self._ended["gone"].inc()
            _log.warning("job-not-ours", queue=job.queue, job=job.id, verdict=settled.verdict, lost=outcome.kind)
        else:
            self._ended[outcome.kind].inc()
            if outcome.kind == "failed":
                await self._tell(job, outcome)
        return settled.next

    def _settle(self, running: Running, outcome: Outcome, onward: str | None, again: bool) -> Awaitable[Settled]:
        job, token = running.job, running.token
        if outcome.kind == "completed":
            return self._calls.finish(job, token, onward, value=outcome.value, failed=False, again=again)
        traces = (*job.traceback, outcome.trace) if outcome.trace else job.traceback
        if outcome.kind == "failed":
            return self._calls.finish(
                job, token, onward, value=outcome.reason, failed=True, traces=traces or ("",), again=again
            )
        if outcome.kind == "again":
            return self._calls.delay(
                job, token, onward, delay_ms=outcome.delay_ms, reason=outcome.reason, traces=traces,
                free=outcome.free, again=again,
            )  # fmt: skip
        return self._calls.hand_back(job, token, again=again)

    async def _tell(self, job: Job, outcome: Outcome) -> None:
        _log.warning(
            "job-failed", queue=job.queue, job=job.id, name=job.name, tenant=job.tenant_id, reason=outcome.reason
        )
        if self._on_failed is None:
            return
        try:
            told = self._on_failed(job, outcome.reason, outcome.trace)
            if inspect.isawaitable(told):
                await told
        except Exception as error:  # noqa: BLE001 (the listener's trouble is not the job's; the failed set keeps it)
            _log.error("on-failed-broke", queue=job.queue, job=job.id, error=repr(error))

    # --- what the thread and the clock say
    def _lost(self, wire_ids: Sequence[str]) -> None:
        for running in list(self._running.values()):
            if running.job.wire_id in wire_ids and running.token == self._holdings.tokens.get(running.job.wire_id):
                running.interrupt("lost")

    def _aborted(self, wanted: Sequence[tuple[str, str]]) -> None:
        reasons = dict(wanted)
        for running in list(self._running.values()):
            if running.job.wire_id in reasons:
                running.interrupt("aborted", reasons[running.job.wire_id])

    async def _sweep(self) -> None:
        """Bring back jobs of workers that are gone: of one that fell silent at once, of others when their locks end."""
        released = await self._calls.release_dead()
        if not released and time.monotonic() < self._sweep_due:
            return
        self._sweep_due = time.monotonic() + self._stalled_ms / 1000
        for wire_id in await self._calls.sweep(self._stalled_ms):
            self._ended["stalled"].inc()
            _log.warning("job-stalled", queue=self.queue.name, job=wire_id, kept="it waits again, one attempt less")
        if not self._under_way:
            await self._calls.recount(self._held())

    def _held(self) -> dict[str, int]:
        tenants = (running.job.tenant_id for running in self._running.values())
        return dict(Counter("" if tenant is None else str(tenant) for tenant in tenants))

    async def _insist(self, call: Callable[[bool], Awaitable[T]]) -> T | None:
        """Call until Redis has answered. None when patience at stop ran out, or Redis keeps saying no."""
        again, wait, refused = False, 0.02, 0
        self._under_way += 1
        try:
            while True:
                try:
                    return await call(again)
                except Busy as error:
                    again = again or getattr(error, "maybe_done", False)
                    if time.monotonic() + wait > self._patience_ends:
                        return None
                    self.health.failed(error)
                except (RedisError, HandbillError) as error:
                    self.health.failed(error)
                    _log.error("queue-script-refused", queue=self.queue.name, error=str(error))
                    refused += 1
                    if self._closing or refused >= REFUSALS:
                        return None
                    wait = 1.0
                await asyncio.sleep(wait)
                wait = min(wait * 2, 1.0)
        finally:
            self._under_way -= 1


_KINDS = ("completed", "failed", "again", "back", "gone", "stalled")
