"""Forgetting a person: addresses, words and fields go; the rows that are counted stay."""

from __future__ import annotations

from collections.abc import Mapping

from handbill.infra.postgres import Database
from handbill.messaging.ports import Contacts
from handbill.messaging.store import S


class Erasure:
    def __init__(self, database: Database, contacts: Contacts) -> None:
        self._database = database
        self._contacts = contacts

    async def erase(self, tenant_id: int, subject: str) -> Mapping[str, int]:
        """The subject is an address on the channel, or whatever a contact is known by. Safe to repeat, and to be asked
        before the address book forgets the contact."""
        if "\0" in subject:
            return {}
        known: set[str] = set()
        if subject.lstrip("+").isdecimal():
            known |= {subject, self._contacts.address("whatsapp", subject.lstrip("+"))}
        counts: dict[str, int] = {}
        async with self._database.worker() as tx:
            known |= {row["a"] for row in await tx.fetch(S.addresses_of, tenant_id, subject)}
            addresses = sorted(known)
            if not addresses:
                return {}
            for table in ("messages", "inbound", "reached", "undeliverable", "preferences"):
                counts[f"messaging.{table}"] = await tx.execute(S[f"erase_{table}"], tenant_id, addresses)
            counts["messaging.hook_deliveries"] = await tx.execute(S.erase_deliveries, tenant_id, addresses)
            counts["messaging.webhook_inbox"] = await tx.execute(S.erase_webhooks, tenant_id, addresses)
        return counts
