"""Rows of single messages in and out: one function a statement, each inside the transaction it is given."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra.postgres import Tx
from handbill.messaging.plan import UsedTemplate
from handbill.messaging.singles.model import (
    TEXT,
    Kept,
    KeptText,
    NewMessage,
    Purpose,
    SingleMessage,
    Source,
    message_of,
)
from handbill.messaging.store import Claimed, NumberRow, S


class ClaimedSingle(Claimed, frozen=True, kw_only=True):
    """A claimed single message, with what was asked for."""

    connection_id: UUID
    content: Kept
    wrote_at: datetime | None
    """When the person last wrote to the number that sends."""


class Accept(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was checked and is to be kept."""

    message_id: UUID
    key: str
    digest: bytes
    channel: str
    address: str
    contact_id: UUID | None
    connection_id: UUID
    number_id: str
    new: NewMessage
    purpose: Purpose
    source: Source
    actor: str
    expires_at: datetime
    refusal: str | None = None
    """Why it must not be sent: it is kept as skipped."""


class SenderRow(msgspec.Struct, frozen=True):
    """A number that could send, and when the person last wrote to it."""

    number_id: str
    connection_id: UUID
    wrote_at: datetime | None


async def claim_singles(
    tx: Tx, tenant_id: int, number: NumberRow, limit: int, *, now: datetime, claim: UUID, counted_since: datetime,
    wrote_since: datetime,
) -> list[ClaimedSingle]:  # fmt: skip
    """`wrote_since`: whoever wrote after it takes no place in the tier."""
    rows = await tx.fetch(
        S.claim_singles, tenant_id, number.number_id, limit, now, claim, number.portfolio, number.tier, counted_since,
        wrote_since,
    )  # fmt: skip
    return [
        ClaimedSingle(
            message_id=row["message_id"], campaign_id=None, address=row["address"], state=row["state"],
            reason=row["reason"], attempts=row["attempts"], fields=msgspec.json.decode(row["fields"]),
            created_at=row["created_at"], reply_to=row["reply_to"], connection_id=row["connection_id"],
            content=msgspec.json.decode(row["content"], type=Kept), wrote_at=row["wrote_at"],
        )
        for row in rows
    ]  # fmt: skip


async def insert_single(tx: Tx, tenant_id: int, one: Accept, now: datetime) -> bool:
    """False when the key is taken."""
    template = one.new.template
    content: Kept = KeptText() if template is None else UsedTemplate(template.name, template.language)
    fields: dict[str, str] = {TEXT: one.new.text or ""} if template is None else template.variables
    made = await tx.fetchval(
        S.insert_single, tenant_id, one.message_id, one.key, one.digest, one.connection_id, _json(content), one.purpose,
        one.new.reply_to, one.source, one.expires_at, one.actor[:300], now, one.channel, one.address, one.contact_id,
        one.number_id, _json(fields), one.refusal,
    )  # fmt: skip
    return made is not None


async def read_single(tx: Tx, tenant_id: int, message_id: UUID) -> SingleMessage | None:
    row = await tx.fetchrow(S.read_single, tenant_id, message_id)
    return None if row is None else message_of(row)


async def list_singles(
    tx: Tx, tenant_id: int, after: UUID | None, limit: int, state: str | None, key: str | None, address: str | None
) -> list[SingleMessage]:
    rows = await tx.fetch(S.list_singles, tenant_id, after, limit, state, key, address)
    return [message_of(row) for row in rows]


async def senders_for(
    tx: Tx, tenant_id: int, address: str, connection_id: UUID | None, number_id: str | None
) -> list[SenderRow]:
    rows = await tx.fetch(S.senders_for, tenant_id, address, connection_id, number_id)
    return [SenderRow(row["number_id"], row["connection_id"], row["wrote_at"]) for row in rows]


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
