"""Attempts and outcomes, many messages in one commit.

An attempt that cannot be recorded is not made. An outcome that cannot be recorded is insisted on; if the process ends
before, the sweeper finds an attempt without an answer, which is the truth. An outcome that PostgreSQL refuses because
of its texts is recorded without them: what the provider answered is never lost to how it was worded.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from uuid import UUID

import msgspec

from handbill.infra.postgres import Database
from handbill.jobs.model import JobOptions
from handbill.jobs.service import Outbox
from handbill.kit.batcher import Batcher
from handbill.kit.clock import Clock
from handbill.kit.errors import Broken, Busy
from handbill.kit.telemetry import logs, metrics
from handbill.messaging import store
from handbill.messaging.single_outcomes import SingleOutcomes
from handbill.messaging.store import Settlement

_log = logs.get("messaging")
RETRY_QUEUE = "message_retry"
MAX_RECORD_TRIES = 60
_ROW_BYTES = 500
"""What a row takes without its texts."""


class Recorder:
    """Records attempts before requests are written, and outcomes after."""

    def __init__(self, database: Database, outbox: Outbox, outcomes: SingleOutcomes, clock: Clock) -> None:
        self._database = database
        self._outbox = outbox
        self._single_outcomes = outcomes
        self._clock = clock
        self._attempts: Batcher[tuple[int, UUID, UUID], bool] = Batcher(self._record, lambda _: _ROW_BYTES)
        self._outcomes: Batcher[Settlement, bool] = Batcher(self._settle, _size_of)

    async def attempt(self, tenant_id: int, message_id: UUID, claim: UUID) -> bool:
        """True once the attempt stands: the request may be written, once. Whatever else comes, it may not."""
        try:
            return await self._attempts.submit((tenant_id, message_id, claim))
        except Busy as error:
            _log.warning("attempt-not-recorded", tenant=tenant_id, reason=error.code, kept="not sent")
            return False

    async def settle(self, outcome: Settlement) -> None:
        """Record what came of a message. Raises only if it is refused without its texts, too."""
        pause, reduced = 0.05, False
        for tries in itertools.count(1):
            try:
                recorded = await self._outcomes.submit(outcome)
            except Busy as error:
                if tries >= MAX_RECORD_TRIES:
                    _log.error("messaging.outcome_not_recorded", **_names(outcome), reason=error.code)
                    return
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
            except Broken:
                raise
            except Exception as error:
                _log.error("messaging.outcome_refused", **_names(outcome), error=type(error).__name__, reduced=reduced)
                if reduced:
                    raise
                outcome, reduced = _reduce(outcome), True
            else:
                if recorded:
                    metrics.MESSAGES.labels(outcome.kind).inc()
                return

    async def _record(self, asked: Sequence[tuple[int, UUID, UUID]]) -> list[bool]:
        async with self._database.worker() as tx:
            stands = await store.record_attempts(tx, asked, self._clock.now())
        return [message_id in stands for _, message_id, _ in asked]

    async def _settle(self, outcomes: Sequence[Settlement]) -> list[bool]:
        now = self._clock.now()
        async with self._database.worker() as tx:
            changed = await store.settle(tx, outcomes, now)
            await self._single_outcomes.report(tx, [message for message, single in changed.items() if single])
            for (tenant_id, number_id, due_s), wait_s in sorted(_bells(outcomes, now.timestamp()).items()):
                await self._outbox.put(
                    tx, RETRY_QUEUE, "retry", {"number_id": number_id}, tenant_id=tenant_id,
                    job_id=f"retry:{tenant_id}:{number_id}:{due_s}", opts=JobOptions(delay_ms=int(wait_s * 1000)),
                )  # fmt: skip
        return [(outcome.tenant_id, outcome.message_id) in changed for outcome in outcomes]


def _names(outcome: Settlement) -> dict[str, object]:
    return {"tenant_id": outcome.tenant_id, "message_id": str(outcome.message_id), "outcome": outcome.kind}


def _reduce(outcome: Settlement) -> Settlement:
    """The same outcome without anything that the provider wrote."""
    return msgspec.structs.replace(outcome, wamid=None, code=None, details=None)


def _size_of(outcome: Settlement) -> int:
    texts = (outcome.wamid, outcome.reason, outcome.details, outcome.number_id)
    return _ROW_BYTES + sum(4 * len(text) for text in texts if text)


def _bells(outcomes: Sequence[Settlement], now_s: float) -> dict[tuple[int, str, int], float]:
    """One job per number and second in which something is to be tried again, a moment after it is due."""
    found: dict[tuple[int, str, int], float] = {}
    for one in outcomes:
        if one.kind == "again" and one.due_at is not None and one.number_id:
            due_s = int(one.due_at.timestamp()) + 1
            found[(one.tenant_id, one.number_id, due_s)] = max(due_s - now_s, 0.0)
    return found
