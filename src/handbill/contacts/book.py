"""The address book: contacts, tags, consents, suppressions, audiences. One verb is one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from msgspec import UNSET, structs

from handbill.contacts import emails, phones, store
from handbill.contacts.imports import DefaultRegion, after_id
from handbill.contacts.model import (
    Audience,
    Channel,
    Consent,
    Contact,
    ContactFilter,
    ContactPatch,
    NewConsent,
    NewContact,
    NewSuppression,
    Recipient,
    Suppression,
    Why,
)
from handbill.contacts.planning import check_region
from handbill.contacts.reasons import REASONS
from handbill.infra.postgres import Database, Tx
from handbill.kit import etags, pages
from handbill.kit.clock import Clock
from handbill.kit.errors import Conflict, Fault, Invalid, NotFound
from handbill.kit.ids import Ids
from handbill.kit.moments import moment_faults
from handbill.kit.pages import Page
from handbill.tenants.service import Audit

ATTRIBUTES_BYTES = 16_384
TAGS = 100


class People(Protocol):
    """Who stands behind an id, as Know has it. The wiring hands it in where Know is there."""

    async def person_of(self, tenant_id: int, distinct_id: str) -> UUID | None: ...


class Book:
    def __init__(
        self,
        database: Database,
        audit: Audit,
        clock: Clock,
        ids: Ids,
        default_region: DefaultRegion,
        people: People | None = None,
    ) -> None:
        self._database = database
        self._default_region = default_region
        self._audit = audit
        self._clock = clock
        self._ids = ids
        self._people = people

    # --- contacts

    async def create(self, tenant_id: int, new: NewContact, *, actor: str) -> Contact:
        phone = _phone(new.phone, await self._region_of(tenant_id, new.phone, new.region))
        email = _email(new.email)
        if phone is None and email is None and new.external_id is None:
            raise Invalid(
                "A contact needs an address or an id; nothing was created.",
                faults=[Fault("phone", "one of phone, email and external_id is needed")],
            )
        now = self._clock.now()
        contact = Contact(
            contact_id=self._ids.new(), phone=phone, whatsapp=phones.whatsapp(phone) if phone else None, email=email,
            external_id=new.external_id, name=_text(new.name), locale=new.locale,
            attributes=_attributes({}, new.attributes), tags=_tags([], new.tags, []), granted=[], denied=[], version=1,
            created_at=now, updated_at=now,
        )  # fmt: skip
        async with self._database.tenant(tenant_id) as tx:
            await self._check_external(tx, tenant_id, contact)
            made = await store.insert_contact(tx, tenant_id, contact)
            await self._note(tx, tenant_id, actor, "contact.create", made.contact_id)
        return made

    async def read(self, tenant_id: int, contact_id: UUID) -> Contact:
        async with self._database.tenant(tenant_id) as tx:
            found = _there(await store.read_contact(tx, tenant_id, contact_id))
        if self._people is None or found.external_id is None:
            return found
        return structs.replace(found, person_id=await self._people.person_of(tenant_id, found.external_id))

    async def search(self, tenant_id: int, cursor: str | None, limit: int, chosen: ContactFilter) -> Page[Contact]:
        _plain("search", chosen.search)
        _plain("tag", chosen.tag)
        async with self._database.tenant(tenant_id) as tx:
            rows = await store.page_contacts(tx, tenant_id, after_id(cursor), limit + 1, chosen)
        return pages.page(rows, limit, lambda row: (str(row.contact_id),))

    async def change(
        self, tenant_id: int, contact_id: UUID, patch: ContactPatch, *, actor: str, if_version: int | None = None
    ) -> Contact:
        phone = None if patch.phone is UNSET else patch.phone
        region = await self._region_of(tenant_id, phone, patch.region)
        async with self._database.tenant(tenant_id) as tx:
            before = _there(await store.read_contact(tx, tenant_id, contact_id, lock=True))
            etags.check(if_version, before.version)
            wanted = _changed(before, structs.replace(patch, region=region))
            if wanted.external_id != before.external_id:
                await self._check_external(tx, tenant_id, wanted)
            after = await store.update_contact(tx, tenant_id, wanted, self._clock.now())
            await self._note(tx, tenant_id, actor, "contact.change", contact_id)
        return after

    async def delete(self, tenant_id: int, contact_id: UUID, *, actor: str) -> None:
        async with self._database.tenant(tenant_id) as tx:
            _there(await store.read_contact(tx, tenant_id, contact_id, lock=True))
            await store.delete_contact(tx, tenant_id, contact_id)
            await self._note(tx, tenant_id, actor, "contact.delete", contact_id)

    async def tags(self, tenant_id: int) -> dict[str, int]:
        """Every tag and how many contacts have it."""
        async with self._database.tenant(tenant_id) as tx:
            return await store.tag_counts(tx, tenant_id)

    async def _region_of(self, tenant_id: int, phone: str | None, given: str | None) -> str | None:
        """The region that the request gives, else the tenant's own; not looked for where nothing depends on it."""
        if given is not None or phone is None or phone.startswith("+"):
            return given
        return await self._default_region(tenant_id)

    async def _check_external(self, tx: Tx, tenant_id: int, contact: Contact) -> None:
        given = contact.external_id
        if given is not None and await store.external_taken(tx, tenant_id, given, contact.contact_id):
            raise Conflict("Another contact has this external_id; nothing was changed.", code="EXTERNAL_ID_TAKEN")

    # --- consent

    async def consent(self, tenant_id: int, contact_id: UUID, said: NewConsent, *, actor: str) -> Contact:
        """One line in the log, and the contact's word from now on."""
        async with self._database.tenant(tenant_id) as tx:
            before = _there(await store.read_contact(tx, tenant_id, contact_id, lock=True))
            after = await self._said(tx, tenant_id, before, said, actor)
            await self._note(tx, tenant_id, actor, "contact.consent", contact_id)
        return after

    async def _said(self, tx: Tx, tenant_id: int, contact: Contact, said: NewConsent, actor: str) -> Contact:
        now = self._clock.now()
        line = Consent(now, said.channel, said.granted, said.source, said.proof, actor)
        await store.insert_consent(tx, tenant_id, contact.contact_id, self._ids.new(), line)
        granted, denied = set(contact.granted) - {said.channel}, set(contact.denied) - {said.channel}
        (granted if said.granted else denied).add(said.channel)
        spoken = structs.replace(contact, granted=sorted(granted), denied=sorted(denied))
        return await store.update_contact(tx, tenant_id, spoken, now)

    async def consents(self, tenant_id: int, contact_id: UUID, cursor: str | None, limit: int) -> Page[Consent]:
        async with self._database.tenant(tenant_id) as tx:
            _there(await store.read_contact(tx, tenant_id, contact_id))
            rows = await store.page_consents(tx, tenant_id, contact_id, after_id(cursor), limit + 1)
        found = pages.page(rows, limit, lambda row: (str(row[0]),))
        return Page([line for _, line in found.items], found.next)

    # -- suppression

    async def suppress(
        self,
        tenant_id: int,
        channel: Channel,
        address: str,
        reason: Why,
        until: datetime | None = None,
        *,
        note: str | None = None,
        actor: str = "system",
        tx: Tx | None = None,
    ) -> Suppression:
        """Not written to until then. `address` is normalised already; give `tx` to join a transaction."""
        new = Suppression(channel, address, reason, until, self._clock.now(), note)
        if tx is not None:
            return await store.put_suppression(tx, tenant_id, new)
        async with self._database.tenant(tenant_id) as own:
            kept = await store.put_suppression(own, tenant_id, new)
            await self._audit.write(own, tenant_id, actor=actor, action="suppression.put", object=f"{channel} {reason}")
        return kept

    async def suppress_sent(self, tenant_id: int, new: NewSuppression, *, actor: str) -> Suppression:
        if faults := moment_faults("until", new.until):
            raise Invalid("Nothing was changed: the time cannot be kept.", faults=faults)
        region = await self._region_of(tenant_id, new.address, new.region)
        address = address_of(new.channel, new.address, region)
        return await self.suppress(tenant_id, new.channel, address, new.reason, new.until, note=new.note, actor=actor)

    async def opt_out(
        self,
        tenant_id: int,
        channel: Channel,
        address: str,
        *,
        source: str,
        proof: str | None = None,
        actor: str = "system",
        tx: Tx | None = None,
    ) -> int:
        """They said stop: the address is suppressed for ever, and every contact with it has denied. How many."""
        if tx is None:
            async with self._database.tenant(tenant_id) as own:
                return await self.opt_out(tenant_id, channel, address, source=source, proof=proof, actor=actor, tx=own)
        await self.suppress(tenant_id, channel, address, "opt_out", tx=tx)
        numbers = phones.forms(address) if channel != "email" else ()
        found = await store.find_by_address(tx, tenant_id, numbers, address if channel == "email" else None)
        said = NewConsent(channel, False, source[:200] or "opt-out", proof)
        for contact in found:
            await self._said(tx, tenant_id, contact, said, actor)
        await self._audit.write(tx, tenant_id, actor=actor, action="contact.opt_out", object=f"{channel}: {len(found)}")
        return len(found)

    async def opt_in(
        self,
        tenant_id: int,
        channel: Channel,
        address: str,
        *,
        source: str,
        proof: str | None = None,
        actor: str = "system",
        tx: Tx | None = None,
    ) -> bool:
        """They said start: their own earlier stop is lifted; false where there was none.

        Each contact with the address is as it was before that stop: agreed where it had agreed, and silent where it had
        never said anything. A denial that somebody else wrote down stays.
        """
        if tx is None:
            async with self._database.tenant(tenant_id) as own:
                return await self.opt_in(tenant_id, channel, address, source=source, proof=proof, actor=actor, tx=own)
        lifted = await store.lift_opt_out(tx, tenant_id, channel, address)
        numbers = phones.forms(address) if channel != "email" else ()
        found = await store.find_by_address(tx, tenant_id, numbers, address if channel == "email" else None)
        before = await store.consent_before_opt_out(tx, tenant_id, channel, [one.contact_id for one in found])
        agreed = NewConsent(channel, True, source[:200] or "opt-in", proof)
        changed = [one for one in found if one.contact_id in before and channel in one.denied]
        for contact in changed:
            if before[contact.contact_id]:
                await self._said(tx, tenant_id, contact, agreed, actor)
            elif before[contact.contact_id] is None:
                silent = structs.replace(contact, denied=sorted(set(contact.denied) - {channel}))
                await store.update_contact(tx, tenant_id, silent, self._clock.now())
        if lifted or changed:
            action = f"{channel}: {len(changed)}"
            await self._audit.write(tx, tenant_id, actor=actor, action="contact.opt_in", object=action)
        return bool(lifted or changed)

    async def lift(self, tenant_id: int, channel: Channel, address: str, *, actor: str) -> None:
        wanted = address_of(channel, address, await self._region_of(tenant_id, address, None))
        async with self._database.tenant(tenant_id) as tx:
            if await store.lift_suppression(tx, tenant_id, channel, wanted) is None:
                raise NotFound("This address is not suppressed.", code="SUPPRESSION_NOT_FOUND")
            await self._audit.write(tx, tenant_id, actor=actor, action="suppression.lift", object=channel)

    async def suppressions(
        self, tenant_id: int, cursor: str | None, limit: int, channel: Channel | None = None
    ) -> Page[Suppression]:
        after = None
        if cursor is not None:
            first, second = pages.decode(cursor, [str, str])
            after = (_plain("cursor", str(first)) or "", _plain("cursor", str(second)) or "")
        async with self._database.tenant(tenant_id) as tx:
            rows = await store.page_suppressions(tx, tenant_id, after, limit + 1, channel)
        return pages.page(rows, limit, lambda row: (row.channel, row.address))

    async def suppressed(self, tenant_id: int, channel: Channel, addresses: Sequence[str]) -> dict[str, str]:
        """Which of these must not be written to, and why."""
        async with self._database.tenant(tenant_id) as tx:
            return await store.standing_suppressions(tx, tenant_id, channel, addresses, self._clock.now())

    async def sweep(self) -> int:
        """Forget suppressions that have ended."""
        return await store.sweep_suppressions(self._database, self._clock.now())

    # --- audience

    async def audience(
        self, tenant_id: int, channel: Channel, chosen: Audience, after: UUID | None, limit: int
    ) -> list[Recipient]:
        """A page of those meant, by contact id; the next one begins after the last. The end is a page that is not full.

        Contacts without an address on the channel are left out. Consent and suppression are told, not applied: the
        statement that sends looks again.
        """
        async with self._database.tenant(tenant_id) as tx:
            return await store.audience_page(tx, tenant_id, channel, chosen, after, limit, self._clock.now())

    async def _note(self, tx: Tx, tenant_id: int, actor: str, action: str, contact_id: UUID) -> None:
        """The log names the contact, never its address: an erasure must not have to search the log."""
        await self._audit.write(tx, tenant_id, actor=actor, action=action, object=f"contact {contact_id}")


def address_of(channel: Channel, address: str, region: str | None) -> str:
    """A person's spelling of an address, as it stands in the tables."""
    if channel == "email":
        return _email(address) or ""
    number = _phone(address, region, "address") or ""
    return phones.whatsapp(number) if channel == "whatsapp" else number


def _phone(text: str | None, region: str | None, field: str = "phone") -> str | None:
    if text is None:
        return None
    check_region(region)
    found, why = phones.normalise(text, region)
    if found is None:
        reason = _why(why, phones.suggest(text, region))
        raise Invalid("The phone number cannot be used; nothing was changed.", faults=[Fault(field, reason)])
    return found


def _why(code: str, suggestion: str | None = None) -> str:
    meaning, fix = REASONS[code]
    return f"{code}: {meaning} {f'Is it {suggestion}?' if suggestion else fix}"


def _email(text: str | None) -> str | None:
    if text is None:
        return None
    found, why = emails.normalise(text)
    if found is None:
        raise Invalid("The e-mail address cannot be used; nothing was changed.", faults=[Fault("email", _why(why))])
    return found


def _plain(field: str, text: str | None) -> str | None:
    if text is not None and ("\x00" in text or any("\ud800" <= letter <= "\udfff" for letter in text)):
        raise Invalid("A text holds a character that no text can hold.", faults=[Fault(field, "is no text")])
    return text


def _text(text: str | None) -> str | None:
    return (_plain("name", text) or "").strip() or None


def _attributes(before: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    merged = {**before}
    for name, value in given.items():
        if not (value is None or isinstance(value, str | int | float | bool)):
            raise Invalid(
                "An attribute is a text, a number or yes or no.", faults=[Fault(f"attributes.{name}", "is none")]
            )
        _plain(f"attributes.{name}", name)
        if isinstance(value, str):
            _plain(f"attributes.{name}", value)
        merged[name] = value
    kept = {name: value for name, value in merged.items() if value is not None}
    if len(kept) > 200 or sum(len(name) + len(str(value)) for name, value in kept.items()) > ATTRIBUTES_BYTES:
        raise Invalid(
            "The attributes are too many or too long.", faults=[Fault("attributes", "at most 200 and 16 KiB")]
        )
    return kept


def _tags(before: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> list[str]:
    for tag in (*add, *remove):
        _plain("tags", tag)
    kept = sorted((set(before) | {tag.strip() for tag in add if tag.strip()}) - set(remove))
    if len(kept) > TAGS:
        raise Invalid("A contact has at most 100 tags.", faults=[Fault("tags", "too many")])
    return kept


def _changed(before: Contact, patch: ContactPatch) -> Contact:
    changed: dict[str, Any] = {}
    if patch.phone is not UNSET:
        phone = _phone(patch.phone, patch.region)
        changed |= {"phone": phone, "whatsapp": phones.whatsapp(phone) if phone else None}
    if patch.email is not UNSET:
        changed["email"] = _email(patch.email)
    if patch.external_id is not UNSET:
        changed["external_id"] = patch.external_id
    if patch.name is not UNSET:
        changed["name"] = _text(patch.name)
    if patch.locale is not UNSET:
        changed["locale"] = patch.locale
    if patch.attributes is not UNSET:
        changed["attributes"] = _attributes(before.attributes, patch.attributes)
    changed["tags"] = _tags(before.tags, patch.add_tags, patch.remove_tags)
    after = structs.replace(before, **changed)
    if after.phone is None and after.email is None and after.external_id is None:
        raise Invalid(
            "A contact needs an address or an id; nothing was changed.",
            faults=[Fault("phone", "one of phone, email and external_id must stay")],
        )
    return after


def _there(found: Contact | None) -> Contact:
    if found is None:
        raise NotFound("There is no such contact in this tenant.", code="CONTACT_NOT_FOUND")
    return found
