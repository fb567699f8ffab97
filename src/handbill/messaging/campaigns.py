"""The verbs of campaigns. One verb is one transaction, with its line in the audit log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from uuid import UUID

from msgspec.structs import replace

from handbill.infra.postgres import Database, Tx
from handbill.kit import pages
from handbill.kit.clock import Clock
from handbill.kit.errors import Conflict, Fault, Invalid, NotFound
from handbill.kit.ids import Ids
from handbill.kit.pages import Page
from handbill.messaging import checks, store
from handbill.messaging.dispatch import Dispatcher
from handbill.messaging.keeper import Keeper
from handbill.messaging.launch import number_of
from handbill.messaging.model import Template
from handbill.messaging.plan import (
    AudienceSpec,
    Campaign,
    Estimate,
    MessageState,
    MessageView,
    NewCampaign,
    Outcomes,
    State,
    UsedTemplate,
    Verified,
)
from handbill.messaging.ports import Contacts, Recipient
from handbill.messaging.render import preflight, unbound, unsupported
from handbill.messaging.store import S
from handbill.tenants.service import Audit

LOOK_AT, LOOK_PAGES = 20_000, 100
"""People that an estimate looks at one by one, and pages of the address book that it turns to find them: a small
segment of a large book. Beyond that it says that it is not whole."""


class Campaigns:
    def __init__(
        self,
        database: Database,
        audit: Audit,
        contacts: Contacts,
        dispatcher: Dispatcher,
        keeper: Keeper,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._database = database
        self._audit = audit
        self._contacts = contacts
        self._dispatcher = dispatcher
        self._keeper = keeper
        self._clock = clock
        self._ids = ids

    # --- making and looking

    async def create(self, tenant_id: int, new: NewCampaign, *, actor: str) -> Campaign:
        """A draft: nothing is sent before somebody starts or schedules it."""
        now = self._clock.now()
        checks.new_campaign(new, now)
        async with self._database.tenant(tenant_id) as tx:
            numbers = await self._numbers(tx, tenant_id, new.connection_id, new.numbers)
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
            rows = await tx.fetch(S.count_states, tenant_id, campaign_id)
        states: dict[str, int] = {}
        reasons: dict[str, dict[str, int]] = {}
        for row in rows:
            states[row["state"]] = states.get(row["state"], 0) + row["messages"]
            if row["reason"] is not None:
                reasons.setdefault(row["state"], {})[row["reason"]] = row["messages"]
        return Outcomes(states, reasons)

    async def verify(self, tenant_id: int, campaign_id: UUID) -> Verified:
        """Each recipient has exactly one outcome, and each that was not sent a reason: counted anew from the rows."""
        async with self._database.tenant(tenant_id) as tx:
            campaign = _there(await store.read_campaign(tx, tenant_id, campaign_id))
            row = await tx.fetchrow(S.verify_campaign, tenant_id, campaign_id)
        assert row is not None
        return checks.verified(campaign, dict(row))

    async def estimate(self, tenant_id: int, campaign_id: UUID) -> Estimate:
        """Before the first message: who lacks a variable, what it would cost, and what stands in the way."""
        campaign = await self.read(tenant_id, campaign_id)
        template, problems = await self._template(tenant_id, campaign)
        seen = ready = too_long = 0
        missing: dict[str, int] = {}
        after: UUID | None = None
        for _ in range(LOOK_PAGES):
            page = await self._contacts.audience(tenant_id, campaign.channel, campaign.audience, after, 1_000)
            people = [person.fields for person in page.recipients]
            seen += len(people)
            if template is None:
                ready += len(people)
            else:
                found = preflight(template, campaign.bound, people)
                ready, too_long = ready + found.ready, too_long + found.too_long
                for key, count in found.missing.items():
                    missing[key] = missing.get(key, 0) + count
            after = page.after
            if after is None or seen >= LOOK_AT:
                break
        cost = campaign.price * ready
        within = campaign.spend_cap is None or cost <= campaign.spend_cap
        return Estimate(
            seen, ready, missing, too_long, campaign.price, Decimal(cost), campaign.currency, within, problems,
            whole=after is None,
        )  # fmt: skip

    # --- moving

    async def start(self, tenant_id: int, campaign_id: UUID, *, at: datetime | None, actor: str) -> Campaign:
        """Now, or at a time: the poller begins it, fairly among all tenants."""
        checks.refuse(checks.time_faults("at", at, self._clock.now()), "nothing was scheduled")
        before = await self.read(tenant_id, campaign_id)
        _, problems = await self._template(tenant_id, before)
        if problems:
            raise Conflict(
                "The campaign cannot be sent as it is; nothing was scheduled.",
                code="CAMPAIGN_NOT_READY",
                faults=[Fault("content", problem) for problem in problems],
            )
        now = self._clock.now()
        when = at or before.scheduled_at or now
        if before.expires_at is not None and max(when, now) >= before.expires_at:
            raise Conflict("The campaign would begin after its end; nothing was scheduled.", code="CAMPAIGN_NOT_READY")
        async with self._database.tenant(tenant_id) as tx:
            before = _there(await store.read_campaign(tx, tenant_id, campaign_id, lock=True))
            _allowed(before, ("draft", "scheduled"), "started")
            state: State = "scheduled" if when > now else "queued"
            after = await store.move_campaign(tx, tenant_id, campaign_id, state, now, scheduled_at=when)
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
        _, problems = await self._template(tenant_id, source)
        if problems:
            raise Conflict("The campaign cannot be sent as it is: " + "; ".join(problems), code="CAMPAIGN_NOT_READY")
        new = NewCampaign(
            f"Test: {source.name}"[:200], source.connection_id, source.content, bindings=source.bindings,
            audience=AudienceSpec(), price=source.price, currency=source.currency,
        )  # fmt: skip
        people = [replace(one, address=self._contacts.address(source.channel, one.address)) for one in people]
        async with self._database.tenant(tenant_id) as tx:
            made = await store.insert_campaign(
                tx, tenant_id, self._ids.new(), new, source.numbers, "test", "UTC", actor, now
            )
            rows = [(self._ids.new(), number_of(made, person.address), person) for person in people]
            count = await store.insert_messages(tx, tenant_id, made, rows, now)
            await tx.fetchval(S.audience_written, tenant_id, made.campaign_id, None, True, count, now, None)
            made = await store.move_campaign(tx, tenant_id, made.campaign_id, "running", now)
            await self._note(tx, tenant_id, actor, "campaign.test", made)
        await self._woken(tenant_id, made)
        return made

    # --- parts

    async def _woken(self, tenant_id: int, campaign: Campaign) -> None:
        if campaign.state != "running":
            return
        async with self._database.worker() as tx:
            if not campaign.audience_done:
                await self._keeper.launch(tx, tenant_id, campaign.campaign_id)
            await self._dispatcher.ring(tx, tenant_id)
            await self._dispatcher.ring_retries(tx, tenant_id)

    async def _numbers(self, tx: Tx, tenant_id: int, connection_id: UUID, asked: Sequence[str]) -> list[str]:
        known = [row["number_id"] for row in await tx.fetch(S.read_numbers, tenant_id, [connection_id])]
        chosen = sorted(set(asked)) or known
        strangers = [number for number in chosen if number not in known]
        if strangers or not chosen:
            raise Invalid(
                "The campaign's numbers are not numbers of its connection; nothing was made.",
                faults=[Fault("numbers", f"{one} is no number of the connection") for one in strangers]
                or [Fault("connection_id", "names no connection of yours with a number")],
            )
        return chosen[:100]

    async def _template(self, tenant_id: int, campaign: Campaign) -> tuple[Template | None, list[str]]:
        """The template, and every reason why it cannot be sent."""
        used = campaign.content
        if not isinstance(used, UsedTemplate):
            return None, []
        async with self._database.tenant(tenant_id) as tx:
            template = await store.read_template(tx, tenant_id, campaign.connection_id, used.name, used.language)
        if template is None:
            return None, ["the template is not known; synchronise the connection's templates"]
        problems = []
        if template.state != "APPROVED":
            problems.append(f"the template is {template.state}")
        problems += [f"the template has a part that cannot be filled: {part}" for part in unsupported(template)]
        problems += [f"no value is named for {key}" for key in unbound(template, campaign.bound)]
        return template, problems

    async def _note(
        self, tx: Tx, tenant_id: int, actor: str, action: str, after: Campaign, before: Campaign | None = None
    ) -> None:
        await self._audit.write(
            tx, tenant_id, actor=actor, action=action, object=f"message campaign {after.campaign_id}",
            before=None if before is None else {"state": before.state},
            after={"state": after.state, "name": after.name},
        )  # fmt: skip


def _there(found: Campaign | None) -> Campaign:
    if found is None:
        raise NotFound("There is no such campaign.", code="CAMPAIGN_NOT_FOUND")
    return found


def _allowed(campaign: Campaign, states: Sequence[str], verb: str) -> None:
    if campaign.state not in states:
        raise Conflict(
            f"A campaign that is {campaign.state} cannot be {verb}; nothing was changed.", code="CAMPAIGN_STATE"
        )
