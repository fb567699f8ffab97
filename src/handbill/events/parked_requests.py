"""Replays and drops of parked events as requests: recorded with their job, worked off by the worker portion by portion.

A run records its place and its counts after each portion. Of a replay it records the ids of a portion before it begins
with it: a worker that dies in the portion is followed by one that takes the same ids, sends those that were not sent
and counts each once. A drop deletes and records in one transaction. See docs/states/parked_request.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from handbill.events import dead, parked_store
from handbill.events.dead import DeadLetters, portion_size
from handbill.events.parked_model import (
    NIL,
    Chosen,
    ParkedAction,
    ParkedRequest,
    Replayed,
    ReplayOptions,
    added,
    check_drop,
    report_of,
)
from handbill.events.parked_store import NewParkedRequest, ParkedRun
from handbill.events.reader import EventReader
from handbill.infra.postgres import Database, work
from handbill.jobs.service import Outbox
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, EngineRefused, HandbillError, NotFound, StatementStopped, Throttled
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs
from handbill.tenants.model import RequestStatus
from handbill.tenants.service import QUEUE, Audit

JOB_NAMES = {ParkedAction.REPLAY: "replay-parked", ParkedAction.DROP: "drop-parked"}
MAX_OPEN = 20
"""Requests of one tenant that wait or run."""
TURN_S = 5.0
"""After so long a run gives its slot back: others of the queue get their turn before it goes on."""
TURN_REST_MS = 100
AGAIN_S = 30.0
"""Until the next run of a request that waits for an engine, the journal or its circuit; longer if these say so."""
GIVE_UP_AFTER = timedelta(hours=24)
"""How long a request waits for an engine without a portion done before it has failed."""
ABANDONED_AFTER = timedelta(days=3)
"""Longer than any job lives that makes no progress."""
KEPT_FOR = timedelta(days=30)
"""How long a request that ended can be read."""
PORTION_BYTES = 16 << 20
"""Bodies of one portion of a replay together, if it has more than one."""
MAX_COUNTED = 1_000_000
"""A `total` that is larger is left out: counting has to end soon."""
_ENDED_AT_ONCE = 1_000

_log = logs.get("parked")


class Turn(msgspec.Struct, frozen=True):
    """One run of a request: its status now, and after how long the job comes again if it has not ended."""

    status: RequestStatus
    again_ms: int = 0
    reason: str = ""


class _Superseded(Exception):
    """A later run of the request has taken over: this one's job was delivered again, or the request was ended."""


class ParkedRequests:
    def __init__(
        self, database: Database, outbox: Outbox, audit: Audit, ways_back: DeadLetters, clock: Clock, ids: Ids
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._audit = audit
        self._dead = ways_back
        self._clock = clock
        self._ids = ids
        self._reader = EventReader()

    async def replay(self, tenant_id: int, chosen: Chosen, options: ReplayOptions, *, actor: str) -> ParkedRequest:
        """Record a replay and its job. Raises Throttled while the tenant has too many open requests."""
        empty = report_of(Replayed(0, 0, 0, options.dry_run))
        return await self._open(tenant_id, ParkedAction.REPLAY, chosen, options, empty, actor)

    async def drop(self, tenant_id: int, chosen: Chosen, *, actor: str) -> ParkedRequest:
        """Record a drop and its job. Raises Invalid without a reason and ids, Throttled as `replay` does."""
        check_drop(chosen)
        return await self._open(tenant_id, ParkedAction.DROP, chosen, ReplayOptions(), {"dropped": 0}, actor)

    async def get(self, tenant_id: int, request_id: UUID) -> ParkedRequest:
        """Raises NotFound, for another tenant's request too."""
        async with self._database.tenant(tenant_id) as tx:
            request = await parked_store.read(tx, tenant_id, request_id)
        if request is None:
            raise NotFound("There is no such request about parked events.", code="PARKED_REQUEST_NOT_FOUND")
        return request

    async def run(self, tenant_id: int, request_id: UUID) -> Turn:
        """Go on where the run before stopped, for some seconds. Raises Busy while PostgreSQL is away."""
        run = await self._begin(tenant_id, request_id)
        if run is None:
            return Turn((await self.get(tenant_id, request_id)).status)
        try:
            return await self._work(run)
        except _Superseded:
            return Turn("running", int(AGAIN_S * 1000), "another run of it has begun")
        except (Busy, Throttled) as error:
            return await self._wait(run, error)
        except (HandbillError, EngineRefused) as error:
            return await self._end(run, "failed", _code(run, error))

    async def fail(self, tenant_id: int, request_id: UUID) -> None:
        """Its job failed for good: so has the request."""
        await self._close(tenant_id, request_id, "failed", "JOB_FAILED")

    async def prune(self, now: datetime) -> int:
        """End requests that no job works on any more, and remove those that ended long ago; how many were removed."""
        async with self._database.worker() as tx:
            abandoned = await parked_store.idle(tx, now - ABANDONED_AFTER, _ENDED_AT_ONCE)
        for tenant_id, request_id in abandoned:
            await self.fail(tenant_id, request_id)
        return await parked_store.prune(self._database, now - KEPT_FOR)

    async def _open(
        self, tenant_id: int, action: ParkedAction, chosen: Chosen, options: ReplayOptions,
        report: Mapping[str, Any], actor: str,
    ) -> ParkedRequest:  # fmt: skip
        new = NewParkedRequest(
            tenant_id, self._ids.new(), action, chosen, options, report, actor, self._clock.now()
        )  # fmt: skip
        async with self._database.tenant(tenant_id) as tx:
            if await parked_store.count_open(tx, tenant_id) >= MAX_OPEN:
                raise Throttled(
                    f"{MAX_OPEN} requests about parked events of this tenant are not done yet; nothing was started.",
                    code="TOO_MANY_PARKED_REQUESTS",
                    retry_after=AGAIN_S,
                )
            request = await parked_store.open_request(tx, new)
            if not options.dry_run:
                asked = {"reason": chosen.reason, "ids": len(chosen.ids), "force": options.force}
                await self._audit.write(
                    tx,
                    tenant_id,
                    actor=actor,
                    action=f"parked.{action}.open",
                    object=_name(new.parked_request_id),
                    after=asked,
                )
            data = {"request_id": str(new.parked_request_id)}
            await self._outbox.put(tx, QUEUE, JOB_NAMES[action], data, tenant_id=tenant_id)
        return request

    async def _begin(self, tenant_id: int, request_id: UUID) -> ParkedRun | None:
        """What is parked after the first run began is not meant: a replay parks again what is still bad."""
        async with self._database.worker() as tx:
            last = await self._reader.last_parked(tx) or NIL
            run = await parked_store.begin(
                tx, tenant_id, request_id, self._ids.new(), now=self._clock.now(), last=last
            )  # fmt: skip
        if run is not None and run.total is None and not any(run.report.values()):
            await self._count(run)
        return run

    async def _count(self, run: ParkedRun) -> None:
        """How many events wait, if that is known soon."""
        chosen = run.chosen
        try:
            async with self._database.worker() as tx:
                total = await self._reader.count_parked(
                    tx, run.tenant_id, chosen.reason, chosen.ids, run.last, MAX_COUNTED + 1
                )
                if total <= MAX_COUNTED:
                    await parked_store.record_total(tx, run, total)
        except StatementStopped:
            _log.info("parked.request_uncounted", tenant=run.tenant_id, request=str(run.parked_request_id))

    async def _work(self, run: ParkedRun) -> Turn:
        portion = self._replay_portion if run.action is ParkedAction.REPLAY else self._drop_portion
        began = self._clock.monotonic()
        current: ParkedRun | None = run
        while current is not None:
            current = await portion(current)
            if current is not None and self._clock.monotonic() - began >= TURN_S:
                return Turn("running", TURN_REST_MS, "others have their turn")
        return await self._end(run, "done", None)

    async def _replay_portion(self, run: ParkedRun) -> ParkedRun | None:
        """The run behind its next portion; None when that was the last one."""
        run = await self._claim(run)
        if run.portion is None:
            return None
        async with self._database.worker() as tx:
            rows = await self._reader.claimed_bodies(tx, run.tenant_id, run.portion)
        done = await self._dead.replay_portion(run.tenant_id, rows, run.options, since=run.portion_since)
        if done.waits and not done.counts.stopped:
            raise Busy("ClickHouse takes no rows now; what only it lacks stays parked.", code="CLICKHOUSE_BUSY")
        counts = added(Replayed(**run.report, dry_run=run.options.dry_run), done.counts)
        after, report, now = run.portion[-1], report_of(counts), self._clock.now()
        async with self._database.worker() as tx:
            if not await parked_store.record_portion(tx, run, after, report, now):
                raise _Superseded
        if counts.stopped:
            return None
        return msgspec.structs.replace(
            run, after=after, report=report, progressed_at=now, portion=None, portion_since=None
        )  # fmt: skip

    async def _claim(self, run: ParkedRun) -> ParkedRun:
        """With a portion: the one that an earlier run has begun with, or the next. Without one if none is left."""
        if run.portion or run.report["stopped"]:
            return run
        chosen = run.chosen
        async with self._database.worker() as tx:
            ids = await self._reader.waiting_ids(
                tx, run.tenant_id, chosen.reason, chosen.ids, run.after, run.last,
                portion_size(run.options), PORTION_BYTES,
            )  # fmt: skip
            if not ids:
                return msgspec.structs.replace(run, portion=None)
            since = await parked_store.claim_portion(tx, run, ids)
            if since is None:
                raise _Superseded
        return msgspec.structs.replace(run, portion=ids, portion_since=since)

    async def _drop_portion(self, run: ParkedRun) -> ParkedRun | None:
        """As `_replay_portion`. A portion that is cut by the time limit is repeated with half the rows."""
        report, now = run.report, self._clock.now()

        async def drop(place: tuple[Any, ...], limit: int) -> tuple[int, None]:
            nonlocal report
            dropped, report = await self._drop_some(run, limit, now)
            return dropped, None

        if not await work(drop, (), dead.DROPPED_AT_ONCE):
            return None
        return msgspec.structs.replace(run, report=report, progressed_at=now)

    async def _drop_some(self, run: ParkedRun, limit: int, now: datetime) -> tuple[int, dict[str, Any]]:
        """The claim holds the row: no other run deletes before this one has recorded it."""
        chosen = run.chosen
        async with self._database.worker() as tx:
            if await parked_store.claim_portion(tx, run, ()) is None:
                raise _Superseded
            dropped = await self._reader.drop_parked(tx, run.tenant_id, chosen.reason, chosen.ids, run.last, limit)
            report = {"dropped": run.report["dropped"] + dropped}
            await parked_store.record_portion(tx, run, run.after, report, now)
        return dropped, report

    async def _wait(self, run: ParkedRun, error: HandbillError) -> Turn:
        """An engine is away, the journal is full or the circuit is open: the request stays, with the code."""
        _log.warning("parked.request_waits", tenant=run.tenant_id, request=str(run.parked_request_id), code=error.code)
        async with self._database.tenant(run.tenant_id) as tx:
            progressed_at = await parked_store.record_error(tx, run, error.code)
        if progressed_at is not None and self._clock.now() - progressed_at >= GIVE_UP_AFTER:
            return await self._end(run, "failed", error.code)
        wait_s = max(error.retry_after or 0.0, AGAIN_S)
        return Turn("running", int(wait_s * 1000), f"it waits: {error.code}")

    async def _end(self, run: ParkedRun, status: RequestStatus, error: str | None) -> Turn:
        await self._close(run.tenant_id, run.parked_request_id, status, error, run_id=run.run_id)
        return Turn((await self.get(run.tenant_id, run.parked_request_id)).status)

    async def _close(
        self, tenant_id: int, request_id: UUID, status: RequestStatus, error: str | None, *, run_id: UUID | None = None
    ) -> None:
        """Once: whoever comes second changes nothing. The end is audited with the counts; a dry run changed nothing."""
        async with self._database.tenant(tenant_id) as tx:
            closed = await parked_store.close(
                tx, tenant_id, request_id, status, error, self._clock.now(), run_id=run_id
            )  # fmt: skip
            if closed is None:
                return
            _log.info("parked.request_ended", tenant=tenant_id, action=closed.action, status=status, **closed.report)
            if not closed.dry_run:
                await self._audit.write(
                    tx, tenant_id, actor=closed.requested_by, action=f"parked.{closed.action}.{status}",
                    object=_name(request_id), after={"reason": closed.reason, **closed.report},
                )  # fmt: skip


def _name(request_id: UUID) -> str:
    return f"parked events, request {request_id}"


def _code(run: ParkedRun, error: Exception) -> str:
    """For the report. The log has the engine's own code, and not its words: they may name somebody."""
    if isinstance(error, HandbillError):
        return error.code
    why = getattr(error, "sqlstate", getattr(error, "code", None))
    _log.error(
        "parked.request_refused",
        tenant=run.tenant_id,
        request=str(run.parked_request_id),
        error=type(error).__name__,
        why=why,
    )
    return "BROKEN"
