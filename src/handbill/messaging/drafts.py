"""Drafts of campaigns: changed, copied, deleted. What was started stays as it was started."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType, structs

from handbill.infra.postgres import Database, Tx
from handbill.kit import etags
from handbill.kit.clock import Clock
from handbill.kit.errors import Conflict, Fault, Invalid, NotFound
from handbill.kit.ids import Ids
from handbill.messaging import checks, store
from handbill.messaging.links import MAX_NUMBERS
from handbill.messaging.plan import (
    AudienceSpec,
    BindingIn,
    Campaign,
    Digits,
    Name,
    NewCampaign,
    PersonCap,
    Quiet,
    UsedTemplate,
    UsedText,
)
from handbill.messaging.store import S
from handbill.tenants.service import Audit


class CampaignPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is left out stays. Objects and lists are replaced whole; null takes an optional part away."""

    name: Name | UnsetType = UNSET
    connection_id: UUID | UnsetType = UNSET
    """Another connection; without `numbers` beside it, all of its numbers."""
    content: UsedTemplate | UsedText | UnsetType = UNSET
    numbers: Annotated[list[Digits], Meta(max_length=MAX_NUMBERS)] | UnsetType = UNSET
    """The sending numbers, by the provider's ids; none: every number of the connection."""
    bindings: Annotated[dict[str, BindingIn], Meta(max_length=100)] | UnsetType = UNSET
    audience: AudienceSpec | UnsetType = UNSET
    purpose: Literal["marketing", "utility"] | UnsetType = UNSET
    scheduled_at: datetime | UnsetType | None = UNSET
    expires_at: datetime | UnsetType | None = UNSET
    quiet: Quiet | UnsetType | None = UNSET
    person_cap: PersonCap | UnsetType | None = UNSET
    price: Decimal | UnsetType = UNSET
    """What one message is expected to cost, as a decimal string."""
    spend_cap: Decimal | UnsetType | None = UNSET
    currency: Annotated[str, Meta(pattern="^[A-Z]{3}$")] | UnsetType = UNSET


class CampaignDrafts:
    def __init__(self, database: Database, audit: Audit, clock: Clock, ids: Ids) -> None:
        self._database = database
        self._audit = audit
        self._clock = clock
        self._ids = ids

    async def change(
        self, tenant_id: int, campaign_id: UUID, patch: CampaignPatch, *, actor: str, version: int | None = None
    ) -> Campaign:
        """Only what is given. Raises Conflict for anything but a draft, PreconditionFailed for a stale one."""
        now = self._clock.now()
        given = {name: value for name, value in structs.asdict(patch).items() if value is not UNSET}
        async with self._database.tenant(tenant_id) as tx:
            before = await self._lock_draft(tx, tenant_id, campaign_id, "changed")
            etags.check(version, before.version)
            wanted = structs.replace(_as_new(before), **given)
            if patch.connection_id is not UNSET and patch.numbers is UNSET:
                wanted = structs.replace(wanted, numbers=[])
            checks.new_campaign(wanted, now)
            numbers = await choose_numbers(tx, tenant_id, wanted.connection_id, wanted.numbers)
            zone = await tx.fetchval(S.tenant_zone, tenant_id) or "UTC"
            after = await store.update_campaign(tx, tenant_id, campaign_id, wanted, numbers, zone, now)
            await self._audit.write(
                tx, tenant_id, actor=actor, action="campaign.change", object=f"message campaign {campaign_id}",
                before=_shown(before, given), after=_shown(after, given),
            )  # fmt: skip
        return after

    async def clone(self, tenant_id: int, campaign_id: UUID, name: str | None, *, actor: str) -> Campaign:
        """A draft with everything that a campaign of any state says, but for times that are over."""
        now = self._clock.now()
        async with self._database.tenant(tenant_id) as tx:
            source = await store.read_campaign(tx, tenant_id, campaign_id)
            if source is None:
                raise _missing()
            wanted = structs.replace(
                _as_new(source), name=name or f"Copy of {source.name}"[:200],
                scheduled_at=_if_ahead(source.scheduled_at, now), expires_at=_if_ahead(source.expires_at, now),
            )  # fmt: skip
            checks.new_campaign(wanted, now)
            there = {row["number_id"] for row in await tx.fetch(S.read_numbers, tenant_id, [source.connection_id])}
            left = [number for number in wanted.numbers if number in there]
            numbers = await choose_numbers(tx, tenant_id, wanted.connection_id, left)
            made = await store.insert_campaign(
                tx, tenant_id, self._ids.new(), wanted, numbers, wanted.purpose,
                await tx.fetchval(S.tenant_zone, tenant_id) or "UTC", actor, now,
            )  # fmt: skip
            await self._audit.write(
                tx, tenant_id, actor=actor, action="campaign.clone", object=f"message campaign {made.campaign_id}",
                after={"state": made.state, "name": made.name, "source": str(campaign_id)},
            )  # fmt: skip
        return made

    async def delete(self, tenant_id: int, campaign_id: UUID, *, actor: str, version: int | None = None) -> None:
        """Raises Conflict for anything but a draft: what was started is the record of who was written to."""
        async with self._database.tenant(tenant_id) as tx:
            before = await self._lock_draft(tx, tenant_id, campaign_id, "deleted")
            etags.check(version, before.version)
            await tx.execute(S.delete_campaign, tenant_id, campaign_id)
            await self._audit.write(
                tx, tenant_id, actor=actor, action="campaign.delete", object=f"message campaign {campaign_id}",
                before={"state": before.state, "name": before.name},
            )  # fmt: skip

    async def _lock_draft(self, tx: Tx, tenant_id: int, campaign_id: UUID, verb: str) -> Campaign:
        found = await store.read_campaign(tx, tenant_id, campaign_id, lock=True)
        if found is None:
            raise _missing()
        if found.state != "draft":
            raise Conflict(
                f"A campaign that is {found.state} cannot be {verb}, only a draft. Nothing was changed; clone it.",
                code="CAMPAIGN_STATE",
            )
        return found


async def choose_numbers(tx: Tx, tenant_id: int, connection_id: UUID, asked: Sequence[str]) -> list[str]:
    """The numbers of a campaign: those asked for, or all of the connection. Raises Invalid for any other."""
    there = [row["number_id"] for row in await tx.fetch(S.read_numbers, tenant_id, [connection_id])]
    chosen = sorted(set(asked)) or there[:MAX_NUMBERS]
    unknown = [number for number in chosen if number not in there]
    if unknown or not chosen:
        raise Invalid(
            "The campaign's numbers are not numbers of its connection; nothing was changed.",
            faults=[Fault("numbers", f"{one} is no number of the connection") for one in unknown]
            or [Fault("connection_id", "names no connection of yours with a number")],
        )
    return chosen


def _as_new(campaign: Campaign) -> NewCampaign:
    same = {name: getattr(campaign, name) for name in NewCampaign.__struct_fields__ if name != "purpose"}
    return NewCampaign(**same, purpose="utility" if campaign.purpose == "test" else campaign.purpose)


def _if_ahead(at: datetime | None, now: datetime) -> datetime | None:
    return at if at is not None and at > now else None


def _shown(campaign: Campaign, given: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins({name: getattr(campaign, name) for name in given})
    return values


def _missing() -> NotFound:
    return NotFound("There is no such campaign.", code="CAMPAIGN_NOT_FOUND")
