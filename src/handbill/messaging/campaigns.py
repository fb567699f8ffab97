"""The verbs of campaigns. One verb is one transaction, with its line in the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec
from msgspec.structs import replace

from handbill.infra.postgres import Database, Tx
from handbill.kit import pages
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Conflict, Fault, NotFound
from handbill.kit.ids import Ids
from handbill.kit.pages import Page
from handbill.kit.telemetry import logs
from handbill.messaging import checks, store
from handbill.messaging.dispatch import Dispatcher
from handbill.messaging.drafts import choose_numbers
from handbill.messaging.estimate_differences import find_differences
from handbill.messaging.estimate_model import Estimate, Verified
from handbill.messaging.estimates import Estimator, parse_estimate
from handbill.messaging.keeper import Keeper
from handbill.messaging.launch import assign_senders
from handbill.messaging.plan import (
    AudienceSpec,
    Campaign,
    MessageState,
    MessageView,
    NewCampaign,
    Outcomes,
    State,
)
from handbill.messaging.ports import Contacts, Recipient
from handbill.messaging.store import S
from handbill.tenants.service import Audit

_log = logs.get("messaging")


class Campaigns:
    def __init__(
        self,
        database: Database,
        audit: Audit,
        contacts: Contacts,
        dispatcher: Dispatcher,
        keeper: Keeper,
        estimator: Estimator,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._database = database
        self._audit = audit
        self._contacts = contacts
        self._dispatcher = dispatcher
        self._keeper = keeper
        self._estimator = estimator
        self._clock = clock
        self._ids = ids

    # --- making and looking

    async def create(self, tenant_id: int, new: NewCampaign, *, actor: str) -> Campaign:
        """A draft: nothing is sent before somebody starts or schedules it."""
        now = self._clock.now()
        checks.new_campaign(new, now)
        async with self._database.tenant(tenant_id) as tx:
            numbers = await choose_numbers(tx, tenant_id, new.connection_id, new.numbers)
            zone = await tx.fetchval(S.tenant_zone, tenant_id)
            made = await store.insert_campaign(
                tx, tenant_id, self._ids.new(), new, numbers, new.purpose, zone or "UTC", actor, now
            )
            await self._note(tx, tenant_id, actor, "campaign.create", made)
        return made

    async def read(self, tenant_id: int, campaign_id: UUID) -> Campaign:
        async with self._database.tenant(tenant_id) as tx:
            return _there(await store.read_campaign(tx, tenant_id, campaign_id))

    async def listed(
        self, tenant_id: int, cursor: str | None, limit: int, state: State | None = None
    ) -> Page[Campaign]:
        async with self._database.tenant(tenant_id) as tx:
            rows = await store.list_campaigns(tx, tenant_id, checks.after_id(cursor), limit + 1, state)
        return pages.page(rows, limit, lambda row: (str(row.campaign_id),))

    async def messages(
        self, tenant_id: int, campaign_id: UUID, cursor: str | None, limit: int, state: MessageState | None = None
    ) -> Page[MessageView]:
        async with self._database.tenant(tenant_id) as tx:
            _there(await store.read_campaign(tx, tenant_id, campaign_id))
            rows = await store.list_messages(tx, tenant_id, campaign_id, checks.after_id(cursor), limit + 1, state)
        return pages.page(rows, limit, lambda row: (str(row.message_id),))

    async def outcomes(self, tenant_id: int, campaign_id: UUID) -> Outcomes:
        async with self._database.tenant(tenant_id) as tx:
            _there(await store.read_campaign(tx, tenant_id, campaign_id))
            return await _count_states(tx, tenant_id, campaign_id)

    async def verify(self, tenant_id: int, campaign_id: UUID) -> Verified:
        """Each recipient has exactly one outcome, and each that was not sent a reason: counted anew from the rows.

        Beside it the estimate that the campaign was started with, and each figure that came out differently.
        """
        async with self._database.tenant(tenant_id) as tx:
            campaign = _there(await store.read_campaign(tx, tenant_id, campaign_id))
            row = await tx.fetchrow(S.verify_campaign, tenant_id, campaign_id)
            estimate = parse_estimate(await tx.fetchval(S.read_estimate, tenant_id, campaign_id))
            outcomes = await _count_states(tx, tenant_id, campaign_id)
        assert row is not None
        differences = find_differences(estimate, campaign.audience_size, outcomes.states, outcomes.reasons)
        return checks.verified(campaign, dict(row), estimate, differences)

    async def estimate(self, tenant_id: int, campaign_id: UUID) -> Estimate:
        """What would happen if it began now, or at its own time: who is skipped and why, how long, how much."""
        return await self._estimator.estimate(tenant_id, await self.read(tenant_id, campaign_id))

    # --- moving

    async def start(self, tenant_id: int, campaign_id: UUID, *, at: datetime | None, actor: str) -> Campaign:
        """Now, or at a time: the poller begins it, fairly among all tenants."""
        checks.refuse(checks.time_faults("at", at, self._clock.now()), "nothing was scheduled")
        before = await self.read(tenant_id, campaign_id)
        await self._refuse_unsendable(tenant_id, before, "nothing was scheduled")
        now = self._clock.now()
        when = at or before.scheduled_at or now
        if before.expires_at is not None and max(when, now) >= before.expires_at:
            raise Conflict("The campaign would begin after its end; nothing was scheduled.", code="CAMPAIGN_NOT_READY")
        _allowed(before, ("draft", "scheduled"), "started")
        estimate = await self._estimate_at_start(tenant_id, before, when)
        async with self._database.tenant(tenant_id) as tx:
            before = _there(await store.read_campaign(tx, tenant_id, campaign_id, lock=True))
            _allowed(before, ("draft", "scheduled"), "started")
            state: State = "scheduled" if when > now else "queued"
            after = await store.move_campaign(tx, tenant_id, campaign_id, state, now, scheduled_at=when)
            await tx.execute(S.keep_estimate, tenant_id, campaign_id, estimate)
            await self._note(tx, tenant_id, actor, "campaign.start", after, before)
        return after

    async def pause(self, tenant_id: int, campaign_id: UUID, *, actor: str) -> Campaign:
        """Nothing more is written from the next attempt on; what is under way ends."""
        async with self._database.tenant(tenant_id) as tx:
            before = _there(await store.read_campaign(tx, tenant_id, campaign_id, lock=True))
            _allowed(before, ("scheduled", "queued", "running"), "paused")
            after = await store.move_campaign(
                tx, tenant_id, campaign_id, "paused", self._clock.now(), reason="operator", resume_to=before.state
            )
            await self._note(tx, tenant_id, actor, "campaign.pause", after, before)
        return after

    async def resume(self, tenant_id: int, campaign_id: UUID, *, actor: str) -> Campaign:
        async with self._database.tenant(tenant_id) as tx:
            before = _there(await store.read_campaign(tx, tenant_id, campaign_id, lock=True))
            _allowed(before, ("paused",), "resumed")
            after = await store.move_campaign(
                tx, tenant_id, campaign_id, before.resume_to or "queued", self._clock.now()
            )
            await self._note(tx, tenant_id, actor, "campaign.resume", after, before)
        await self._woken(tenant_id, after)
        return after

    async def cancel(self, tenant_id: int, campaign_id: UUID, *, actor: str) -> Campaign:
        """For good: whoever was not written to is skipped; what is being written at this moment ends by its answer."""
        async with self._database.tenant(tenant_id) as tx:
            before = _there(await store.read_campaign(tx, tenant_id, campaign_id, lock=True))
            _allowed(before, ("draft", "scheduled", "queued", "running", "paused"), "cancelled")
            after = await store.move_campaign(tx, tenant_id, campaign_id, "cancelled", self._clock.now())
            await self._note(tx, tenant_id, actor, "campaign.cancel", after, before)
        await self._keeper.skip_rest(tenant_id, campaign_id, "cancelled")
        return after

    async def retry_failed(
        self, tenant_id: int, campaign_id: UUID, reasons: Sequence[str] | None, *, actor: str
    ) -> Campaign:
        """Failed messages go again, when a person asks. Unknown ones are not among them: they may have arrived."""
        now = self._clock.now()
        async with self._database.tenant(tenant_id) as tx:
            before = _there(await store.read_campaign(tx, tenant_id, campaign_id, lock=True))
            _allowed(before, ("running", "paused", "completed"), "tried again")
            if before.expires_at is not None and before.expires_at <= now:
                raise Conflict("The campaign's time is over; nothing was changed.", code="CAMPAIGN_STATE")
            rows = await tx.fetch(S.retry_failed, tenant_id, campaign_id, now, list(reasons) if reasons else None)
            after = before
            if rows and before.state == "completed":
                after = await store.move_campaign(tx, tenant_id, campaign_id, "running", now)
            await self._audit.write(
                tx, tenant_id, actor=actor, action="campaign.retry_failed", object=f"message campaign {campaign_id}",
                after={"messages": len(rows)},
            )  # fmt: skip
        await self._woken(tenant_id, after)
        return after

    async def test_send(
        self, tenant_id: int, campaign_id: UUID, people: Sequence[Recipient], *, actor: str
    ) -> Campaign:
        """The same words to a few addresses, as a campaign of its own that counts for nothing else."""
        now = self._clock.now()
        source = await self.read(tenant_id, campaign_id)
        await self._refuse_unsendable(tenant_id, source, "nothing was sent")
        new = NewCampaign(
            f"Test: {source.name}"[:200], source.connection_id, source.content, bindings=source.bindings,
            audience=AudienceSpec(), price=source.price, currency=source.currency,
        )  # fmt: skip
        people = [replace(one, address=self._contacts.address(source.channel, one.address)) for one in people]
        async with self._database.tenant(tenant_id) as tx:
            made = await store.insert_campaign(
                tx, tenant_id, self._ids.new(), new, source.numbers, "test", "UTC", actor, now
            )
            senders = await assign_senders(tx, tenant_id, made, people, now)
            rows = [(self._ids.new(), sender, person) for sender, person in zip(senders, people, strict=True)]
            count = await store.insert_messages(tx, tenant_id, made, rows, now)
            await tx.fetchval(S.audience_written, tenant_id, made.campaign_id, None, True, count, now, None)
            made = await store.move_campaign(tx, tenant_id, made.campaign_id, "running", now)
            await self._note(tx, tenant_id, actor, "campaign.test", made)
        await self._woken(tenant_id, made)
        return made

    # --- parts

    async def _refuse_unsendable(self, tenant_id: int, campaign: Campaign, consequence: str) -> None:
        _, problems = await self._estimator.find_template(tenant_id, campaign)
        if problems:
            raise Conflict(
                f"The campaign cannot be sent as it is; {consequence}.",
                code="CAMPAIGN_NOT_READY",
                faults=[Fault("content", problem.detail) for problem in problems],
            )

    async def _estimate_at_start(self, tenant_id: int, campaign: Campaign, begins_at: datetime) -> str | None:
        """To be compared with the outcome. None where the audience cannot be read now."""
        try:
            estimate = await self._estimator.estimate(tenant_id, campaign, begins_at)
        except (Busy, Conflict) as error:
            _log.warning("campaign.not_estimated", tenant_id=tenant_id, reason=error.code)
            return None
        return msgspec.json.encode(estimate).decode()

    async def _woken(self, tenant_id: int, campaign: Campaign) -> None:
        if campaign.state != "running":
            return
        async with self._database.worker() as tx:
            if not campaign.audience_done:
                await self._keeper.launch(tx, tenant_id, campaign.campaign_id)
            await self._dispatcher.ring(tx, tenant_id)
            await self._dispatcher.ring_retries(tx, tenant_id)

    async def _note(
        self, tx: Tx, tenant_id: int, actor: str, action: str, after: Campaign, before: Campaign | None = None
    ) -> None:
        await self._audit.write(
            tx, tenant_id, actor=actor, action=action, object=f"message campaign {after.campaign_id}",
            before=None if before is None else {"state": before.state},
            after={"state": after.state, "name": after.name},
        )  # fmt: skip


async def _count_states(tx: Tx, tenant_id: int, campaign_id: UUID) -> Outcomes:
    states: dict[str, int] = {}
    reasons: dict[str, dict[str, int]] = {}
    for row in await tx.fetch(S.count_states, tenant_id, campaign_id):
        states[row["state"]] = states.get(row["state"], 0) + row["messages"]
        if row["reason"] is not None:
            reasons.setdefault(row["state"], {})[row["reason"]] = row["messages"]
    return Outcomes(states, reasons)


def _there(found: Campaign | None) -> Campaign:
    if found is None:
        raise NotFound("There is no such campaign.", code="CAMPAIGN_NOT_FOUND")
    return found


def _allowed(campaign: Campaign, states: Sequence[str], verb: str) -> None:
    if campaign.state not in states:
        raise Conflict(
            f"A campaign that is {campaign.state} cannot be {verb}; nothing was changed.", code="CAMPAIGN_STATE"
        )
