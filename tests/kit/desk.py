"""What tests of webhooks share: rows as a campaign leaves them, bodies as a provider sends them, working off."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import msgspec

from handbill.messaging.plan import NewCampaign, UsedTemplate
from handbill.messaging.webhooks import sign
from tests.kit.graph import NUMBER, WABA
from tests.kit.reach import SECRET, Room


@contextlib.asynccontextmanager
async def owner(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def draft(at: Room, tenant: int, connection: UUID) -> UUID:
    content = UsedTemplate("hello_world", "en_US")
    made = await at.service.campaigns.create(
        tenant, NewCampaign("Spring", connection, content, purpose="utility"), actor="test"
    )
    return made.campaign_id


async def sent(db: asyncpg.Connection, tenant: int, campaign: UUID, addresses: Sequence[str]) -> list[UUID]:
    """Messages that were accepted a moment ago, one for each address; the wamid is `w.` and the message's id."""
    made = [uuid4() for _ in addresses]
    await db.executemany(
        "insert into messaging.messages (tenant_id, message_id, campaign_id, channel, address, number_id, state,"
        " attempts, due_at, claim, claimed_at, attempted_at, accepted_at, wamid, created_at) values"
        " ($1, $2, $3, 'whatsapp', $4, $5, 'accepted', 1, now(), gen_random_uuid(), now(), now(), now(), $6, now())",
        [
            (tenant, message, campaign, address, NUMBER, f"w.{message}")
            for message, address in zip(made, addresses, strict=True)
        ],
    )
    return made


def hook(field: str, value: dict[str, Any], *, time: int = 0, waba: str = WABA) -> bytes:
    entry = {"id": waba, "time": time, "changes": [{"field": field, "value": value}]}
    return msgspec.json.encode({"object": "whatsapp_business_account", "entry": [entry]})


def messages(**parts: Any) -> bytes:
    return hook("messages", {"messaging_product": "whatsapp", "metadata": {"phone_number_id": NUMBER}, **parts})


def status(
    message: UUID, word: str, at_s: int, *, address: str = "", code: int = 0, details: str = "", noted: bool = True,
    wamid: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    item: dict[str, Any] = {"id": wamid or f"w.{message}", "status": word, "timestamp": str(at_s)}
    item["recipient_id"] = address.lstrip("+")
    if noted:
        item["biz_opaque_callback_data"] = str(message)
    if code:
        item["errors"] = [{"code": code, "error_data": {"details": details}}]
    return item


def wrote(wamid: str, sender: str, text: str, at_s: int) -> dict[str, Any]:
    return {"id": wamid, "from": sender.lstrip("+"), "timestamp": str(at_s), "type": "text", "text": {"body": text}}


def template(name: str, event: str, at_s: int, reason: str = "NONE") -> bytes:
    value = {"event": event, "message_template_id": 5, "message_template_name": name, "reason": reason}
    return hook("message_template_status_update", {**value, "message_template_language": "en_US"}, time=at_s)


async def told(at: Room, connection: UUID, *bodies: bytes) -> list[bool]:
    """Sent by the provider, signed; not worked off yet."""
    return [await at.service.incoming.keep(connection, body, sign(SECRET, body)) for body in bodies]


async def worked_off(at: Room) -> None:
    while await at.service.incoming.work():
        pass
