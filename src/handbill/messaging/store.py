"""Rows in and out: one function a statement, each inside the transaction it is given."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.postgres import Tx
from handbill.messaging.limits import OPEN_MS
from handbill.messaging.model import Template
from handbill.messaging.plan import (
    Campaign,
    MessageView,
    NewCampaign,
    State,
    campaign_of,
    content_json,
)
from handbill.messaging.ports import Recipient

S = sqlfiles.load("handbill.messaging")

BEGINNING = "-infinity"
OPEN_FOR = timedelta(milliseconds=OPEN_MS)
"""For so long after a person's own message free text may be sent to them."""


class NumberRow(msgspec.Struct, frozen=True, kw_only=True):
    """A number at the beginning of a turn, its row locked."""

    number_id: str
    connection_id: UUID
    per_second: int
    tier: int | None
    waba_id: str
    portfolio: str
    ours: bool
    turn_until: datetime
    paused: bool
    stopped: bool
    tenant_pace: int | None
    tenant_tier: str


class Claimed(msgspec.Struct, frozen=True, kw_only=True):
    """One message that this turn may send, or that was skipped in the claim."""

    message_id: UUID
    campaign_id: UUID | None
    """None: a single message."""
    address: str
    state: str
    reason: str | None
    attempts: int
    fields: dict[str, Any]
    created_at: datetime
    reply_to: str | None = None


class Settlement(msgspec.Struct, frozen=True):
    """What came of one claimed message; `settle` in dispatch.sql says what each kind does."""

    tenant_id: int
    message_id: UUID
    claim: UUID
    kind: str
    wamid: str | None = None
    reason: str | None = None
    code: int | None = None
    details: str | None = None
    due_at: datetime | None = None
    number_id: str = ""
    """Where a later try is to be rung for."""


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# --- campaigns


async def insert_campaign(
    tx: Tx, tenant_id: int, campaign_id: UUID, new: NewCampaign, numbers: Sequence[str], purpose: str, zone: str,
    actor: str, now: datetime,
) -> Campaign:  # fmt: skip
    quiet, cap = new.quiet, new.person_cap
    row = await tx.fetchrow(
        S.insert_campaign, tenant_id, campaign_id, new.name, "whatsapp", new.connection_id, list(numbers),
        content_json(new.content), _json(new.bindings), _json(new.audience), purpose, new.scheduled_at, new.expires_at,
        quiet and quiet.since, quiet and quiet.until, quiet and (quiet.zone or zone), quiet and quiet.by,
        cap and cap.count, cap and cap.hours, new.price, new.spend_cap, new.currency, actor[:300], now,
    )  # fmt: skip
    return campaign_of(row)


async def update_campaign(
    tx: Tx, tenant_id: int, campaign_id: UUID, new: NewCampaign, numbers: Sequence[str], zone: str, now: datetime
) -> Campaign:
    """Of a draft that is locked."""
    quiet, cap = new.quiet, new.person_cap
    row = await tx.fetchrow(
        S.update_campaign, tenant_id, campaign_id, new.name, new.connection_id, list(numbers),
        content_json(new.content), _json(new.bindings), _json(new.audience), new.purpose, new.scheduled_at,
        new.expires_at, quiet and quiet.since, quiet and quiet.until, quiet and (quiet.zone or zone),
        quiet and quiet.by, cap and cap.count, cap and cap.hours, new.price, new.spend_cap, new.currency, now,
    )  # fmt: skip
    return campaign_of(row)


async def read_campaign(tx: Tx, tenant_id: int, campaign_id: UUID, *, lock: bool = False) -> Campaign | None:
    row = await tx.fetchrow(S.lock_campaign if lock else S.read_campaign, tenant_id, campaign_id)
    return None if row is None else campaign_of(row)


async def list_campaigns(tx: Tx, tenant_id: int, after: UUID | None, limit: int, state: State | None) -> list[Campaign]:
    return [campaign_of(row) for row in await tx.fetch(S.list_campaigns, tenant_id, after, limit, state)]


async def move_campaign(
    tx: Tx, tenant_id: int, campaign_id: UUID, state: State, now: datetime, *, reason: str | None = None,
    resume_to: State | None = None, scheduled_at: datetime | None = None,
) -> Campaign:  # fmt: skip
    row = await tx.fetchrow(S.move_campaign, tenant_id, campaign_id, state, reason, resume_to, scheduled_at, now)
    return campaign_of(row)


async def insert_messages(
    tx: Tx, tenant_id: int, campaign: Campaign, rows: Sequence[tuple[UUID, str, Recipient]], now: datetime
) -> int:
    """Each with its id and number; whoever has a row already is left alone."""
    wanted = campaign.wanted_fields
    made = await tx.fetch(
        S.insert_messages, tenant_id, campaign.campaign_id, campaign.channel, now,
        [message_id for message_id, _, _ in rows], [person.address for _, _, person in rows],
        [person.contact_id for _, _, person in rows], [number for _, number, _ in rows],
        [_json({key: value for key, value in person.fields.items() if key in wanted}) for _, _, person in rows],
        [person.zone for _, _, person in rows],
    )  # fmt: skip
    return len(made)


async def list_messages(
    tx: Tx, tenant_id: int, campaign_id: UUID, after: UUID | None, limit: int, state: str | None
) -> list[MessageView]:
    rows = await tx.fetch(S.list_messages, tenant_id, campaign_id, after, limit, state)
    return [msgspec.convert(dict(row), MessageView) for row in rows]


# --- sending


async def lock_number(
    tx: Tx, tenant_id: int, number_id: str, turn: UUID | None, now: datetime, *, singles: bool = False
) -> NumberRow | None:
    """`singles`: `turn` is one of single messages, which have a chain of their own."""
    statement = S.lock_number_for_singles if singles else S.lock_number
    row = await tx.fetchrow(statement, tenant_id, number_id, turn, now)
    return None if row is None else NumberRow(**{name: row[name] for name in NumberRow.__struct_fields__})


async def claim(
    tx: Tx, tenant_id: int, number: NumberRow, limit: int, *, retries: bool, now: datetime, claim: UUID,
    counted_since: datetime,
) -> list[Claimed]:  # fmt: skip
    rows = await tx.fetch(
        S.claim,
        tenant_id,
        number.number_id,
        limit,
        retries,
        now,
        claim,
        number.portfolio,
        number.tier,
        counted_since,
        now - OPEN_FOR,
    )
    return [
        Claimed(
            message_id=row["message_id"], campaign_id=row["campaign_id"], address=row["address"], state=row["state"],
            reason=row["reason"], attempts=row["attempts"], fields=msgspec.json.decode(row["fields"]),
            created_at=row["created_at"],
        )
        for row in rows
    ]  # fmt: skip


async def record_attempts(tx: Tx, asked: Sequence[tuple[int, UUID, UUID]], now: datetime) -> set[UUID]:
    """(tenant, message, claim) of each; the ids of those that may be written now."""
    tenants, messages, claims = zip(*asked, strict=True)
    rows = await tx.fetch(S.record_attempts, list(tenants), list(messages), list(claims), now)
    return {row["message_id"] for row in rows}


async def settle(tx: Tx, all_of: Sequence[Settlement], now: datetime) -> dict[tuple[int, UUID], bool]:
    """Tenant and message of each outcome that was recorded, and whether it is single; the others came too late."""
    rows = await tx.fetch(
        S.settle, [s.tenant_id for s in all_of], [s.message_id for s in all_of], [s.claim for s in all_of],
        [s.kind for s in all_of], [s.wamid for s in all_of], [s.reason for s in all_of], [s.code for s in all_of],
        [s.details for s in all_of], [s.due_at for s in all_of], now,
    )  # fmt: skip
    return {(row["tenant_id"], row["message_id"]): row["single"] for row in rows}


async def read_template(tx: Tx, tenant_id: int, connection_id: UUID, name: str, language: str) -> Template | None:
    row = await tx.fetchrow(S.read_template, tenant_id, connection_id, name, language)
    return None if row is None else template_of(row)


def template_of(row: Any) -> Template:
    return Template(
        id=row["template_id"],
        name=row["name"],
        language=row["language"],
        category=row["category"],
        state=row["state"],
        components=tuple(msgspec.json.decode(row["components"])),
        named=row["named"],
    )
