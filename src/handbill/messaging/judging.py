"""What an answer means for its message: an outcome that is kept, and what follows for others before it is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from handbill.infra.postgres import Database
from handbill.kit.bounds import SENDER_STATES
from handbill.kit.caches import LruCache
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, EngineRefused, HandbillError
from handbill.kit.retry import Retry, retrying
from handbill.kit.telemetry import logs
from handbill.messaging.consequences import About, Consequences
from handbill.messaging.errors import SENDS_AGAIN, Action, Verdict, by_outcome, is_hopeless
from handbill.messaging.model import Accepted, Outcome, Refused
from handbill.messaging.store import S

_log = logs.get("messaging")
T = TypeVar("T")
RETRY = Retry(tries=5, delay_ms=200)
TRIES = {Action.WAIT_SECONDS: 8, Action.WAIT_PAIR: 6, Action.WAIT_DAY: 3}
"""How often one message is tried, by what the last refusal asks for. The one retry policy: no queue multiplies it."""
OTHERS = (Action.PAUSE_NUMBER, Action.PAUSE_CAMPAIGN, Action.PAUSE_TENANT, Action.SUPPRESS)
THROTTLED, UNDELIVERABLE = 130429, 131026


class Sent(msgspec.Struct, frozen=True):
    """What was sent, and when it began by the monotonic clock."""

    tenant_id: int
    number_id: str
    campaign_id: UUID | None
    """None: a single message."""
    address: str
    attempt: int
    began: float


class Judged(msgspec.Struct, frozen=True):
    """The kind of settlement (dispatch.sql), and its words."""

    kind: str
    wamid: str | None = None
    reason: str | None = None
    code: int | None = None
    details: str | None = None
    due_at: datetime | None = None

    def rest(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "kind"}


class Judge:
    def __init__(self, database: Database, consequences: Consequences, clock: Clock, pause_after: int) -> None:
        self._database = database
        self._pause_after = pause_after
        self._consequences = consequences
        self._clock = clock
        # What is pushed out starts again at one: a pause then comes later, and never without a reason.
        self._throttles: LruCache[tuple[int, str], tuple[int, float]] = LruCache(SENDER_STATES)
        self._refused_in_row: LruCache[UUID, tuple[int, int]] = LruCache(SENDER_STATES)

    async def judged(self, sent: Sent, outcome: Outcome) -> Judged:
        if isinstance(outcome, Accepted):
            self._throttles.pop((sent.tenant_id, sent.number_id), None)
            if sent.campaign_id is not None:
                self._refused_in_row.pop(sent.campaign_id, None)
            return Judged("accepted", wamid=outcome.wamid)
        code = outcome.code if isinstance(outcome, Refused) else None
        details = outcome.details if isinstance(outcome, Refused) else None
        hits = await self._insist(sent, lambda: self._hits(sent, code), 1)
        verdict = by_outcome(outcome, hits=hits, attempt=sent.attempt)
        assert verdict is not None
        verdict = self._pause_if_hopeless(sent, code, verdict)
        if verdict.action in OTHERS:
            about = About(sent.tenant_id, sent.campaign_id, sent.number_id, "whatsapp", sent.address, code)
            await self._insist(sent, lambda: self._apply(verdict, about), None)
        if sent.campaign_id is None and verdict.action is Action.PAUSE_CAMPAIGN:
            return Judged("failed", reason=verdict.reason, code=code, details=details)  # there is nothing to pause
        kind, due_at = self._next(verdict, sent.attempt, code)
        return Judged(kind, reason=verdict.reason, code=code, details=details, due_at=due_at)

    async def _apply(self, verdict: Verdict, about: About) -> None:
        async with self._database.worker() as tx:
            await self._consequences.apply(tx, verdict, about)

    async def _insist(self, sent: Sent, work: Callable[[], Awaitable[T]], default: T) -> T:
        """The message was answered: what cannot be done for others must not keep its outcome from being recorded."""
        try:
            return await retrying(RETRY, work, lambda error: isinstance(error, Busy))
        except (HandbillError, EngineRefused) as error:
            names = {"tenant_id": sent.tenant_id, "campaign_id": str(sent.campaign_id)}
            _log.error("messaging.side_effects_failed", **names, error=type(error).__name__)
            return default

    def _next(self, verdict: Verdict, attempt: int, code: int | None) -> tuple[str, datetime | None]:
        action, now = verdict.action, self._clock.now()
        if action is Action.UNKNOWN:
            return "unknown", None
        if action in TRIES:
            if attempt >= TRIES[action]:
                return "failed", None
            return "again", now + timedelta(seconds=verdict.wait_s)
        if action is Action.PAUSE_NUMBER:
            return "again", self._consequences.number_free_at(verdict, code)
        if action in (Action.PAUSE_CAMPAIGN, Action.PAUSE_TENANT):
            return "again", now
        return "failed", None

    async def _hits(self, sent: Sent, code: int | None) -> int:
        """How often in a row. Requests that were under way together when the number was throttled count as one."""
        if code == THROTTLED:
            key = (sent.tenant_id, sent.number_id)
            last: tuple[int, float] = self._throttles.get(key, (0, -1.0))
            hits, since = last
            if sent.began > since:
                hits, since = hits + 1, self._clock.monotonic()
            self._throttles[key] = (hits, since)
            return hits
        if code == UNDELIVERABLE:
            async with self._database.worker() as tx:
                now = self._clock.now()
                return int(await tx.fetchval(S.undeliverable_hit, sent.tenant_id, "whatsapp", sent.address, now))
        return 1

    def _pause_if_hopeless(self, sent: Sent, code: int | None, verdict: Verdict) -> Verdict:
        """The same code again and again that every further recipient would get: the campaign is at fault, not people.

        An accepted message begins the count again. Refusals that are about one person neither count nor end it.
        """
        if sent.campaign_id is None or code is None or not is_hopeless(code) or verdict.action in SENDS_AGAIN:
            return verdict
        last, count = self._refused_in_row.get(sent.campaign_id, (code, 0))
        count = count + 1 if last == code else 1
        self._refused_in_row[sent.campaign_id] = (code, count)
        if count < self._pause_after:
            return verdict
        self._refused_in_row.pop(sent.campaign_id, None)  # a person who resumes it gives it as many tries again
        return msgspec.structs.replace(verdict, action=Action.PAUSE_CAMPAIGN)
