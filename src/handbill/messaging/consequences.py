"""What follows from a provider's word for others than the one message: pauses and suppressions."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from handbill.infra.postgres import Tx
from handbill.kit.clock import Clock
from handbill.kit.telemetry import logs, metrics
from handbill.messaging.errors import Action, Verdict
from handbill.messaging.hooks_out import Hooks
from handbill.messaging.ports import Contacts, Why
from handbill.messaging.store import S
from handbill.messaging.token_states import REFUSED, TokenStates
from handbill.tenants.service import Audit

_log = logs.get("messaging")
FLAGGED = 131048
FLAGGED_PAUSE = timedelta(hours=1)


class Pauses(msgspec.Struct, frozen=True):
    """How long a number rests after it was throttled again and again."""

    throttled_s: float = 60.0


class About(msgspec.Struct, frozen=True):
    """Whom a verdict is about."""

    tenant_id: int
    campaign_id: UUID | None
    """None: a single message."""
    number_id: str
    channel: str
    address: str
    code: int | None = None


class Consequences:
    def __init__(
        self, contacts: Contacts, audit: Audit, hooks: Hooks, clock: Clock, pauses: Pauses, tokens: TokenStates
    ) -> None:
        self._contacts = contacts
        self._audit = audit
        self._hooks = hooks
        self._clock = clock
        self._pauses = pauses
        self.tokens = tokens

    async def apply(self, tx: Tx, verdict: Verdict, about: About) -> None:
        """In the caller's transaction, before the message goes back to its place."""
        action = verdict.action
        if action is Action.PAUSE_NUMBER:
            await self._pause_number(tx, verdict, about)
        elif action is Action.PAUSE_CAMPAIGN and about.campaign_id is not None:
            await self.pause_campaign(tx, about.tenant_id, about.campaign_id, verdict.reason)
        elif action is Action.PAUSE_TENANT:
            await self._stop(tx, verdict, about)
        elif action is Action.SUPPRESS:
            await self._suppress(tx, verdict, about)

    def number_free_at(self, verdict: Verdict, code: int | None) -> datetime:
        pause = FLAGGED_PAUSE if code == FLAGGED else timedelta(seconds=self._pauses.throttled_s)
        return self._clock.now() + pause

    async def pause_campaign(self, tx: Tx, tenant_id: int, campaign_id: UUID, reason: str) -> bool:
        """A machine pauses what runs or waits to run; what a person has paused or ended stays as it is."""
        row = await tx.fetchrow(S.lock_campaign, tenant_id, campaign_id)
        if row is None or row["state"] not in ("scheduled", "queued", "running"):
            return False
        now = self._clock.now()
        await tx.fetchrow(S.move_campaign, tenant_id, campaign_id, "paused", reason, row["state"], None, now)
        await self._audit.write(
            tx, tenant_id, actor="system", action="campaign.pause", object=f"message campaign {campaign_id}",
            after={"reason": reason},
        )  # fmt: skip
        await self._hooks.announce(
            tx, tenant_id, "campaign.paused", {"campaign_id": str(campaign_id), "reason": reason}
        )
        metrics.CAMPAIGNS_ENDED.labels("paused").inc()
        _log.warning("campaign-paused", tenant=tenant_id, campaign=str(campaign_id), reason=reason)
        return True

    async def _pause_number(self, tx: Tx, verdict: Verdict, about: About) -> None:
        until, now = self.number_free_at(verdict, about.code), self._clock.now()
        if await tx.fetchrow(S.pause_number, about.tenant_id, about.number_id, until, verdict.reason, now):
            _log.warning("number-paused", tenant=about.tenant_id, number=about.number_id, reason=verdict.reason)

    async def _stop(self, tx: Tx, verdict: Verdict, about: About) -> None:
        """Token, permission, payment: nothing of this tenant goes until a person has seen to it."""
        if about.code == REFUSED:
            await self.tokens.refuse(tx, about.tenant_id, about.number_id)
        known = await tx.fetchrow(S.read_switch, about.tenant_id)
        if known is not None and known["stopped"]:
            return
        await tx.fetchrow(S.set_switch, about.tenant_id, True, verdict.reason, self._clock.now())
        await self._audit.write(
            tx,
            about.tenant_id,
            actor="system",
            action="messaging.stop",
            object="switch",
            after={"reason": verdict.reason},
        )
        await self._hooks.announce(tx, about.tenant_id, "messaging.stopped", {"reason": verdict.reason})
        _log.warning("messaging-stopped", tenant=about.tenant_id, reason=verdict.reason)

    async def _suppress(self, tx: Tx, verdict: Verdict, about: About) -> None:
        until = None if verdict.suppress_days is None else self._clock.now() + timedelta(days=verdict.suppress_days)
        why: Why = "opt_out" if about.code == 131050 else "invalid" if about.code == 131021 else "bounce"
        await self._contacts.suppress(tx, about.tenant_id, about.channel, about.address, why, until, verdict.reason)
