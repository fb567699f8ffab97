"""Forgetting a person, and telling what is kept. Suppressions stay, without their notes: they protect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from handbill.contacts import emails, phones, store
from handbill.infra.postgres import Database

PATIENCE_S = 300.0
"""For an export: rejected rows have no index that leads to a person, their texts are searched."""


class Erasure:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def erase(self, tenant_id: int, subject: str) -> Mapping[str, int]:
        """Contacts known by this id or address go, with what was logged of them. Safe to repeat."""
        if "\x00" in subject:
            return {}
        return await store.erase(self._database, tenant_id, subject, *_addresses(subject))

    async def export(self, tenant_id: int, subject: str, most: int) -> Mapping[str, list[dict[str, Any]]]:
        """The same contacts, their words about consent, what stands against writing to them, and rejected rows."""
        if "\x00" in subject:
            return {}
        async with self._database.worker() as tx:
            await tx.patient(PATIENCE_S)
            found = await store.export(tx, tenant_id, subject, *_addresses(subject), most)
        for row in found["contacts.contacts"]:
            row["attributes"] = msgspec.json.decode(row["attributes"])
        return found


def _addresses(subject: str) -> tuple[str | None, str | None]:
    phone = phones.normalise(subject, None)[0] if subject.startswith("+") else None
    return phone, emails.normalise(subject)[0] if "@" in subject else None
