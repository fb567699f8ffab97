"""A person leaves every store at once: no table, value or key names any of their ids afterwards; counts stay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from handbill.contacts.model import NewConsent, NewContact
from handbill.contacts.service import ContactsService
from handbill.events.accepted import Accepted
from handbill.events.batch import Parked
from handbill.events.forgetting import Forgetting
from handbill.events.model import CapturedEvent, Edge, EdgeKind, Event, Impression, View, encode
from handbill.events.policy import ConsumerPolicy
from handbill.events.reasons import Reason
from handbill.events.store import EventStore
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.ids import Ids
from handbill.messaging.hooks import NewHook
from handbill.messaging.plan import BindingIn
from handbill.messaging.webhooks import sign
from handbill.people.overrides import Overrides
from handbill.segments.service import SegmentsService
from handbill.wiring.audience import AddressBook, Reach
from tests.kit import desk, person_requests
from tests.kit.address_book import contacts
from tests.kit.engines import Engines
from tests.kit.graph import graph
from tests.kit.loop import Loop, loop
from tests.kit.reach import SECRET, Room, room
from tests.kit.shipping import shipped, shipping

LOGIN, PHONE, WEB, OTHER = "ada@zz-login", "zz-phone-1", "zz-web-2", "bob@other"
CALLED, WROTE, CALLED_OTHER = "+5511976501234", "551176501234", "+5511976505678"
"""Their numbers; in Brazil a webhook may leave out the ninth digit."""
LEFT_OVER = Sql(
    "update events.ch_batches set done_at = now() where done_at is null and lane <> all ($1::text[])", "left_over"
)
TABLES = (
    "select format('%I.%I', n.nspname, c.relname) from pg_class c join pg_namespace n on n.oid = c.relnamespace"
    " where c.relkind = 'r' and n.nspname not in ('pg_catalog', 'information_schema')"
)


async def naming(engines: Engines, word: str) -> list[str]:
    """Every table of PostgreSQL with a row that has this word anywhere, its bytes included."""
    owner = await asyncpg.connect(engines.postgres_url)
    try:
        found = []
        for (table,) in await owner.fetch(TABLES):
            there = f"select exists (select from {table} t where t::text like any ($1::text[]))"
            if await owner.fetchval(there, [f"%{word}%", f"%{word.encode().hex()}%"]):
                found.append(table)
        return sorted(found)
    finally:
        await owner.close()


async def told(house: Loop, tenant: int) -> None:
    shop, now = await house.shop(tenant), house.clock.now_ms()
    events: list[Event] = []
    for n, who in enumerate((LOGIN, PHONE, WEB, OTHER) * 3):
        more = b'{"email":"%s"}' % who.encode()
        events.append(CapturedEvent(tenant, f"e{n}", now, now, "see", who, "own", more, more, session=f"s-{who}"))
        events.append(Impression(tenant, f"i{n}", now, now, shop.banners[0], user=who))
        events.append(View(tenant, f"v{n}", now, now, shop.banners[0], user=who))
    for n, other in enumerate((PHONE, WEB)):
        edge = Edge(EdgeKind.IDENTIFY, other)
        events.append(CapturedEvent(tenant, f"l{n}", now + 1, now, "$identify", LOGIN, "own", edge=edge))
    await house.events.accept(events)
    await house.drained()
    await shipped(house)
    body = encode(CapturedEvent(tenant, "p", now, now, "see", PHONE, "own"))
    async with house.database.worker() as tx:
        await EventStore().park(tx, [Parked(tenant, "capture", "p", Reason.REJECTED, "", body)], "0", Ids())


@asynccontextmanager
async def reaching(
    database: Database, redis: Redis, engines: Engines, segments: SegmentsService, folder: Path
) -> AsyncIterator[tuple[ContactsService, Room]]:
    service = contacts(database, redis, folder)
    met: Any = AddressBook(service, segments)
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url, met) as at:
        yield service, at


async def reached(service: ContactsService, at: Room, tenant: int) -> None:
    """The person is a contact under one of the ids, is to get two messages, and wrote; so is and did somebody else."""
    for who, phone in ((WEB, CALLED), (OTHER, CALLED_OTHER)):
        new = NewContact(phone=phone, external_id=who, name=f"name of {who}", email=f"{phone[1:]}@zz.example")
        made = await service.book.create(tenant, new, actor="test")
        said = NewConsent("whatsapp", True, "form", f"by {who}")
        await service.book.consent(tenant, made.contact_id, said, actor="test")
    await service.suppress(tenant, "sms", CALLED, "bounce", note=f"told by {WEB}")
    connection = await at.connect(tenant)
    await at.service.hook_desk.create(tenant, NewHook("http://127.0.0.1:9/", ["message.received"]), actor="test")
    for _ in range(2):
        one = await at.started(tenant, connection, bindings={"body.1": BindingIn("name")})
        await at.service.keeper.poll()
        await at.service.launcher.write(tenant, one.campaign_id)
    heard = [desk.wrote(f"wamid.{sender}", sender, "Hello", 1_750_000_000) for sender in (WROTE, CALLED_OTHER)]
    people = [{"profile": {"name": f"name of {WEB}"}, "wa_id": WROTE}]
    for body in (desk.messages(contacts=people, messages=heard), desk.hook("news", {"from": WROTE})):
        assert await at.service.incoming.keep(connection, body, sign(SECRET, body))
    await at.service.incoming.work()


async def test_no_store_names_an_erased_person(
    database: Database, redis: Redis, clickhouse: ClickHouse, engines: Engines, tenant: int, tmp_path: Path
) -> None:
    await migrate_clickhouse(clickhouse)
    async with (
        loop(database, redis, main=1) as house,
        reaching(database, redis, engines, house.segments, tmp_path) as (service, at),
    ):
        await reached(service, at, tenant)
        reach = Reach(service, at.service)
        await house.consumer(ConsumerPolicy(batch_wait_ms=0), shipping=shipping(database, clickhouse, house.journal))
        await told(house, tenant)
        overrides = Overrides(database, clickhouse)
        await overrides.ship()
        async with database.worker() as tx:
            await tx.execute(LEFT_OVER, [lane for lane, _ in house.lanes.all()])
        erasures, history = house.tenants.erasures, Forgetting(database, clickhouse)
        erasures.join_whole("caps", house.caps.erase, house.caps.export)
        erasures.join_whole("banners", house.banners.erasure.erase, house.banners.erasure.export)
        erasures.join_whole("segments", house.segments.erasure.erase, house.segments.erasure.export)
        erasures.join_whole("parked", house.events.dead.erase, house.events.dead.export)
        erasures.join_whole("history", history.erase, history.export)
        erasures.join("reach", reach.erase, reach.export)
        erasures.join_whole("people", house.people.erase, house.people.export, last=True)
        accepted, house.people.overrides = Accepted(database, house.journal, house.lanes), overrides

        async def settled(tenant_id: int) -> None:
            await accepted.counted()
            await house.people.keeper.settle(tenant_id)

        erasures.settled, erasures.siblings = settled, house.people.siblings
        exported = await person_requests.export(house.tenants, tenant, WEB, actor="ada")
        assert sorted(exported.ids) == sorted((LOGIN, PHONE, WEB))
        assert {room for room, tables in exported.rooms.items() if any(tables.values())} == {
            "caps", "banners", "parked", "history", "people", "reach",
        }  # fmt: skip
        kept = exported.rooms["reach"]
        assert {table: len(rows) for table, rows in kept.items() if rows} == {
            "contacts.contacts": 1, "contacts.consent_log": 1, "contacts.suppressions": 1,
            "messaging.messages": 2, "messaging.inbound": 1,
        }  # fmt: skip
        msgspec.json.encode(exported)
        done = await person_requests.erase(house.tenants, tenant, WEB, actor="ada")
        assert done.status == "done", done.report
        await overrides.ship()
        for word in (LOGIN, PHONE, WEB):
            assert await naming(engines, word) == [], word
            for table in ("events", "person_distinct_id_overrides"):
                rows = f"select * from {table} where tenant_id = {tenant} format JSONEachRow"
                assert word not in str(await clickhouse.command(rows)), (table, word)
        for word in (f"name of {WEB}", WROTE, f"{CALLED[1:]}@zz.example"):
            assert await naming(engines, word) == [], word
        assert await naming(engines, CALLED) == ["contacts.suppressions"], "it protects; its note is gone"
        assert await naming(engines, OTHER) != []
        assert "messaging.messages" in await naming(engines, CALLED_OTHER)
