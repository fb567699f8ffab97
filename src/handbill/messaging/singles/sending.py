"""Turns of single messages: the same turn as a campaign's, in a chain of its own and ahead of campaigns.

A number has one chain of these beside the chain of its campaigns. It reserves the number's next token instead of
waiting for a free one, so that a campaign under way delays a single message by one send at most. Its jobs have no
priority number, so that the queue starts them before every turn of a campaign. Between tenants shares decide, as ever.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from handbill.infra.postgres import Database, Tx
from handbill.jobs.model import JobOptions
from handbill.jobs.service import Outbox
from handbill.kit.bounds import CAMPAIGN_CONTENTS
from handbill.kit.caches import TtlCache
from handbill.kit.clock import Clock
from handbill.kit.ids import Ids
from handbill.kit.telemetry import metrics
from handbill.messaging import store
from handbill.messaging.consequences import Consequences
from handbill.messaging.dispatch import (
    FRESH_S,
    ONE_DAY,
    QUEUE,
    Dispatcher,
    Ready,
    Turn,
    Turned,
    TurnPolicy,
    Words,
    settlement,
)
from handbill.messaging.limits import OPEN_MS, window_open
from handbill.messaging.model import Content, Template, Text
from handbill.messaging.pacer import Pacer
from handbill.messaging.plan import UsedTemplate
from handbill.messaging.providers.port import Provider
from handbill.messaging.recorder import Recorder
from handbill.messaging.render import Binding, Filled, Missing, fill
from handbill.messaging.single_outcomes import SingleOutcomes
from handbill.messaging.singles.model import TEXT
from handbill.messaging.singles.store import ClaimedSingle, claim_singles
from handbill.messaging.store import Claimed, NumberRow, S, Settlement

JOB = "send_waiting"
CLAIMED = 4
"""Messages that a chain claims at once: no more than it sends well within a claim's time at one a second."""
RESERVED_US = 5_000_000
"""So far ahead tokens are reserved: beyond it the chain asks again."""
LOST_S = 1.0
"""A message that has been due for so long has lost its job."""


class SingleDispatcher(Dispatcher):
    """Sends single messages. Everything about credentials, attempts, outcomes and limits is the campaigns' own."""

    def __init__(
        self,
        database: Database,
        outbox: Outbox,
        provider: Provider,
        pacer: Pacer,
        recorder: Recorder,
        consequences: Consequences,
        outcomes: SingleOutcomes,
        clock: Clock,
        ids: Ids,
        policy: TurnPolicy,
    ) -> None:
        super().__init__(database, outbox, provider, pacer, recorder, consequences, clock, ids, policy)
        self._outcomes = outcomes
        self._templates: TtlCache[tuple[int, UUID, str, str], Template | None] = TtlCache(
            CAMPAIGN_CONTENTS, FRESH_S, clock.monotonic
        )

    async def send_waiting(self, tenant_id: int, number_id: str, turn: UUID | None = None) -> Turned:
        """Send what waits for this number, unless a living chain does. `turn`: go on with this chain."""
        if turn is None:
            async with self._database.worker() as tx:
                now = self._clock.now()
                until = now + timedelta(seconds=self.policy.lease_s)
                turn = await tx.fetchval(S.begin_singles, tenant_id, number_id, self._ids.new(), now, until)
        return Turned() if turn is None else await self.turn(tenant_id, number_id, turn)

    async def queue(self, tx: Tx, tenant_id: int, number_id: str) -> None:
        """In the transaction that accepts a message."""
        await self._outbox.put(tx, QUEUE, JOB, {"number_id": number_id}, tenant_id=tenant_id)

    async def ring(self, tx: Tx, tenant_id: int | None = None) -> int:
        """Begin a chain where messages wait whose job was lost."""
        now = self._clock.now()
        lease = now + timedelta(seconds=self.policy.lease_s)
        rows = await tx.fetch(S.ring_singles, now, lease, tenant_id, now - timedelta(seconds=LOST_S))
        for row in rows:
            await self._put(tx, row["tenant_id"], row["number_id"], row["turn"])
        return len(rows)

    async def _put(self, tx: Tx, tenant_id: int, number_id: str, turn: UUID, delay_ms: int = 0) -> None:
        data = {"number_id": number_id, "turn": str(turn)}
        await self._outbox.put(tx, QUEUE, JOB, data, tenant_id=tenant_id, opts=JobOptions(delay_ms=delay_ms))

    # --- a turn

    async def _claimed(self, state: Turn) -> tuple[list[Claimed], Words]:
        now = self._clock.now()
        state.claim = self._ids.new()
        async with self._database.worker() as tx:
            number = await store.lock_number(tx, state.tenant_id, state.number_id, state.turn, now, singles=True)
            if number is None or not number.ours:
                state.ended = True
                return [], {}
            if number.paused or number.stopped:
                await self._let_go(tx, state)
                return [], {}
            self._set(state, number)
            await tx.execute(S.lock_counted, state.tenant_id)
            window = now - timedelta(milliseconds=OPEN_MS)
            rows = await claim_singles(
                tx, state.tenant_id, number, CLAIMED, now=now, claim=state.claim, counted_since=now - ONE_DAY,
                wrote_since=window,
            )  # fmt: skip
            skipped = [(state.tenant_id, row.message_id) for row in rows if row.state == "skipped"]
            await self._outcomes.report(tx, skipped)
            if rows:
                await self._hold(tx, state, number, now)
            else:
                await self._rest(tx, state, now)
            return list(rows), {}

    async def _rest(self, tx: Tx, state: Turn, now: datetime) -> None:
        """Nothing more now; what is due later gets a job of its own then."""
        await self._let_go(tx, state)
        due_at = await tx.fetchval(S.next_single, state.tenant_id, state.number_id)
        if due_at is not None:
            wait_s = max((due_at - now).total_seconds(), 0.0)
            job_id = f"single:{state.tenant_id}:{state.number_id}:{int(due_at.timestamp()) + 1}"
            await self._outbox.put(
                tx, QUEUE, JOB, {"number_id": state.number_id}, tenant_id=state.tenant_id, job_id=job_id,
                opts=JobOptions(delay_ms=int(wait_s * 1000) + 1000),
            )  # fmt: skip

    async def _hold(self, tx: Tx, state: Turn, number: NumberRow, now: datetime) -> None:
        lease = timedelta(seconds=self.policy.lease_s)
        if number.turn_until - now < lease / 2:
            await tx.execute(S.hold_singles, state.tenant_id, state.number_id, state.turn, now + lease)

    async def _let_go(self, tx: Tx, state: Turn) -> None:
        state.ended = True
        await tx.execute(S.hold_singles, state.tenant_id, state.number_id, None, self._clock.now())

    async def _filled(self, state: Turn, rows: Sequence[Claimed], words: Words) -> deque[Ready]:
        ready: deque[Ready] = deque()
        skipped: list[Settlement] = []
        for row in rows:
            assert isinstance(row, ClaimedSingle)
            content, why = await self._content(state.tenant_id, row)
            if content is None:
                metrics.MESSAGE_SKIPS.labels(why).inc()
                skipped.append(settlement(state, row, "skipped", reason=why))
            else:
                ready.append(Ready(row, content))
        state.done.claimed += len(ready)
        state.done.skipped += len(skipped)
        await asyncio.gather(*map(self._recorder.settle, skipped))
        return ready

    async def _content(self, tenant_id: int, row: ClaimedSingle) -> tuple[Content | None, str]:
        used = row.content
        if not isinstance(used, UsedTemplate):
            wrote_ms = None if row.wrote_at is None else int(row.wrote_at.timestamp() * 1000)
            if not window_open(wrote_ms, self._clock.now_ms()):
                return None, "window_closed"
            return Text(str(row.fields[TEXT])), ""
        template = await self._template(tenant_id, row.connection_id, used)
        if template is None:
            return None, "template_gone"
        filled = fill(template, {key: Binding(None, value) for key, value in row.fields.items()}, {})
        if isinstance(filled, Filled):
            return filled.send, ""
        return None, "variable_missing" if isinstance(filled, Missing) else "text_too_long"

    async def _template(self, tenant_id: int, connection_id: UUID, used: UsedTemplate) -> Template | None:
        key = (tenant_id, connection_id, used.name, used.language)
        found = self._templates.get(key)
        if found is None:
            async with self._database.worker() as tx:
                found = await store.read_template(tx, tenant_id, connection_id, used.name, used.language)
            self._templates[key] = found
        return found

    # --- writing

    async def _write_all(self, state: Turn, queue: deque[Ready], tasks: set[asyncio.Task[None]]) -> None:
        """One after the other, each with the number's next token, whoever else waits for it."""
        while queue:
            assert state.number is not None
            await self._slots.take(1)
            started = False
            try:
                one = queue[0]
                tokens = await self._pacer.take(
                    state.tenant_id, state.number_id, [one.row.address], per_second=state.number.per_second,
                    tenant_per_second=state.pace, reserve_us=RESERVED_US,
                )  # fmt: skip
                answer = tokens.each[0]
                if tokens.wait_us and answer <= 0:
                    await asyncio.sleep(min(tokens.wait_us, RESERVED_US) / 1_000_000)
                if answer < 0:
                    continue
                queue.popleft()
                if answer == 0:
                    task = asyncio.create_task(self._send(state, one, state.claim))
                    started = True  # the place is the task's own from now on
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                else:
                    due = self._clock.now() + timedelta(microseconds=answer)
                    await self._recorder.settle(settlement(state, one.row, "back", reason="pair_wait", due_at=due))
            finally:
                if not started:
                    self._slots.give(1)
