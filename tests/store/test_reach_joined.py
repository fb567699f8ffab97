"""Where contacts, segments and messaging meet, on the real tables: wishes, audiences, what a claim may send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from handbill.contacts.model import NewConsent, NewContact
from handbill.contacts.service import Book, ContactsService
from handbill.infra.postgres import Database, Tx
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.jobs.model import Job, RetryLater
from handbill.kit.errors import Busy, Conflict, NotFound
from handbill.messaging.fields import CONTACT_FIELDS
from handbill.messaging.plan import AudienceSpec
from handbill.wiring.audience import AddressBook
from tests.conftest import MakeTenant
from tests.kit.address_book import ACTOR, contacts, imported, uploaded
from tests.kit.engines import Engines
from tests.kit.graph import graph
from tests.kit.reach import room as messaging_room
from tests.kit.segments_room import Room, segments_room

MAY_NOT = Sql(
    "select place, reason from messaging.may_not_send($1, $2, $3, $4, $5, $6) where reason is not null",
    "ask_may_not_send",
    "tests",
    "the tenant is the function's first argument",
)
ANA, BOB = "+5511987654321", "+5511987650000"


@pytest.fixture
def service(database: Database, redis: Redis, tmp_path: Path) -> ContactsService:
    return contacts(database, redis, tmp_path / "uploads")


@pytest.fixture
def book(service: ContactsService) -> Book:
    return service.book


@pytest.fixture
async def room(database: Database, redis: Redis, tenant: int) -> AsyncIterator[Room]:
    async with segments_room(database, redis, tenant) as made:
        yield made


# --- wishes


async def test_a_start_takes_back_a_stop_and_nothing_else(book: Book, tenant: int, make_tenant: MakeTenant) -> None:
    other = await make_tenant()
    ana, shared, bob = [
        (await book.create(tenant, NewContact(phone=phone, name=name), actor=ACTOR)).contact_id
        for phone, name in ((ANA, "ana"), (ANA, "ana's mother"), (BOB, "bob"))
    ]
    theirs = (await book.create(other, NewContact(phone=ANA), actor=ACTOR)).contact_id

    async def words(owner: int, contact: UUID) -> tuple[list[str], list[str]]:
        one = await book.read(owner, contact)
        return one.granted, one.denied

    await book.consent(tenant, ana, NewConsent("whatsapp", True, "form"), actor=ACTOR)
    assert await book.opt_in(tenant, "whatsapp", ANA, source="START") is False, "there is nothing to take back"
    for _ in range(2):
        assert await book.opt_out(tenant, "whatsapp", ANA, source="STOP", proof="w1") == 2, "a shared telephone"
        assert await words(tenant, ana) == await words(tenant, shared) == ([], ["whatsapp"])
        assert await book.suppressed(tenant, "whatsapp", [ANA]) == {ANA: "opt_out"}
        assert await book.opt_in(tenant, "whatsapp", ANA, source="START", proof="w2")
        assert await words(tenant, ana) == (["whatsapp"], []), "she had agreed before"
        assert await words(tenant, shared) == ([], []), "who had not agreed has not agreed now"
        assert await book.suppressed(tenant, "whatsapp", [ANA]) == {}
    log = (await book.consents(tenant, ana, None, 9)).items
    assert [(one.granted, one.source, one.proof) for one in log] == [
        (True, "form", None), *[(False, "STOP", "w1"), (True, "START", "w2")] * 2
    ]  # fmt: skip
    assert await words(tenant, bob) == await words(other, theirs) == ([], [])

    await book.opt_out(tenant, "sms", ANA, source="STOP")
    await book.suppress(tenant, "whatsapp", ANA, "invalid")
    assert not await book.opt_in(tenant, "whatsapp", ANA, source="START")
    assert await book.suppressed(tenant, "whatsapp", [ANA]) == {ANA: "invalid"}, "only their own word is theirs to lift"
    assert await book.suppressed(tenant, "sms", [ANA]) == {ANA: "opt_out"}, "and only on the channel they spoke on"
    assert await words(tenant, ana) == (["whatsapp"], ["sms"])
    assert not await book.opt_in(tenant, "email", "nobody@x.org", source="START")
    assert await book.opt_out(tenant, "email", "nobody@x.org", source="STOP") == 0
    assert await book.suppressed(tenant, "email", ["nobody@x.org"]) == {"nobody@x.org": "opt_out"}


async def test_a_wish_joins_the_transaction_it_is_heard_in(book: Book, database: Database, tenant: int) -> None:
    ana = await book.create(tenant, NewContact(phone=ANA), actor=ACTOR)
    with pytest.raises(ZeroDivisionError):
        async with database.worker() as tx:
            await book.opt_out(tenant, "whatsapp", ANA, source="STOP", tx=tx)
            raise ZeroDivisionError
    assert (await book.read(tenant, ana.contact_id)).denied == []
    assert await book.suppressed(tenant, "whatsapp", [ANA]) == {}
    async with database.worker() as tx:
        await book.opt_out(tenant, "whatsapp", ANA, source="STOP", tx=tx)
        await book.opt_in(tenant, "whatsapp", ANA, source="START", tx=tx)
    after = await book.read(tenant, ana.contact_id)
    assert (after.granted, after.denied) == ([], []), "silent as before"


# --- imports


async def test_the_end_of_an_import_is_told_whichever_it_is_with_the_end_itself(
    service: ContactsService, tenant: int, tmp_path: Path
) -> None:
    told: list[dict[str, Any]] = []

    async def hears(tx: Tx, owner: int, body: dict[str, Any]) -> None:
        assert owner == tenant
        told.append(body)

    service.runner.told = hears
    file = tmp_path / "x.csv"
    file.write_text(f"phone,name\n{ANA},Ana\n1,Nobody\n")
    done = await imported(service, tenant, file)
    counts = done.counts
    assert told == [{"import_id": str(done.import_id), "status": "done", "rows": 2, "counts": counts}]
    assert (counts.created, counts.rejected) == (1, 1)

    failed, cancelled = [await uploaded(service, tenant, file) for _ in range(2)]
    for one in (failed, cancelled):
        await service.imports.start(tenant, one.import_id, actor=ACTOR)
    for _ in range(2):  # only the first ends it
        await service.runner.fail(tenant, failed.import_id, "IMPORT_FILE_GONE: no file")
    await service.imports.cancel(tenant, cancelled.import_id, actor=ACTOR)
    assert [(one["import_id"], one["status"], one.get("error")) for one in told[1:]] == [
        (str(failed.import_id), "failed", "IMPORT_FILE_GONE: no file"),
        (str(cancelled.import_id), "cancelled", None),
    ]


# --- segments


async def test_who_of_these_is_inside(room: Room, make_tenant: MakeTenant) -> None:
    await room.people({"ann": {"plan": "pro"}, "bob": {"plan": "free"}}, ids={"ann": ["ann-2", "ann@x.org"]})
    made = await room.make("Pro", {"person.plan": "pro"})
    with pytest.raises(Busy):
        await room.segments.inside(room.tenant, made.segment_id, ["ann"])
    await room.kept()
    asked = ["ann", "ann-2", "bob", "nobody", "ann@x.org", "ann"]
    assert await room.segments.inside(room.tenant, made.segment_id, asked) == {"ann", "ann-2", "ann@x.org"}
    assert await room.segments.inside(room.tenant, made.segment_id, []) == set()
    with pytest.raises(NotFound):
        await room.segments.inside(await make_tenant(), made.segment_id, ["ann"])


async def test_an_audience_by_segment_and_tags_page_by_page(room: Room, service: ContactsService, tenant: int) -> None:
    plans: dict[str, dict[str, Any]] = {f"c{n}": {"plan": "pro" if n % 3 == 0 else "free"} for n in range(12)}
    await room.people(plans)
    pro = await room.make("Pro", {"person.plan": "pro"})
    await room.kept()
    for n in range(12):
        attributes = {"time_zone": "America/Sao_Paulo", "city": "Rio"}
        tags = ["even"] if n % 2 == 0 else ["odd"]
        external = f"c{n}" if n != 6 else None  # nobody knows who that is
        new = NewContact(
            phone=f"+55119876500{n:02d}", external_id=external, name=f"P{n}", tags=tags, attributes=attributes
        )
        await service.book.create(tenant, new, actor=ACTOR)
    await service.book.create(tenant, NewContact(email="c3@x.org", external_id="c3-mail"), actor=ACTOR)
    met = AddressBook(service, room.segments)

    async def names(**spec: Any) -> list[str]:
        found: list[str] = []
        after: UUID | None = None
        while True:
            page = await met.audience(tenant, "whatsapp", AudienceSpec(**spec), after, 4)
            found += [one.fields["name"] for one in page.recipients]
            if (after := page.after) is None:
                return found

    assert await names() == [f"P{n}" for n in range(12)]
    assert await names(segment_id=pro.segment_id) == ["P0", "P3", "P9"]
    assert await names(segment_id=pro.segment_id, tags_any=["odd"]) == ["P3", "P9"]
    page = await met.audience(tenant, "whatsapp", AudienceSpec(segment_id=pro.segment_id), None, 100)
    first = page.recipients[0]
    assert (first.address, first.zone, first.fields["city"]) == ("+5511987650000", "America/Sao_Paulo", "Rio")
    with pytest.raises(Conflict):
        await names(segment_id=uuid4())


async def test_an_attribute_fills_a_template_only_where_the_contacts_own_field_is_empty(
    room: Room, service: ContactsService, tenant: int
) -> None:
    own: dict[str, Any] = {"name": "Company", "locale": "from a form"}
    ana = NewContact(phone="+5511987650001", name="Ana", locale="pt-BR", attributes=own)
    nameless = NewContact(phone="+5511987650002", attributes=own)
    for new in (ana, nameless, NewContact(phone="+5511987650003")):
        await service.book.create(tenant, new, actor=ACTOR)
    page = await AddressBook(service, room.segments).audience(tenant, "whatsapp", AudienceSpec(), None, 10)
    fields = [(one.fields["name"], one.fields["locale"]) for one in page.recipients]
    assert fields == [("Ana", "pt-BR"), ("Company", "from a form"), (None, None)]


async def test_a_campaign_waits_for_its_segment_holds_it_and_pauses_without_it(
    room: Room, service: ContactsService, database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    await room.people({"c1": {"plan": "pro"}})
    await service.book.create(tenant, NewContact(phone=ANA, external_id="c1"), actor=ACTOR)
    met: Any = AddressBook(service, room.segments)
    async with graph() as fake, messaging_room(database, redis, engines.postgres_url, fake.url, met) as at:
        room.segments.editor.join(at.service.uses)
        connection = await at.connect(tenant)
        segment = (await room.make("Pro", {"person.plan": "pro"})).segment_id
        campaigns, launch = at.service.campaigns, at.tasks.handlers()["message_dispatch"]["launch"]
        spec = AudienceSpec(segment_id=segment)

        async def begun() -> tuple[UUID, Job]:
            one = await at.started(tenant, connection, audience=spec)
            await at.service.keeper.poll()
            data = {"campaign_id": str(one.campaign_id)}
            return one.campaign_id, Job(
                id="1", wire_id="1", queue="message_dispatch", name="launch", data=data, opts={"tenant": tenant}
            )

        campaign, job = await begun()
        with pytest.raises(RetryLater):  # nobody was held against the rule yet
            await launch(job, None)
        with pytest.raises(Conflict, match="the campaign Spring"):
            await room.segments.editor.delete(tenant, segment, version=None, actor=ACTOR)
        await room.kept()
        await launch(job, None)
        waited = await campaigns.read(tenant, campaign)
        assert (waited.audience_done, waited.audience_size) == (True, 1)
        await campaigns.cancel(tenant, campaign, actor=ACTOR)
        await room.segments.editor.delete(tenant, segment, version=None, actor=ACTOR)
        campaign, job = await begun()
        await launch(job, None)
        without = await campaigns.read(tenant, campaign)
        assert (without.state, without.reason) == ("paused", "audience_segment_not_found")


# --- what a claim may send


async def test_what_may_not_be_sent_over_the_real_address_book(
    service: ContactsService, database: Database, tenant: int, make_tenant: MakeTenant
) -> None:
    book, other = service.book, await make_tenant()
    now = datetime.now(UTC)
    made: dict[str, UUID] = {}
    for place, name in enumerate(("granted", "silent", "denied", "other-channel", "stopped", "ended", "standing")):
        phone = f"+55119876511{place:02d}"
        made[name] = (await book.create(tenant, NewContact(phone=phone, name=name), actor=ACTOR)).contact_id
        if name not in ("silent", "denied", "other-channel"):
            await book.consent(tenant, made[name], NewConsent("whatsapp", True, "form"), actor=ACTOR)
    await book.consent(tenant, made["denied"], NewConsent("whatsapp", False, "form"), actor=ACTOR)
    await book.consent(tenant, made["other-channel"], NewConsent("sms", True, "form"), actor=ACTOR)
    address = {name: (await book.read(tenant, one)).whatsapp or "" for name, one in made.items()}
    await book.opt_out(tenant, "whatsapp", address["stopped"], source="STOP")
    await book.suppress(tenant, "whatsapp", address["ended"], "bounce", now - timedelta(seconds=1))
    await book.suppress(tenant, "whatsapp", address["standing"], "bounce", now + timedelta(hours=1))
    await book.suppress(tenant, "sms", address["granted"], "complaint")
    await book.suppress(other, "whatsapp", address["granted"], "opt_out")
    gone = (await book.create(tenant, NewContact(phone="+5511987651190"), actor=ACTOR)).contact_id
    await book.delete(tenant, gone, actor=ACTOR)
    people = [*made, "gone", "no contact", "no contact, stopped"]
    contact: dict[str, UUID | None] = {**made, "gone": gone}
    address |= {"gone": "+5511987651190", "no contact": "+5511987651191", "no contact, stopped": address["stopped"]}

    async def refused(purpose: str, later: timedelta = timedelta()) -> dict[str, str]:
        count = len(people)
        ids = [contact.get(one) for one in people]
        asked = (["whatsapp"] * count, [address[one] for one in people], ids, [purpose] * count, now + later)
        async with database.worker() as tx:
            rows = await tx.fetch(MAY_NOT, tenant, *asked)
        return {people[row["place"] - 1]: row["reason"] for row in rows}

    always = {
        "denied": "consent_denied", "stopped": "suppressed_opt_out", "standing": "suppressed_bounce",
        "gone": "contact_gone", "no contact, stopped": "suppressed_opt_out",
    }  # fmt: skip
    assert await refused("utility") == always, "who never said no may get what is no marketing"
    silent = {"silent": "consent_missing", "other-channel": "consent_missing"}
    assert await refused("marketing") == {**always, **silent}
    assert "standing" not in await refused("utility", timedelta(hours=1)), "a suppression ends on its second"
    await asyncio.gather(
        book.opt_in(tenant, "whatsapp", address["stopped"], source="START"),
        book.opt_in(tenant, "whatsapp", address["denied"], source="START"),
    )
    after = await refused("marketing")
    assert set(after) == {"denied", "standing", "gone", "silent", "other-channel"}, "a form's no is not theirs to lift"


async def test_a_start_lifts_no_denial_that_somebody_else_wrote_down(book: Book, tenant: int) -> None:
    ana = (await book.create(tenant, NewContact(phone=ANA), actor=ACTOR)).contact_id
    await book.consent(tenant, ana, NewConsent("whatsapp", True, "form"), actor=ACTOR)
    await book.consent(tenant, ana, NewConsent("whatsapp", False, "phone call"), actor=ACTOR)
    assert not await book.opt_in(tenant, "whatsapp", ANA, source="START")
    await book.opt_out(tenant, "whatsapp", ANA, source="STOP")
    assert await book.opt_in(tenant, "whatsapp", ANA, source="START"), "the suppression was theirs"
    assert (await book.read(tenant, ana)).denied == ["whatsapp"]


async def test_every_documented_field_fills_a_template(room: Room, service: ContactsService, tenant: int) -> None:
    attributes = {"city": "Rio", "first_name": "Aninha"}
    new = NewContact(
        phone=ANA, email="ana@x.org", external_id="c-1", name="Ana Maria Costa", locale="pt-BR", attributes=attributes
    )
    await service.book.create(tenant, new, actor=ACTOR)
    page = await AddressBook(service, room.segments).audience(tenant, "whatsapp", AudienceSpec(), None, 10)
    fields = page.recipients[0].fields
    expected = {
        "name": "Ana Maria Costa", "first_name": "Aninha", "last_name": "Maria Costa", "email": "ana@x.org",
        "phone": ANA, "external_id": "c-1", "locale": "pt-BR", "attributes.city": "Rio",
    }  # fmt: skip
    assert {name: fields[name] for name in expected} == expected
    assert {"attributes.NAME" if name == "attributes.city" else name for name in expected} == CONTACT_FIELDS.keys()
