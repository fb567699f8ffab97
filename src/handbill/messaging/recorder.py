"""Attempts and outcomes, many messages in one commit.

Whoever comes while a commit is under way waits for the next one and shares it: the busier, the larger the groups.
An attempt that cannot be recorded is not made. An outcome that cannot be recorded is insisted on; if the process ends
before, the sweeper finds an attempt without an answer, which is the truth.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar
from uuid import UUID

from handbill.infra.postgres import Database
from handbill.jobs.model import JobOptions
from handbill.jobs.service import Outbox
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy
from handbill.kit.telemetry import logs, metrics
from handbill.messaging import store
from handbill.messaging.store import Settlement

_log = logs.get("messaging")
RETRY_QUEUE = "message_retry"
LARGEST = 500
PATIENCE = 60

Q = TypeVar("Q")
A = TypeVar("A")


class Group(Generic[Q, A]):
    """Collects questions while the last group is being answered. `limit` bounds how many may wait."""

    def __init__(self, answer: Callable[[Sequence[Q]], Awaitable[Sequence[A]]]) -> None:
        self._answer = answer
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._running: asyncio.Task[None] | None = None

    async def ask(self, question: Q) -> A:
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        return await future

    @property
    def idle(self) -> bool:
        return self._running is None and not self._waiting

    async def _run(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # whoever is ready now may still join
                group, self._waiting = self._waiting[:LARGEST], self._waiting[LARGEST:]
                await self._one(group)
        finally:
            self._running = None
            left, self._waiting = self._waiting, []  # none, unless we were cut off: nobody would ever answer them
            for _, future in left:
                future.cancel()

    async def _one(self, group: Sequence[tuple[Q, asyncio.Future[A]]]) -> None:
        try:
            answers = await self._answer([question for question, _ in group])
            if len(answers) != len(group):
                raise RuntimeError(f"{len(answers)} answers to {len(group)} questions")  # noqa: TRY301 - to all who wait
        except BaseException as error:
            for _, future in group:
                if not future.done():
                    future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), answer in zip(group, answers, strict=True):
            if not future.done():
                future.set_result(answer)


class Recorder:
    def __init__(self, database: Database, outbox: Outbox, clock: Clock) -> None:
        self._database = database
        self._outbox = outbox
        self._clock = clock
        self._attempts: Group[tuple[int, UUID, UUID], bool] = Group(self._record)
        self._outcomes: Group[Settlement, None] = Group(self._settle)

    async def attempt(self, tenant_id: int, message_id: UUID, claim: UUID) -> bool:
        """True once the attempt stands: the request may be written, once. Whatever else comes, it may not."""
        try:
            return await self._attempts.ask((tenant_id, message_id, claim))
        except Busy as error:
            _log.warning("attempt-not-recorded", tenant=tenant_id, reason=error.code, kept="not sent")
            return False

    async def settle(self, outcome: Settlement) -> None:
        await self._outcomes.ask(outcome)

    async def _record(self, asked: Sequence[tuple[int, UUID, UUID]]) -> list[bool]:
        async with self._database.worker() as tx:
            stands = await store.record_attempts(tx, asked, self._clock.now())
        return [message_id in stands for _, message_id, _ in asked]

    async def _settle(self, outcomes: Sequence[Settlement]) -> list[None]:
        pause = 0.05
        for tries in itertools.count(1):
            try:
                await self._settled(outcomes)
                break
            except Busy as error:
                if tries == PATIENCE:
                    _log.error("outcomes-not-recorded", count=len(outcomes), reason=error.code, kept="swept as unknown")
                    break
                await asyncio.sleep(pause)
                pause = min(pause * 2, 2.0)
        for outcome in outcomes:
            metrics.MESSAGES.labels(outcome.kind).inc()
        return [None] * len(outcomes)

    async def _settled(self, outcomes: Sequence[Settlement]) -> None:
        now = self._clock.now()
        async with self._database.worker() as tx:
            await store.settle(tx, outcomes, now)
            for (tenant_id, number_id, due_s), wait_s in sorted(_bells(outcomes, now.timestamp()).items()):
                await self._outbox.put(
                    tx, RETRY_QUEUE, "retry", {"number_id": number_id}, tenant_id=tenant_id,
                    job_id=f"retry:{tenant_id}:{number_id}:{due_s}", opts=JobOptions(delay_ms=int(wait_s * 1000)),
                )  # fmt: skip


def _bells(outcomes: Sequence[Settlement], now_s: float) -> dict[tuple[int, str, int], float]:
    """One job per number and second in which something is to be tried again, a moment after it is due."""
    found: dict[tuple[int, str, int], float] = {}
    for one in outcomes:
        if one.kind == "again" and one.due_at is not None and one.number_id:
            due_s = int(one.due_at.timestamp()) + 1
            found[(one.tenant_id, one.number_id, due_s)] = max(due_s - now_s, 0.0)
    return found
