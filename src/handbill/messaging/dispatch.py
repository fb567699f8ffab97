"""A turn of one number: claim at most a second of sends, write each at its moment, record what came of it.

    claim ▸ fill in ▸ token (Redis) ▸ attempt recorded (PostgreSQL) ▸ gate ▸ request ▸ outcome recorded

Turns of a number follow each other as jobs of the queue `message_dispatch`, one chain per number, so that tenants take
turns with the worker's lanes. A chain that was lost (Redis wiped, worker killed) begins anew when its lease ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra.postgres import Database, Tx
from handbill.jobs.model import JobOptions
from handbill.jobs.service import Outbox
from handbill.kit.bounds import CAMPAIGN_CONTENTS
from handbill.kit.caches import TtlCache
from handbill.kit.clock import Clock
from handbill.kit.errors import Broken, HandbillError, Invalid
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs, metrics
from handbill.messaging import store
from handbill.messaging.consequences import Consequences
from handbill.messaging.judging import Judge, Sent
from handbill.messaging.limits import COUNTED_MS
from handbill.messaging.model import Account, Content, Message, Outcome, Template, Unwritten
from handbill.messaging.pacer import Pacer, Slots
from handbill.messaging.plan import Campaign, UsedTemplate
from handbill.messaging.providers.port import Provider
from handbill.messaging.recorder import Recorder
from handbill.messaging.render import Filled, Missing, fill
from handbill.messaging.store import Claimed, NumberRow, S, Settlement

_log = logs.get("messaging")

QUEUE = "message_dispatch"
CAMPAIGN_PRIORITY = 10
"""Of jobs of campaigns: the queue starts jobs without a priority, which are those of single messages, before them."""
TOKENS = 16
CLAIMS = 4
"""Claims of one process at once: attempts and outcomes must find a connection free, however many numbers begin."""
FRESH_S = 2.0
CREDENTIALS_RETRY_S = 10
"""After so long a message is claimed again whose credentials could not be opened."""
Words = dict[UUID, tuple[Campaign, Template | None]]
"""Campaigns and their templates, by campaign."""
ONE_DAY = timedelta(milliseconds=COUNTED_MS)


class TurnPolicy(msgspec.Struct, frozen=True):
    """How long a turn lasts, how long a chain may be silent, and how fast tenants go where nothing else is said."""

    turn_s: float = 1.0
    lease_s: float = 30.0
    standard_per_second: int = 10
    enterprise_per_second: int = 50
    in_flight: int = 256
    """Requests that this process has under way: no attempt is recorded that would wait for a connection."""
    pause_after: int = 5
    """So many refusals of one campaign in a row that every further recipient would get: the campaign pauses."""


class Ready(msgspec.Struct, frozen=True):
    """A claimed message with its words."""

    row: Claimed
    content: Content


class Turned(msgspec.Struct):
    """What one turn came to."""

    claimed: int = 0
    skipped: int = 0
    begun: int = 0
    more: bool = False


class Turn:
    """The state of one turn under way."""

    def __init__(self, tenant_id: int, number_id: str, turn: UUID | None, retries: bool) -> None:
        self.tenant_id = tenant_id
        self.number_id = number_id
        self.turn = turn
        self.retries = retries
        self.claim = UUID(int=0)
        self.number: NumberRow | None = None
        self.account: Account | None = None
        self.pace = 0
        self.done = Turned()
        self.ended = False
        self.without_credentials = False


class Dispatcher:
    def __init__(
        self,
        database: Database,
        outbox: Outbox,
        provider: Provider,
        pacer: Pacer,
        recorder: Recorder,
        consequences: Consequences,
        clock: Clock,
        ids: Ids,
        policy: TurnPolicy | None = None,
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._provider = provider
        self._pacer = pacer
        self._recorder = recorder
        self._judge = Judge(database, consequences, clock, (policy or TurnPolicy()).pause_after)
        self._clock = clock
        self._ids = ids
        self.policy = policy or TurnPolicy()
        self._slots = Slots(self.policy.in_flight)
        self._claiming = asyncio.Semaphore(CLAIMS)
        self._said: TtlCache[tuple[int, UUID], tuple[Campaign, Template | None]] = TtlCache(
            CAMPAIGN_CONTENTS, FRESH_S, clock.monotonic
        )

    # --- ringing

    async def ring(self, tx: Tx, tenant_id: int | None = None) -> int:
        """Begin a chain of turns for every number that has work and no chain. In the transaction that made the work."""
        now = self._clock.now()
        rows = await tx.fetch(S.ring_numbers, now, now + timedelta(seconds=self.policy.lease_s), tenant_id)
        for row in rows:
            await self._put(tx, row["tenant_id"], row["number_id"], row["turn"])
        return len(rows)

    async def ring_retries(self, tx: Tx, tenant_id: int | None = None) -> int:
        now = self._clock.now()
        rows = await tx.fetch(S.due_retries, now, tenant_id)
        for row in rows:
            found, number = row["tenant_id"], row["number_id"]
            job_id = f"retry:{found}:{number}:{int(now.timestamp())}"
            await self._outbox.put(tx, "message_retry", "retry", {"number_id": number}, tenant_id=found, job_id=job_id)
        return len(rows)

    async def _put(self, tx: Tx, tenant_id: int, number_id: str, turn: UUID, delay_ms: int = 0) -> None:
        data = {"number_id": number_id, "turn": str(turn)}
        opts = JobOptions(delay_ms=delay_ms, priority=CAMPAIGN_PRIORITY)
        await self._outbox.put(tx, QUEUE, "turn", data, tenant_id=tenant_id, opts=opts)

    # --- a turn

    async def turn(self, tenant_id: int, number_id: str, turn: UUID | None, *, retries: bool = False) -> Turned:
        """Send for about a second. The next turn is asked for before the last answers have come."""
        state = Turn(tenant_id, number_id, turn, retries)
        ends = self._clock.monotonic() + self.policy.turn_s
        tasks: set[asyncio.Task[None]] = set()
        queue: deque[Ready] = deque()
        try:
            while True:
                queue = await self._claim(state)
                found = len(queue)
                await self._write_all(state, queue, tasks)
                if state.ended:
                    break
                if self._clock.monotonic() >= ends:
                    await self._hand_on(state)
                    break
                if not found:
                    await asyncio.sleep(0.02)  # the number is full: answers make room
        finally:
            unsent = [self._recorder.settle(settlement(state, one.row, "back")) for one in queue]
            ended = await asyncio.gather(*tasks, *unsent, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException):
                raise error
        return state.done

    async def _hand_on(self, state: Turn) -> None:
        """The chain goes on in another job, so that others get a lane in between."""
        state.done.more = True
        async with self._database.worker() as tx:
            if state.turn is not None:
                await self._put(tx, state.tenant_id, state.number_id, state.turn)
            else:
                await self.ring_retries(tx, state.tenant_id)

    async def _claim(self, state: Turn) -> deque[Ready]:
        async with self._claiming:
            rows, words = await self._claimed(state)
        for row in rows:
            if row.state == "skipped":
                metrics.MESSAGE_SKIPS.labels(row.reason).inc()
                state.done.skipped += 1
        return await self._filled(state, [row for row in rows if row.state == "claimed"], words)

    async def _claimed(self, state: Turn) -> tuple[list[Claimed], Words]:
        now = self._clock.now()
        state.claim = self._ids.new()
        async with self._database.worker() as tx:
            number = await store.lock_number(tx, state.tenant_id, state.number_id, state.turn, now)
            if number is None or (state.turn is not None and not number.ours):
                state.ended = True
                return [], {}
            if number.paused or number.stopped:
                await self._let_go(tx, state)
                return [], {}
            self._set(state, number)
            limit = min(number.per_second, state.pace or number.per_second, self.policy.in_flight)
            await tx.execute(S.lock_counted, state.tenant_id)
            rows = await store.claim(
                tx, state.tenant_id, number, limit, retries=state.retries, now=now, claim=state.claim,
                counted_since=now - ONE_DAY,
            )  # fmt: skip
            if len(rows) < limit:
                due_at = await tx.fetchval(S.next_due, state.tenant_id, state.number_id, state.retries, now)
                if due_at is None or due_at > now:
                    await self._let_go(tx, state)
            if not state.ended:
                await self._hold(tx, state, number, now)
            return rows, await self._words(tx, state, rows)

    def _set(self, state: Turn, number: NumberRow) -> None:
        state.number = number
        state.account = Account(state.tenant_id, number.number_id, number.waba_id, str(number.connection_id))
        policy = self.policy
        tiers = {"enterprise": policy.enterprise_per_second}
        by_tier = tiers.get(number.tenant_tier, policy.standard_per_second)
        state.pace = by_tier if number.tenant_pace is None else number.tenant_pace

    async def _hold(self, tx: Tx, state: Turn, number: NumberRow, now: datetime) -> None:
        lease = timedelta(seconds=self.policy.lease_s)
        if state.turn is not None and number.turn_until - now < lease / 2:
            until = now + lease
            await tx.execute(S.hold_turn, state.tenant_id, state.number_id, state.turn, until)

    async def _let_go(self, tx: Tx, state: Turn) -> None:
        """Nothing more now. In the transaction that saw so, the number's row locked: whoever rings later is heard."""
        state.ended = True
        if state.turn is not None:
            await tx.execute(S.hold_turn, state.tenant_id, state.number_id, None, self._clock.now())

    async def _words(self, tx: Tx, state: Turn, rows: Sequence[Claimed]) -> Words:
        """What the campaigns of these say; remembered for a moment, as every turn asks for the same."""
        found: Words = {}
        for campaign_id in {row.campaign_id for row in rows if row.state == "claimed" and row.campaign_id is not None}:
            cached = self._said.get((state.tenant_id, campaign_id))
            if cached is not None:
                found[campaign_id] = cached
                continue
            campaign = await store.read_campaign(tx, state.tenant_id, campaign_id)
            assert campaign is not None
            used, template = campaign.content, None
            if isinstance(used, UsedTemplate):
                template = await store.read_template(
                    tx, state.tenant_id, campaign.connection_id, used.name, used.language
                )
            found[campaign_id] = (campaign, template)
            self._said[(state.tenant_id, campaign_id)] = found[campaign_id]
        return found

    async def _filled(self, state: Turn, rows: Sequence[Claimed], words: Words) -> deque[Ready]:
        ready: deque[Ready] = deque()
        skipped: list[Settlement] = []
        same: dict[UUID, tuple[Content | None, str]] = {}
        for row in rows:
            assert row.campaign_id is not None  # claimed for a campaign
            campaign, template = words[row.campaign_id]
            found = same.get(row.campaign_id) or _content(campaign, template, row.fields)
            if not campaign.bindings:  # nothing of the person in it: the same words for everybody
                same[row.campaign_id] = found
            content, why = found
            if content is None:
                metrics.MESSAGE_SKIPS.labels(why).inc()
                skipped.append(settlement(state, row, "skipped", reason=why))
            else:
                ready.append(Ready(row, content))
        state.done.claimed += len(ready)
        state.done.skipped += len(skipped)
        await asyncio.gather(*map(self._recorder.settle, skipped))
        return ready

    # --- writing

    async def _write_all(self, state: Turn, queue: deque[Ready], tasks: set[asyncio.Task[None]]) -> None:
        number = state.number
        while queue:
            assert number is not None
            held = await self._slots.take(min(len(queue), TOKENS))
            try:
                batch = [queue[place] for place in range(held)]
                tokens = await self._pacer.take(
                    state.tenant_id, state.number_id, [one.row.address for one in batch],
                    per_second=number.per_second, tenant_per_second=state.pace,
                )  # fmt: skip
                for one, answer in zip(batch, tokens.each, strict=True):
                    if answer < 0:
                        break
                    queue.popleft()
                    if answer == 0:
                        task = asyncio.create_task(self._send(state, one, state.claim))
                        held -= 1  # the task's own from now on
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
                    else:
                        due = self._clock.now() + timedelta(microseconds=answer)
                        back = settlement(state, one.row, "back", reason="pair_wait", due_at=due)
                        await self._recorder.settle(back)
            finally:
                self._slots.give(held)  # whatever was not used, whether Redis answered or not
            if tokens.wait_us:
                await asyncio.sleep(tokens.wait_us / 1_000_000)

    async def _send(self, state: Turn, one: Ready, claim: UUID) -> None:
        """The place is free again with the answer; what came of it is recorded beside the next one's request."""
        try:
            found = await self._written(state, one, claim)
        finally:
            self._slots.give(1)
        if isinstance(found, tuple):
            sent, outcome = found
            verdict = await self._judge.judged(sent, outcome)
            found = settlement(state, one.row, verdict.kind, claim=claim, **verdict.rest())
        await self._recorder.settle(found)

    async def _written(self, state: Turn, one: Ready, claim: UUID) -> tuple[Sent, Outcome] | Settlement:
        """What the provider said; or what is to be recorded because nothing was written."""
        row = one.row
        assert state.number is not None
        assert state.account is not None
        try:
            await self._provider.open_credentials(state.account)
        except HandbillError as error:  # nothing was tried: it keeps its place and all its attempts
            return self._put_back(state, row, claim, error)
        if not await self._recorder.attempt(state.tenant_id, row.message_id, claim):
            return settlement(state, row, "back", claim=claim)
        await self._pacer.gate(state.tenant_id, state.number_id, state.number.per_second)
        began = self._clock.monotonic()
        if row.attempts == 0:
            metrics.MESSAGE_WAIT_SECONDS.observe(max((self._clock.now() - row.created_at).total_seconds(), 0.0))
        state.done.begun += 1
        try:
            message = Message(row.address.lstrip("+"), one.content, str(row.message_id), row.reply_to)
            outcome = await self._provider.send(state.account, message)
        except (Invalid, Broken) as error:  # before a byte was written: our own data is at fault
            return settlement(state, row, "failed", reason=error.code.lower(), claim=claim)
        except HandbillError as error:  # before a byte was written, too: a provider reports all later errors as values
            outcome = Unwritten(error.code)
        return Sent(state.tenant_id, state.number_id, row.campaign_id, row.address, row.attempts + 1, began), outcome

    def _put_back(self, state: Turn, row: Claimed, claim: UUID, error: HandbillError) -> Settlement:
        if not state.without_credentials:
            state.without_credentials = True
            _log.warning("messaging.credentials_not_opened", tenant_id=state.tenant_id, reason=error.code)
        due_at = self._clock.now() + timedelta(seconds=CREDENTIALS_RETRY_S)
        return settlement(state, row, "back", reason="credentials_unavailable", due_at=due_at, claim=claim)


def _content(campaign: Campaign, template: Template | None, fields: dict[str, Any]) -> tuple[Content | None, str]:
    if not isinstance(campaign.content, UsedTemplate):
        return campaign.plain(), ""
    if template is None:
        return None, "template_gone"
    filled = fill(template, campaign.bound, fields)
    if isinstance(filled, Filled):
        return filled.send, ""
    return None, "variable_missing" if isinstance(filled, Missing) else "text_too_long"


def settlement(state: Turn, row: Claimed, kind: str, *, claim: UUID | None = None, **rest: Any) -> Settlement:
    return Settlement(state.tenant_id, row.message_id, claim or state.claim, kind, number_id=state.number_id, **rest)
