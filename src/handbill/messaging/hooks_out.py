"""Webhooks of our own: signed, tried again with patience, each delivery in a log that its owner can read.

Announcing is part of the transaction of what happened; delivering is a job. The address is a user's, so it goes through
the client for outgoing HTTP under its strictest policy: https, public addresses only, no redirects.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec

from handbill.infra.postgres import Tx
from handbill.jobs.model import Backoff, JobOptions
from handbill.jobs.service import Outbox
from handbill.kit.clock import Clock
from handbill.kit.ids import Ids
from handbill.messaging.store import S

QUEUE = "webhooks"
EVENTS = {
    "campaign.paused": "A machine or a person paused a campaign; `reason` says why.",
    "campaign.completed": "Everybody in the campaign's audience has an outcome.",
    "campaign.expired": "The campaign's time was over before everybody was written to.",
    "template.rejected": "The provider rejected, paused or disabled a template.",
    "messaging.stopped": "The provider does not accept the account any more; nothing is sent until somebody acts.",
    "import.done": "An import of contacts has ended; `status` says how: done, failed or cancelled.",
    "template.approved": "The provider lets a template be sent, for the first time or again.",
    "contact.opted_out": "A person asked for no more messages, by a word or by the provider's own button.",
    "contact.opted_in": "A person lifted an opt-out of their own.",
    "message.received": "A person wrote to one of your numbers.",
    "message.accepted": "The provider took a single message.",
    "message.sent": "The provider sent a single message on.",
    "message.delivered": "A single message reached the phone.",
    "message.read": "The person read a single message.",
    "message.failed": "A single message failed for good; `reason` says why.",
    "message.skipped": "A single message was not sent on purpose; `reason` says why.",
    "message.unknown": "Whether a single message was sent is not known; a later event may tell.",
    "account.alert": "The provider says something about the account or a number that a person should see.",
    "hook.disabled": "Another of your webhooks failed for three days and was switched off.",
    "hook.test": "You asked for a test.",
}
"""Every event that can be asked for."""

MINUTE = 60_000
DELAYS_MS = tuple(int(minutes * MINUTE) for minutes in (0.1, 0.5, 2, 10, 30, 60, 180, 360, 720))
PATIENCE = JobOptions(attempts=len(DELAYS_MS) + 1, backoff=Backoff("list", delays_ms=DELAYS_MS))
"""Ten tries in a day."""


class Hooks:
    def __init__(self, outbox: Outbox, clock: Clock, ids: Ids) -> None:
        self._outbox = outbox
        self._clock = clock
        self._ids = ids

    async def announce(self, tx: Tx, tenant_id: int, event: str, body: dict[str, Any]) -> list[UUID]:
        """Record one delivery for every hook that wants this event, in the transaction of what happened."""
        made: list[UUID] = []
        for row in await tx.fetch(S.hooks_for, tenant_id, event):
            made.append(await self.tell(tx, tenant_id, row["hook_id"], event, body))
        return made

    async def tell(self, tx: Tx, tenant_id: int, hook_id: UUID, event: str, body: dict[str, Any]) -> UUID:
        """One delivery for one hook."""
        now, delivery = self._clock.now(), self._ids.new()
        whole = {"event": event, "delivery_id": str(delivery), "at": now.isoformat(), "data": body}
        text = msgspec.json.encode(whole).decode()
        await tx.execute(S.insert_delivery, tenant_id, delivery, hook_id, event, text, now)
        await self.queue(tx, tenant_id, delivery)
        return delivery

    async def queue(self, tx: Tx, tenant_id: int, delivery: UUID) -> None:
        await self._outbox.put(tx, QUEUE, "deliver", {"delivery_id": str(delivery)}, tenant_id=tenant_id, opts=PATIENCE)
