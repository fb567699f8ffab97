"""Forgetting a person: addresses, words and fields go; the rows that are counted stay. And telling what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from handbill.infra.postgres import Database, Tx
from handbill.messaging.ports import Contacts
from handbill.messaging.store import S

CHANNEL = "whatsapp"
PATIENCE_S = 300.0
"""Bodies as they came have no index that leads to a person: they are searched."""
_TABLES = ("messages", "inbound", "reached", "undeliverable", "preferences")
_BODIES = {"hook_deliveries": "erase_deliveries", "webhook_inbox": "erase_webhooks", "alerts": "erase_alerts"}


class Erasure:
    def __init__(self, database: Database, contacts: Contacts) -> None:
        self._database = database
        self._contacts = contacts

    async def erase(self, tenant_id: int, subject: str) -> Mapping[str, int]:
        """The subject is an address on the channel, or whatever a contact is known by. Safe to repeat, and to be asked
        before the address book forgets the contact."""
        counts: dict[str, int] = {}
        async with self._database.worker() as tx:
            addresses = await self._addresses(tx, tenant_id, subject)
            if not addresses:
                return {}
            await tx.patient(PATIENCE_S)
            for table in _TABLES:
                counts[f"messaging.{table}"] = await tx.execute(S[f"erase_{table}"], tenant_id, addresses)
            spelt = sorted({form for one in addresses for form in self._contacts.spellings(CHANNEL, one)})
            for table, statement in _BODIES.items():
                counts[f"messaging.{table}"] = await tx.execute(S[statement], tenant_id, spelt)
        return counts

    async def export(self, tenant_id: int, subject: str, most: int) -> Mapping[str, list[dict[str, Any]]]:
        """What was written to the person and what they wrote."""
        found: dict[str, list[dict[str, Any]]] = {}
        async with self._database.worker() as tx:
            if addresses := await self._addresses(tx, tenant_id, subject):
                for table in _TABLES:
                    rows = await tx.fetch(S[f"export_{table}"], tenant_id, addresses, most)
                    found[f"messaging.{table}"] = [dict(row) for row in rows]
        for row in found.get("messaging.messages", ()):
            row["fields"] = msgspec.json.decode(row["fields"])
        return found

    async def _addresses(self, tx: Tx, tenant_id: int, subject: str) -> list[str]:
        if "\0" in subject:
            return []
        known = {row["a"] for row in await tx.fetch(S.addresses_of, tenant_id, subject)}
        if subject.lstrip("+").isdecimal():
            known |= {subject, self._contacts.address(CHANNEL, subject.lstrip("+"))}
        return sorted(known)
