"""The address book: one address in many spellings, consent with its log, suppressions that last, audiences, erasure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from handbill.contacts.model import Audience, ContactFilter, ContactPatch, NewConsent, NewContact, NewSuppression
from handbill.contacts.service import Book, ContactsService
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import Conflict, Invalid, NotFound, PreconditionFailed
from tests.conftest import MakeTenant
from tests.kit.address_book import ACTOR, contacts, imported


@pytest.fixture
def service(database: Database, redis: Redis, tmp_path: Path) -> ContactsService:
    return contacts(database, redis, tmp_path / "uploads")


@pytest.fixture
def book(service: ContactsService) -> Book:
    return service.book


async def test_contacts_are_made_found_changed_and_removed(book: Book, tenant: int) -> None:
    made = await book.create(
        tenant,
        NewContact(phone="(11) 8765-4321", region="BR", email="Ann@X.org", name=" Ann ", tags=["b", "a"]),
        actor=ACTOR,
    )
    assert (made.phone, made.whatsapp, made.email, made.name) == (*["+5511987654321"] * 2, "ann@x.org", "Ann")
    assert made.tags == ["a", "b"]
    bob = await book.create(tenant, NewContact(external_id="C_7", name="100% Bob"), actor=ACTOR)
    for word, found in (("ann", made), ("+5511 9876", made), ("ann@", made), ("C_7", bob), ("100% b", bob)):
        page = await book.search(tenant, None, 10, ContactFilter(word))
        assert [one.contact_id for one in page.items] == [found.contact_id], word
    assert (await book.search(tenant, None, 10, ContactFilter("C%7"))).items == []
    assert (await book.search(tenant, None, 10, ContactFilter("nn@x.org"))).items == []
    assert (await book.search(tenant, None, 10, ContactFilter("+5511 9876", tag="c"))).items == []
    first = await book.search(tenant, None, 1, ContactFilter())
    rest = await book.search(tenant, first.next, 1, ContactFilter())
    assert [one.contact_id for one in (*first.items, *rest.items)] == [made.contact_id, bob.contact_id]
    assert rest.next is None

    patch = ContactPatch(name=None, attributes={"city": "Rio", "vip": True}, add_tags=["c"], remove_tags=["a"])
    after = await book.change(tenant, made.contact_id, patch, actor=ACTOR, if_version=1)
    assert (after.name, after.tags, after.attributes) == (None, ["b", "c"], {"city": "Rio", "vip": True})
    again = await book.change(tenant, made.contact_id, ContactPatch(attributes={"city": None}), actor=ACTOR)
    assert (again.attributes, again.version) == ({"vip": True}, 3)
    assert await book.tags(tenant) == {"b": 1, "c": 1}
    with pytest.raises(PreconditionFailed):
        await book.change(tenant, made.contact_id, ContactPatch(), actor=ACTOR, if_version=1)
    with pytest.raises(Conflict):
        await book.create(tenant, NewContact(external_id="C_7"), actor=ACTOR)
    for bad in (
        NewContact(),
        NewContact(phone="12"),
        NewContact(email="x"),
        NewContact(email="a@x.org", name="\ud800"),
    ):
        with pytest.raises(Invalid):
            await book.create(tenant, bad, actor=ACTOR)
    with pytest.raises(Invalid):
        await book.change(tenant, bob.contact_id, ContactPatch(external_id=None), actor=ACTOR)
    await book.delete(tenant, bob.contact_id, actor=ACTOR)
    with pytest.raises(NotFound):
        await book.read(tenant, bob.contact_id)


async def test_consent_is_a_log_and_a_state(book: Book, tenant: int) -> None:
    made = await book.create(tenant, NewContact(phone="+5511987654321"), actor=ACTOR)
    yes = NewConsent("whatsapp", True, "web form", "form 17")
    assert (await book.consent(tenant, made.contact_id, yes, actor=ACTOR)).granted == ["whatsapp"]
    told = await book.opt_out(tenant, "whatsapp", "+5511987654321", source="inbound STOP", proof="wamid.1")
    assert told == 1
    after = await book.read(tenant, made.contact_id)
    assert (after.granted, after.denied) == ([], ["whatsapp"])
    log = await book.consents(tenant, made.contact_id, None, 10)
    assert [(line.granted, line.source, line.proof) for line in log.items] == [
        (True, "web form", "form 17"),
        (False, "inbound STOP", "wamid.1"),
    ]
    assert await book.suppressed(tenant, "whatsapp", ["+5511987654321", "+4912"]) == {"+5511987654321": "opt_out"}


async def test_an_opt_out_is_not_overruled_by_a_file(
    service: ContactsService, database: Database, tenant: int, tmp_path: Path
) -> None:
    book = service.book
    made = await book.create(tenant, NewContact(phone="+5491123456789"), actor=ACTOR)
    await book.opt_out(tenant, "whatsapp", "+5491123456789", source="STOP")
    file = tmp_path / "x.csv"
    file.write_text(
        "phone,ok\n+5491123456789,yes\n+5511987654321,no\n+5511987650000,\n+5511987650001,revoked\n+5511987650002,yes\n"
    )
    columns = [{"index": 1, "target": "consent"}]
    consent = {"channels": ["whatsapp", "sms"], "source": "form"}
    with pytest.raises(Invalid):
        await imported(service, tenant, file, columns=columns)
    done = await imported(service, tenant, file, columns=columns, consent=consent)
    assert done.status == "done"
    assert (await book.read(tenant, made.contact_id)).granted == ["sms"]
    found = {
        one.phone: (one.granted, one.denied) for one in (await book.search(tenant, None, 9, ContactFilter())).items
    }
    assert found == {
        "+5491123456789": (["sms"], ["whatsapp"]),
        "+5511987654321": ([], ["sms", "whatsapp"]),
        "+5511987650000": ([], []),
        "+5511987650001": ([], []),
        "+5511987650002": (["sms", "whatsapp"], []),
    }


async def test_a_lasting_suppression_is_not_shortened(book: Book, tenant: int) -> None:
    now = datetime.now(UTC)
    new = NewSuppression("sms", "(11) 98765-4321", "bounce", now + timedelta(days=1), region="BR")
    kept = await book.suppress_sent(tenant, new, actor=ACTOR)
    assert (kept.address, kept.reason) == ("+5511987654321", "bounce")
    await book.suppress(tenant, "sms", "+5511987654321", "opt_out")
    kept = await book.suppress(tenant, "sms", "+5511987654321", "bounce", now + timedelta(days=1))
    assert (kept.reason, kept.until) == ("opt_out", None)
    await book.suppress(tenant, "email", "a@x.org", "manual", now - timedelta(seconds=1))
    assert await book.suppressed(tenant, "email", ["a@x.org"]) == {}
    listed = await book.suppressions(tenant, None, 1)
    assert [one.channel for one in listed.items] == ["email"]
    listed = await book.suppressions(tenant, listed.next, 1)
    assert [one.channel for one in listed.items] == ["sms"]
    await book.lift(tenant, "sms", "+55 11 98765-4321", actor=ACTOR)
    with pytest.raises(NotFound):
        await book.lift(tenant, "sms", "+5511987654321", actor=ACTOR)
    await book.sweep()
    assert (await book.suppressions(tenant, None, 9)).items == []


async def test_an_audience_says_who_and_what_stands_against_it(
    book: Book, tenant: int, make_tenant: MakeTenant
) -> None:
    ids: dict[str, UUID] = {}
    for name, tags, phone in (
        ("ann", ["spring", "vip"], "+541123456789"),
        ("bob", ["spring"], "+5511987654321"),
        ("cid", ["spring", "staff"], "+5511987650000"),
        ("dan", ["winter"], "+5511987651111"),
        ("eve", ["spring"], None),
    ):
        new = NewContact(phone=phone, external_id=name, name=name, tags=tags)
        ids[name] = (await book.create(tenant, new, actor=ACTOR)).contact_id
    await book.consent(tenant, ids["ann"], NewConsent("whatsapp", True, "form"), actor=ACTOR)
    await book.suppress(tenant, "whatsapp", "+5511987654321", "bounce")
    other = await make_tenant()
    await book.create(other, NewContact(phone="+5511987652222", tags=["spring"]), actor=ACTOR)

    spring = Audience(tags_any=("spring",), tags_none=("staff",))
    page = await book.audience(tenant, "whatsapp", spring, None, 1)
    assert [(one.name, one.address, one.granted, one.suppressed) for one in page] == [
        ("ann", "+5491123456789", True, None)
    ]
    page = await book.audience(tenant, "whatsapp", spring, page[-1].contact_id, 10)
    assert [(one.name, one.granted, one.suppressed) for one in page] == [("bob", False, "bounce")]
    both = await book.audience(tenant, "sms", Audience(tags_all=("spring", "vip")), None, 10)
    assert [(one.name, one.address) for one in both] == [("ann", "+541123456789")]
    listed = await book.audience(tenant, "sms", Audience(contact_ids=(ids["dan"], ids["eve"])), None, 10)
    assert [one.name for one in listed] == ["dan"]


async def test_erasure_reaches_every_table(
    service: ContactsService, database: Database, tenant: int, tmp_path: Path
) -> None:
    file = tmp_path / "x.csv"
    file.write_text("id,phone,email\nann,+5511987654321,ann@x.org\nbob,1,ann@x.org\ncid,+5511987650000,\n")
    for policy in ("update", "replace"):
        consent = {"channels": ["whatsapp"], "source": "form"}
        await imported(service, tenant, file, policy=policy, tags=[policy], consent=consent)
    await service.book.suppress(tenant, "whatsapp", "+5511987654321", "opt_out", note="asked by ann")
    report = await service.erase(tenant, "ann")
    assert report == {
        "contacts.contacts": 1,
        "contacts.consent_log": 1,
        "contacts.import_changes": 1,
        "contacts.import_rows": 0,
        "contacts.import_findings": 2,
        "contacts.suppressions": 1,
    }
    assert set((await service.erase(tenant, "ann")).values()) == {0}
    left = await service.book.search(tenant, None, 9, ContactFilter())
    assert [one.external_id for one in left.items] == ["cid"]
    assert await service.suppressed(tenant, "whatsapp", ["+5511987654321"]) == {"+5511987654321": "opt_out"}


@pytest.mark.parametrize(
    ("phone", "region", "reason"),
    [
        ("79211280299", "IN", "PHONE_OTHER_COUNTRY"),
        ("79211280299", "IN", r"Is it \+79211280299\?"),
        ("98450", "IN", "fewer digits"),
        ("07911 123456", "UK", "an ISO code"),
    ],
)
async def test_a_number_that_cannot_be_used_is_refused_with_what_is_wrong(
    book: Book, tenant: int, phone: str, region: str, reason: str
) -> None:
    with pytest.raises(Invalid) as refused:
        await book.create(tenant, NewContact(phone=phone, region=region), actor=ACTOR)
    (fault,) = refused.value.faults
    assert re.search(reason, fault.reason)
