"""What tests of single messages share: requests, waiting for an outcome, changes behind the product's back."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from handbill.messaging.singles.model import NewMessage, SingleMessage, TemplateMessage
from handbill.messaging.singles.service import Request
from tests.kit.desk import messages, owner, told, worked_off, wrote
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, Graph
from tests.kit.reach import Room
from tests.kit.waiting import eventually

TO = "+491700000001"
HELLO = TemplateMessage("hello_world", "en_US")
EARLIER = "update messaging.messages set due_at = due_at - interval '1 minute' where tenant_id = $1"
LATER = "update messaging.messages set due_at = due_at + interval '1 hour' where message_id = $1"
EXPIRED = "update messaging.single_messages set expires_at = now() where message_id = $1"
TWO_VARIABLES = (
    "update messaging.templates set components = $2::jsonb where connection_id = $1 and name = 'hello_world'"
)


def asked(key: str, **how: Any) -> Request:
    return Request(key, "api", "test", **how)


def hello(to: str = TO, **how: Any) -> NewMessage:
    return NewMessage(to=to, template=HELLO, **how)


async def sent_once(at: Room, tenant: int, message_id: UUID) -> SingleMessage:
    async def over() -> bool:
        return (await at.service.singles.read(tenant, message_id)).outcome is not None

    await eventually(over)
    return await at.service.singles.read(tenant, message_id)


async def change(engines: Engines, statement: str, *args: Any) -> None:
    async with owner(engines.postgres_url) as db:
        await db.execute(statement, *args)


async def write_to_us(at: Room, fake: Graph, connection: UUID, address: str, wamid: str = "in.1") -> None:
    """The person writes to our number now; the provider knows it, too."""
    await fake.control(inbound=[{"number": NUMBER, "sender": address.lstrip("+"), "text": "Hello"}])
    body = messages(messages=[wrote(wamid, address, "Where is my order?", int(at.clock.now().timestamp()))])
    assert await told(at, connection, body) == [True]
    await worked_off(at)
