"""The address book in PostgreSQL: one method a statement."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.contacts.model import (
    CHANNELS,
    Audience,
    Channel,
    Consent,
    Contact,
    ContactFilter,
    Recipient,
    Suppression,
)
from handbill.infra import sqlfiles
from handbill.infra.postgres import Database, Tx, repeat, walk

S = sqlfiles.load("handbill.contacts")
_encode = msgspec.json.encode
ROWS = 1_000
"""Rows that one statement of a sweep or an erasure looks at."""
_NO_ID = UUID(int=0)


# --- contacts


def _contact(row: Any) -> Contact:
    return Contact(
        contact_id=row["contact_id"],
        phone=row["phone"],
        whatsapp=row["whatsapp"],
        email=row["email"],
        external_id=row["external_id"],
        name=row["name"],
        locale=row["locale"],
        attributes=msgspec.json.decode(row["attributes"]),
        tags=list(row["tags"]),
        granted=list(row["granted"]),
        denied=list(row["denied"]),
        version=row["version"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


async def insert_contact(tx: Tx, tenant_id: int, new: Contact) -> Contact:
    row = await tx.fetchrow(
        S.insert_contact, tenant_id, new.contact_id, new.phone, new.whatsapp, new.email, new.external_id, new.name,
        new.locale, _encode(new.attributes).decode(), new.tags, new.created_at,
    )  # fmt: skip
    return _contact(row)


async def read_contact(tx: Tx, tenant_id: int, contact_id: UUID, *, lock: bool = False) -> Contact | None:
    row = await tx.fetchrow(S.lock_contact if lock else S.read_contact, tenant_id, contact_id)
    return None if row is None else _contact(row)


async def update_contact(tx: Tx, tenant_id: int, new: Contact, now: datetime) -> Contact:
    row = await tx.fetchrow(
        S.update_contact, tenant_id, new.contact_id, new.phone, new.whatsapp, new.email, new.external_id, new.name,
        new.locale, _encode(new.attributes).decode(), new.tags, new.granted, new.denied, now,
    )  # fmt: skip
    return _contact(row)


async def delete_contact(tx: Tx, tenant_id: int, contact_id: UUID) -> None:
    await tx.execute(S.delete_contact, tenant_id, contact_id)
    await tx.execute(S.forget_consents, tenant_id, [contact_id])


async def external_taken(tx: Tx, tenant_id: int, external_id: str, but: UUID) -> bool:
    """Whether another contact has this id; until the end of the transaction nobody else can ask."""
    await tx.execute(S.hold_external, tenant_id, external_id)
    return bool(await tx.fetchval(S.external_taken, tenant_id, external_id, but))


async def page_contacts(tx: Tx, tenant_id: int, after: UUID | None, limit: int, chosen: ContactFilter) -> list[Contact]:
    word = chosen.search
    if (bounds := _address_bounds(word)) is not None:
        rows = await tx.fetch(S.page_by_address, tenant_id, after, limit, chosen.tag, chosen.channel, *bounds)
        return [_contact(row) for row in rows]
    plain = _like(word) if word else None
    rows = await tx.fetch(
        S.page_contacts, tenant_id, after, limit, chosen.tag, chosen.channel, f"%{plain}%" if word else None,
        f"{plain}%" if word else None, f"{_like(word.replace(' ', ''))}%" if word else None,
    )  # fmt: skip
    return [_contact(row) for row in rows]


def _address_bounds(word: str | None) -> tuple[str, str, str] | None:
    """A word that can only be the beginning of a number or of an address is looked up by the index."""
    bare = (word or "").replace(" ", "").replace("-", "")
    if len(bare) >= 5 and bare[0] == "+" and bare[1:].isascii() and bare[1:].isdigit():
        kind = "phone"
    elif word and "@" in word and " " not in word and word.isascii():
        kind, bare = "email", word.lower()
    else:
        return None
    return kind, bare, bare[:-1] + chr(ord(bare[-1]) + 1)


def _like(word: str) -> str:
    return word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


async def find_by_address(tx: Tx, tenant_id: int, phones: Sequence[str], email: str | None) -> list[Contact]:
    return [_contact(row) for row in await tx.fetch(S.find_by_address, tenant_id, list(phones), email)]


async def recipient_by_address(
    tx: Tx, tenant_id: int, channel: Channel, phones: Sequence[str], email: str | None
) -> UUID | None:
    found: UUID | None = await tx.fetchval(S.recipient_by_address, tenant_id, list(phones), email, channel)
    return found


async def audience_page(
    tx: Tx, tenant_id: int, channel: Channel, chosen: Audience, after: UUID | None, limit: int, now: datetime
) -> list[Recipient]:
    rows = await tx.fetch(
        S.audience_page, tenant_id, after, limit, channel, list(chosen.tags_any), list(chosen.tags_all),
        list(chosen.tags_none), list(chosen.contact_ids), now,
    )  # fmt: skip
    return [
        Recipient(
            row["contact_id"], row["address"], row["name"], msgspec.json.decode(row["attributes"]), row["locale"],
            row["granted"], row["denied"], row["suppressed"], row["external_id"], row["phone"], row["email"],
        )
        for row in rows
    ]  # fmt: skip


async def tag_counts(tx: Tx, tenant_id: int) -> dict[str, int]:
    return {row["tag"]: row["contacts"] for row in await tx.fetch(S.tag_counts, tenant_id)}


async def insert_consent(tx: Tx, tenant_id: int, contact_id: UUID, consent_id: UUID, said: Consent) -> None:
    await tx.execute(
        S.insert_consent, tenant_id, contact_id, consent_id, said.at, said.channel, said.granted, said.source,
        said.proof, said.actor,
    )  # fmt: skip


async def page_consents(
    tx: Tx, tenant_id: int, contact_id: UUID, after: UUID | None, limit: int
) -> list[tuple[UUID, Consent]]:
    rows = await tx.fetch(S.page_consents, tenant_id, contact_id, after, limit)
    return [(row["consent_id"], Consent(*list(row)[:7])) for row in rows]


def _suppression(row: Any) -> Suppression:
    return Suppression(row["channel"], row["address"], row["reason"], row["until"], row["created_at"], row["note"])


async def put_suppression(tx: Tx, tenant_id: int, new: Suppression) -> Suppression:
    row = await tx.fetchrow(
        S.put_suppression, tenant_id, new.channel, new.address, new.reason, new.until, new.note, new.created_at
    )
    return _suppression(row)


async def lift_suppression(tx: Tx, tenant_id: int, channel: str, address: str) -> Suppression | None:
    row = await tx.fetchrow(S.lift_suppression, tenant_id, channel, address)
    return None if row is None else _suppression(row)


async def consent_before_opt_out(
    tx: Tx, tenant_id: int, channel: str, contact_ids: Sequence[UUID]
) -> dict[UUID, bool | None]:
    """Of the contacts whose latest line is an opt-out of their own: what the last other line said; None without one."""
    rows = await tx.fetch(S.consent_before_opt_out, tenant_id, channel, list(contact_ids))
    return {row["contact_id"]: row["granted_before"] for row in rows if row["opted_out"]}


async def lift_opt_out(tx: Tx, tenant_id: int, channel: str, address: str) -> bool:
    return await tx.fetchval(S.lift_opt_out, tenant_id, channel, address) is not None


async def page_suppressions(
    tx: Tx, tenant_id: int, after: tuple[str, str] | None, limit: int, channel: str | None
) -> list[Suppression]:
    first, second = after or (None, None)
    rows = await tx.fetch(S.page_suppressions, tenant_id, first, second, limit, channel)
    return [_suppression(row) for row in rows]


async def standing_suppressions(
    tx: Tx, tenant_id: int, channel: str, addresses: Sequence[str], now: datetime
) -> dict[str, str]:
    rows = await tx.fetch(S.standing_suppressions, tenant_id, channel, list(addresses), now)
    return {row["address"]: row["reason"] for row in rows}


async def sweep_findings(database: Database, before: datetime) -> int:
    """Remove the reports of imports from before that time, a bounded number of rows at a time."""
    removed, place = 0, (0, _NO_ID)
    while True:
        async with database.worker() as tx:
            imports = await tx.fetch(S.old_reports, before, *place, ROWS)
        for tenant_id, import_id, due in imports:
            if due:
                removed += await repeat(database, S.sweep_findings, tenant_id, import_id, limit=ROWS)
            place = (tenant_id, import_id)
        if len(imports) < ROWS:
            return removed


async def sweep_suppressions(database: Database, now: datetime) -> int:
    return await walk(database, S.sweep_suppressions, (now,), (0, "", ""))


class _Subject(msgspec.Struct, frozen=True):
    """Whom an erasure or an export is about: contacts, and every address of theirs."""

    ids: list[UUID]
    phones: list[str]
    emails: list[str]
    words: list[str]
    """What a rejected row is searched for: nothing so short that it stands in everybody's row."""


async def _subject(tx: Tx, tenant_id: int, subject: str, phone: str | None, email: str | None) -> _Subject:
    rows = await tx.fetch(S.erase_find, tenant_id, subject, phone, email)
    phones = sorted({row["phone"] for row in rows if row["phone"]} | ({phone} if phone else set()))
    emails = sorted({row["email"] for row in rows if row["email"]} | ({email} if email else set()))
    words = [word for word in (subject, *phones, *emails) if len(word) >= 5]
    return _Subject([row["contact_id"] for row in rows], phones, emails, words)


async def erase(
    database: Database, tenant_id: int, subject: str, phone: str | None, email: str | None
) -> dict[str, int]:  # fmt: skip
    """Rows that are searched go first, in portions; the contact goes last: an erasure that was cut short must find it
    when it is asked for again."""
    async with database.worker() as tx:
        one = await _subject(tx, tenant_id, subject, phone, email)
    staged = (tenant_id, subject, one.phones, one.emails)
    cleared = {
        "contacts.import_rows": await walk(database, S.erase_staged, staged, (_NO_ID, 0, 0)),
        "contacts.import_findings": await walk(database, S.erase_findings, (tenant_id, one.words), (_NO_ID, 0, 0)),
    }
    async with database.worker() as tx:
        one = await _subject(tx, tenant_id, subject, phone, email)
        addresses = [*one.phones, *one.emails]
        return cleared | {
            "contacts.contacts": await tx.execute(S.erase_contacts, tenant_id, one.ids),
            "contacts.consent_log": await tx.execute(S.forget_consents, tenant_id, one.ids),
            "contacts.import_changes": await _erase_changes(tx, tenant_id, one.ids),
            "contacts.suppressions": await tx.execute(
                S.erase_suppression_notes, tenant_id, addresses, list(CHANNELS)
            ),
        }  # fmt: skip


async def _erase_changes(tx: Tx, tenant_id: int, ids: list[UUID]) -> int:
    erased, after = 0, _NO_ID
    while True:
        imports = [row["import_id"] for row in await tx.fetch(S.import_ids, tenant_id, after, ROWS)]
        if imports:
            erased += await tx.execute(S.erase_changes, tenant_id, ids, imports)
            after = imports[-1]
        if len(imports) < ROWS:
            return erased


async def export(
    tx: Tx, tenant_id: int, subject: str, phone: str | None, email: str | None, most: int
) -> dict[str, list[dict[str, Any]]]:
    one = await _subject(tx, tenant_id, subject, phone, email)
    rows = {
        "contacts.contacts": await tx.fetch(S.export_contacts, tenant_id, one.ids, most),
        "contacts.consent_log": await tx.fetch(S.export_consents, tenant_id, one.ids, most),
        "contacts.import_findings": await tx.fetch(S.export_findings, tenant_id, one.words, most),
        "contacts.suppressions": await tx.fetch(S.export_suppressions, tenant_id, [*one.phones, *one.emails], most),
    }
    return {table: [dict(row) for row in found] for table, found in rows.items()}
