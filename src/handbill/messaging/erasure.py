"""Forgetting a person: addresses, words and fields go; the rows that are counted stay. And telling what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra.postgres import Database, Tx, walk, work
from handbill.messaging.ports import Contacts
from handbill.messaging.store import S

CHANNEL = "whatsapp"
SEARCHED = 200
"""Bodies that one statement searches: they have no index that leads to a person, and one may have megabytes."""
CAMPAIGNS = 500
"""Campaigns that one statement looks through."""
_NO_ID = UUID(int=0)
_TABLES = ("messages", "single_messages", "inbound", "reached", "undeliverable", "preferences")
_BODIES: dict[str, tuple[str, Any]] = {
    "hook_deliveries": ("erase_deliveries", _NO_ID),
    "webhook_inbox": ("erase_webhooks", b""),
    "alerts": ("erase_alerts", ""),
}


class Erasure:
    def __init__(self, database: Database, contacts: Contacts) -> None:
        self._database = database
        self._contacts = contacts

    async def erase(self, tenant_id: int, subject: str) -> Mapping[str, int]:
        """The subject is an address on the channel, or whatever a contact is known by. Safe to repeat, and to be asked
        before the address book forgets the contact."""
        async with self._database.worker() as tx:
            addresses = await self._addresses(tx, tenant_id, subject)
        if not addresses:
            return {}
        counts = {"messaging.messages": await self._erase_messages(tenant_id, addresses)}
        async with self._database.worker() as tx:
            for table in _TABLES[1:]:
                counts[f"messaging.{table}"] = await tx.execute(S[f"erase_{table}"], tenant_id, addresses)
        spelt = sorted({form for one in addresses for form in self._contacts.spellings(CHANNEL, one)})
        for table, (name, start) in _BODIES.items():
            about = (tenant_id, spelt)
            counts[f"messaging.{table}"] = await walk(self._database, S[name], about, (start,), SEARCHED)
        return counts

    async def _erase_messages(self, tenant_id: int, addresses: list[str]) -> int:
        async def portion(place: tuple[UUID], limit: int) -> tuple[int, tuple[UUID] | None]:
            async with self._database.worker() as tx:
                campaigns = [row[0] for row in await tx.fetch(S.campaign_ids, tenant_id, *place, limit)]
                erased = await tx.execute(S.erase_messages, tenant_id, addresses, campaigns)
            return erased, (campaigns[-1],) if len(campaigns) == limit else None

        return await work(portion, (_NO_ID,), CAMPAIGNS)

    async def export(self, tenant_id: int, subject: str, most: int) -> Mapping[str, list[dict[str, Any]]]:
        """What was written to the person and what they wrote."""
        found: dict[str, list[dict[str, Any]]] = {}
        async with self._database.worker() as tx:
            if addresses := await self._addresses(tx, tenant_id, subject):
                for table in _TABLES:
                    rows = await tx.fetch(S[f"export_{table}"], tenant_id, addresses, most)
                    found[f"messaging.{table}"] = [dict(row) for row in rows]
        for table in ("messaging.messages", "messaging.single_messages"):
            for row in found.get(table, ()):
                row["fields"] = msgspec.json.decode(row["fields"])
        for row in found.get("messaging.single_messages", ()):
            row["content"] = msgspec.json.decode(row["content"])
        return found

    async def _addresses(self, tx: Tx, tenant_id: int, subject: str) -> list[str]:
        if "\0" in subject:
            return []
        known = {row["a"] for row in await tx.fetch(S.addresses_of, tenant_id, subject)}
        if subject.lstrip("+").isdecimal():
            known |= {subject, self._contacts.address(CHANNEL, subject.lstrip("+"))}
        return sorted(known)
