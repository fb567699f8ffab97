"""What comes by the clock: campaigns whose time has come or is over, lost work, numbers that nobody rang for."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from handbill.infra.postgres import Database, Tx, repeat, work
from handbill.jobs.model import JobOptions
from handbill.jobs.service import Outbox
from handbill.kit.clock import Clock
from handbill.kit.telemetry import logs, metrics
from handbill.messaging.consequences import Consequences
from handbill.messaging.dispatch import CAMPAIGN_PRIORITY, QUEUE, Dispatcher
from handbill.messaging.hooks_out import Hooks
from handbill.messaging.limits import COUNTED_MS
from handbill.messaging.single_outcomes import SingleOutcomes
from handbill.messaging.singles.sending import SingleDispatcher
from handbill.messaging.store import S

_log = logs.get("messaging")
MOST = 1_000


class KeeperPolicy(msgspec.Struct, frozen=True):
    """`claim_s`: a claim without an attempt is free again. `answer_s`: an attempt without an answer is unknown.
    `unknown_h`: until then a webhook may tell. `per_poll`, `per_tenant`: how many campaigns begin in a minute."""

    claim_s: float = 30.0
    answer_s: float = 120.0
    unknown_h: float = 72.0
    per_poll: int = 10
    per_tenant: int = 2
    webhook_days: float = 8.0


class Swept(msgspec.Struct, frozen=True):
    claims: int
    attempts: int
    unknown: int


class Keeper:
    def __init__(
        self,
        database: Database,
        outbox: Outbox,
        dispatcher: Dispatcher,
        consequences: Consequences,
        hooks: Hooks,
        singles: SingleDispatcher,
        outcomes: SingleOutcomes,
        clock: Clock,
        policy: KeeperPolicy | None = None,
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._dispatcher = dispatcher
        self._consequences = consequences
        self._hooks = hooks
        self._singles = singles
        self._outcomes = outcomes
        self._clock = clock
        self.policy = policy or KeeperPolicy()

    async def poll(self) -> list[tuple[int, UUID]]:
        """Each minute: begin what is ready, fairly; end what is over; ring where work lies. What was begun."""
        now = self._clock.now()
        await self.expire()
        async with self._database.worker() as tx:
            await tx.execute(S.reopen_campaigns, now)
        begun = await self.begin()
        await self.money()
        await self.finish(None)
        async with self._database.worker() as tx:
            await self._dispatcher.ring(tx)
            await self._dispatcher.ring_retries(tx)
            for row in await tx.fetch(S.unwritten_audiences, now - timedelta(minutes=2)):
                await self.launch(tx, row["tenant_id"], row["campaign_id"])
        return begun

    async def begin(self) -> list[tuple[int, UUID]]:
        """Begin campaigns whose time has come, fairly among tenants. Each second too: "now" is not the next minute."""
        now, policy = self._clock.now(), self.policy
        begun = []
        async with self._database.worker() as tx:
            await tx.execute(S.due_scheduled, now)
            for row in await tx.fetch(S.ready_campaigns, now, policy.per_poll, policy.per_tenant):
                tenant_id, campaign_id = row["tenant_id"], row["campaign_id"]
                if await tx.fetchval(S.begin_campaign, tenant_id, campaign_id, now) is not None:
                    await self.launch(tx, tenant_id, campaign_id)
                    begun.append((tenant_id, campaign_id))
        return begun

    async def launch(self, tx: Tx, tenant_id: int, campaign_id: UUID) -> None:
        data = {"campaign_id": str(campaign_id)}
        opts = JobOptions(priority=CAMPAIGN_PRIORITY)
        await self._outbox.put(tx, QUEUE, "launch", data, tenant_id=tenant_id, opts=opts)

    async def sweep(self) -> Swept:
        """What a dead worker or a lost Redis left behind. Only what was certainly not written goes again."""
        now, policy = self._clock.now(), self.policy
        counts = []
        for statement, age_s, more in (
            (S.sweep_claims, policy.claim_s, ()),
            (S.sweep_attempts, policy.answer_s, ()),
            (S.sweep_unknown, policy.unknown_h * 3600, (now,)),
        ):
            async with self._database.worker() as tx:
                rows = await tx.fetch(statement, now - timedelta(seconds=age_s), MOST, *more)
                await self._outcomes.report(
                    tx, [(row["tenant_id"], row["message_id"]) for row in rows if row["single"]]
                )
            counts.append(len(rows))
        swept = Swept(*counts)
        if any(counts):
            _log.info("messages-swept", claims=swept.claims, attempts=swept.attempts, unknown=swept.unknown)
        async with self._database.worker() as tx:
            expired = await tx.fetch(S.expire_singles, now, MOST)
            await self._outcomes.report(tx, [(row["tenant_id"], row["message_id"]) for row in expired])
        metrics.MESSAGE_SKIPS.labels("expired").inc(len(expired))
        async with self._database.worker() as tx:
            await self._dispatcher.ring(tx)
            await self._singles.ring(tx)
        return swept

    async def finish(self, tenant_id: int | None) -> int:
        """Campaigns in which everybody has been dealt with."""
        now = self._clock.now()
        ended = 0
        async with self._database.worker() as tx:
            for row in await tx.fetch(S.finished_campaigns, tenant_id):
                found, campaign_id = row["tenant_id"], row["campaign_id"]
                if await tx.fetchval(S.complete_campaign, found, campaign_id, now) is None:
                    continue
                await self._hooks.announce(tx, found, "campaign.completed", {"campaign_id": str(campaign_id)})
                metrics.CAMPAIGNS_ENDED.labels("completed").inc()
                ended += 1
        return ended

    async def expire(self) -> int:
        """Past their time: whoever was not written to is skipped, and the campaign says so."""
        now = self._clock.now()
        async with self._database.worker() as tx:
            over = [(row["tenant_id"], row["campaign_id"]) for row in await tx.fetch(S.expired_campaigns, now)]
        for tenant_id, campaign_id in over:
            async with self._database.worker() as tx:
                found = await tx.fetchrow(S.lock_campaign, tenant_id, campaign_id)
                if found is None or found["state"] not in ("scheduled", "queued", "running", "paused"):
                    continue  # ended in between, by somebody else
                await tx.fetchrow(S.move_campaign, tenant_id, campaign_id, "expired", "expired", None, None, now)
                await self._hooks.announce(tx, tenant_id, "campaign.expired", {"campaign_id": str(campaign_id)})
            metrics.CAMPAIGNS_ENDED.labels("expired").inc()
            await self.skip_rest(tenant_id, campaign_id, "expired")
        async with self._database.worker() as tx:
            left = [(row["tenant_id"], row["campaign_id"], row["state"]) for row in await tx.fetch(S.ended_with_rest)]
        for tenant_id, campaign_id, state in left:  # a page that was written while the campaign was ended
            await self.skip_rest(tenant_id, campaign_id, state)
        return len(over)

    async def skip_rest(self, tenant_id: int, campaign_id: UUID, reason: str) -> int:
        """In pages. What is being written at this moment is not touched: its answer tells."""
        skipped = 0
        while True:
            async with self._database.worker() as tx:
                rows = await tx.fetch(S.skip_rest, tenant_id, campaign_id, MOST, reason, self._clock.now())
            skipped += len(rows)
            metrics.MESSAGE_SKIPS.labels(reason).inc(len(rows))
            if len(rows) < MOST:
                return skipped

    async def money(self) -> None:
        """Give back what refused messages had been counted for, and pause what cannot pay for one more."""
        async with self._database.worker() as tx:
            tenants = [row["tenant_id"] for row in await tx.fetch(S.capped_tenants)]
        for tenant_id in tenants:
            async with self._database.worker() as tx:
                await tx.execute(S.lock_counted, tenant_id)
                await tx.execute(S.recount_spent, tenant_id)
                for row in await tx.fetch(S.out_of_money, tenant_id):
                    await self._consequences.pause_campaign(tx, tenant_id, row["campaign_id"], "spend_cap")

    async def forget(self) -> int:
        """Worked-off webhooks and people no tier counts any more."""
        now = self._clock.now()
        gone = await repeat(self._database, S.forget_webhooks, now - timedelta(days=self.policy.webhook_days))
        return gone + await self._forget_reached(now - timedelta(milliseconds=2 * COUNTED_MS))

    async def _forget_reached(self, before: datetime) -> int:
        async def portion(place: tuple[int, str], limit: int) -> tuple[int, tuple[int, str] | None]:
            async with self._database.worker() as tx:
                row = await tx.fetchrow(S.forget_reached, before, *place, limit)
            if row is None:
                return 0, None
            return row[0], place if row[0] >= limit else (row[1], row[2])  # the same portfolio again, or the next

        return await work(portion, (0, ""))
