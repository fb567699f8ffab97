"""What a campaign would come to if it began now: every reason to skip somebody that is there before the first message.

The audience is read in pages. One statement gives the reasons that a claim would give, then the template is filled in.
Time and memory are bounded: of an audience that is too large, a part is counted, and the estimate says so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra.postgres import Database
from handbill.kit.clock import Clock
from handbill.messaging import store
from handbill.messaging.dispatch import ONE_DAY, TurnPolicy
from handbill.messaging.estimate_model import Estimate, EstimateProblem
from handbill.messaging.estimate_problems import Limits, find_problems, plan_sending
from handbill.messaging.launch import assign_senders, unique_addresses
from handbill.messaging.model import Template
from handbill.messaging.plan import Campaign, UsedTemplate
from handbill.messaging.ports import Contacts, Recipient
from handbill.messaging.render import Missing, Rendered, TooLong, fill, unbound, unsupported
from handbill.messaging.store import OPEN_FOR, S

PAGE = 1_000
AT_ONCE = 2
"""Estimates that one process counts at a time; the next ones wait."""


class EstimatePolicy(msgspec.Struct, frozen=True):
    """How far an estimate looks."""

    max_people: int = 250_000
    max_s: float = 5.0


class Tally:
    """What was counted so far."""

    def __init__(self) -> None:
        self.addresses: set[str] = set()
        self.skipped: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()
        self.ready = self.quiet = self.new = 0

    def add(self, row: Any, rendered: Rendered | str | None) -> None:
        if row["reason"] is not None:
            self.skipped[row["reason"]] += 1
        elif isinstance(rendered, str):
            self.skipped[rendered] += 1
        elif isinstance(rendered, Missing):
            self.skipped["variable_missing"] += 1
            self.missing.update(rendered.keys)
        elif isinstance(rendered, TooLong):
            self.skipped["text_too_long"] += 1
        else:
            self.ready += 1
            self.quiet += row["is_quiet"]
            self.new += row["is_new"]


class Estimator:
    def __init__(
        self, database: Database, contacts: Contacts, clock: Clock, turn: TurnPolicy, policy: EstimatePolicy
    ) -> None:
        self._database = database
        self._contacts = contacts
        self._clock = clock
        self._turn = turn
        self._policy = policy
        self._running = asyncio.Semaphore(AT_ONCE)

    async def find_template(self, tenant_id: int, campaign: Campaign) -> tuple[Template | None, list[EstimateProblem]]:
        """The template, and every reason why it cannot be sent to anybody."""
        used = campaign.content
        if not isinstance(used, UsedTemplate):
            return None, []
        async with self._database.tenant(tenant_id) as tx:
            template = await store.read_template(tx, tenant_id, campaign.connection_id, used.name, used.language)
        if template is None:
            detail = "the template is not known; synchronise the connection's templates"
            return None, [EstimateProblem("template_unknown", detail, is_blocking=True)]
        found = []
        if template.state != "APPROVED":
            found.append(("template_not_approved", f"the template is {template.state}"))
        found += [
            ("template_unsupported", f"the template has a part that cannot be filled: {part}")
            for part in unsupported(template)
        ]
        found += [("variable_unbound", f"no value is named for {key}") for key in unbound(template, campaign.bound)]
        return template, [EstimateProblem(code, detail, is_blocking=True) for code, detail in found]

    async def estimate(self, tenant_id: int, campaign: Campaign, begins_at: datetime | None = None) -> Estimate:
        """Raises Busy while the audience's segment is being evaluated, Conflict when it is gone."""
        async with self._running:
            now = self._clock.now()
            begins = max(begins_at or campaign.scheduled_at or now, now)
            template, problems = await self.find_template(tenant_id, campaign)
            limits = await self._limits(tenant_id, campaign, begins)
            tally = Tally()
            is_complete = await self._count(tenant_id, campaign, template, limits, begins, tally)
        sending = plan_sending(campaign, limits, ready=tally.ready, new=tally.new)
        cost = campaign.price * tally.ready
        estimate = Estimate(
            estimated_at=now, begins_at=begins, audience=len(tally.addresses), ready=tally.ready,
            skipped=dict(sorted(tally.skipped.items())), missing=dict(sorted(tally.missing.items())),
            too_long=tally.skipped["text_too_long"],
            later={"quiet_hours": tally.quiet, "tier": sending.over_tier}, unaffordable=sending.unaffordable,
            seconds=sending.seconds, price=campaign.price, cost=cost, currency=campaign.currency,
            within_cap=campaign.spend_cap is None or cost <= campaign.spend_cap, problems=[], is_complete=is_complete,
        )  # fmt: skip
        return msgspec.structs.replace(estimate, problems=problems + find_problems(campaign, estimate, limits))

    async def _limits(self, tenant_id: int, campaign: Campaign, begins: datetime) -> Limits:
        async with self._database.tenant(tenant_id) as tx:
            row = await tx.fetchrow(S.sending_limits, tenant_id, campaign.connection_id, campaign.numbers, begins)
            assert row is not None
            tier, used = row["tier"], 0
            if tier is not None:
                used = await tx.fetchval(S.count_reached, tenant_id, row["portfolio"], begins - ONE_DAY, tier)
        is_enterprise = row["tenant_tier"] == "enterprise"
        by_tier = self._turn.enterprise_per_second if is_enterprise else self._turn.standard_per_second
        return Limits(
            portfolio=row["portfolio"], is_stopped=row["is_stopped"], is_token_dead=row["is_token_dead"],
            senders=row["senders"], paused_senders=row["paused_senders"], per_second=row["per_second"],
            tenant_per_second=by_tier if row["tenant_pace"] is None else row["tenant_pace"], tier=tier, reached=used,
        )  # fmt: skip

    async def _count(
        self, tenant_id: int, campaign: Campaign, template: Template | None, limits: Limits, begins: datetime,
        tally: Tally,
    ) -> bool:  # fmt: skip
        """True once everybody was counted."""
        ends = self._clock.monotonic() + self._policy.max_s
        after: UUID | None = None
        while True:
            page = await self._contacts.audience(tenant_id, campaign.channel, campaign.audience, after, PAGE)
            people = [one for one in unique_addresses(page.recipients) if one.address not in tally.addresses]
            tally.addresses.update(one.address for one in people)
            await self._count_page(tenant_id, campaign, template, limits, begins, people, tally)
            after = page.after
            if after is None:
                return True
            if len(tally.addresses) >= self._policy.max_people or self._clock.monotonic() >= ends:
                return False

    async def _count_page(
        self, tenant_id: int, campaign: Campaign, template: Template | None, limits: Limits, begins: datetime,
        people: Sequence[Recipient], tally: Tally,
    ) -> None:  # fmt: skip
        if not people:
            return
        cap, quiet = campaign.person_cap, campaign.quiet
        async with self._database.tenant(tenant_id) as tx:
            senders = await assign_senders(tx, tenant_id, campaign, people, begins)
            rows = await tx.fetch(
                S.foresee, tenant_id, campaign.channel, [one.address for one in people],
                [one.contact_id for one in people], [one.zone for one in people], senders, begins,
                cap and cap.count, cap and cap.hours, begins - OPEN_FOR if campaign.is_free_text else None,
                quiet is not None and quiet.by == "contact", quiet and quiet.zone, quiet and quiet.since,
                quiet and quiet.until, limits.portfolio, begins - ONE_DAY, campaign.purpose,
            )  # fmt: skip
        same = None if campaign.wanted_fields else _render(campaign, template, {})
        for row, person in zip(rows, people, strict=True):
            rendered = _render(campaign, template, person.fields) if campaign.wanted_fields else same
            tally.add(row, rendered)


def _render(campaign: Campaign, template: Template | None, fields: dict[str, Any]) -> Rendered | str | None:
    if campaign.is_free_text:
        return None
    return "template_gone" if template is None else fill(template, campaign.bound, fields)


def parse_estimate(text: str | None) -> Estimate | None:
    return None if text is None else msgspec.json.decode(text, type=Estimate)
