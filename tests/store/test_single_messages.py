"""Single messages: accepted once under their key, sent ahead of campaigns, with one outcome each."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from handbill.fake_graph.model import Config
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import Conflict, HandbillError, Invalid
from handbill.messaging.plan import PersonCap
from handbill.messaging.ports import Recipient
from handbill.messaging.service import KeeperPolicy, MessagingPolicy
from handbill.messaging.singles.model import NewMessage, TemplateMessage
from handbill.messaging.singles.service import Request
from tests.kit.crashes import Died, dying_at
from tests.kit.desk import owner
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, graph
from tests.kit.reach import Book, Room, room
from tests.kit.single_messages import (
    EXPIRED,
    HELLO,
    TO,
    TWO_VARIABLES,
    asked,
    change,
    hello,
    sent_once,
    write_to_us,
)


async def test_a_message_is_accepted_sent_and_shown(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    async with graph(Config()) as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        connection = await at.connect(tenant)
        made = await at.service.singles.send(tenant, hello(), asked("order-1"))
        assert (made.state, made.outcome, made.connection_id, made.number_id) == ("pending", None, connection, NUMBER)
        async with at.running():
            found = await sent_once(at, tenant, made.message_id)
        assert (found.outcome, found.state, found.attempts, found.address) == ("sent", "accepted", 1, TO)
        again = await at.service.singles.send(tenant, hello(), asked("order-1"))
        assert again.message_id == made.message_id
        with pytest.raises(Conflict) as other:
            await at.service.singles.send(tenant, hello("+491700000002"), asked("order-1"))
        assert other.value.code == "IDEMPOTENCY_KEY_REUSED"
        proof = await at.service.singles.verify(tenant)
        assert (proof.holds, proof.messages, proof.sent) == (True, 1, 1)
        assert [line["to"] for line in await fake.log()] == [TO.lstrip("+")]


async def test_requests_at_one_moment_with_one_key_make_one_message(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    async with graph(Config()) as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        await at.connect(tenant)
        found = await asyncio.gather(*(at.service.singles.send(tenant, hello(), asked("same")) for _ in range(12)))
        assert len({one.message_id for one in found}) == 1
        assert (await at.service.singles.verify(tenant)).messages == 1


async def test_a_death_at_every_point_sends_at_most_once(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    """Accepted, queued, claimed, attempted, sent, recorded: whoever dies in between, the key has one outcome."""
    policy = MessagingPolicy(keeper=KeeperPolicy(claim_s=0, answer_s=0))
    async with graph(Config()) as fake, room(database, redis, engines.postgres_url, fake.url, None, policy) as at:
        await at.connect(tenant)
        point, unknown, accepted = 0, 0, 0
        alive = False
        while not alive:
            point += 1
            new, request = hello(f"+4917100{point:05d}"), asked(f"key-{point}")
            alive = await _lived(at, tenant, new, request, point)
            made = await at.service.singles.send(tenant, new, request)  # the caller asks again, as it was not answered
            await _freed(engines.postgres_url, tenant)
            await at.service.keeper.sweep()
            await at.service.single_dispatcher.send_waiting(tenant, NUMBER)
            found = await at.service.singles.read(tenant, made.message_id)
            assert found.state in ("accepted", "unknown"), (point, found.state)
            unknown += found.state == "unknown"
            accepted += found.state == "accepted"
        proof = await at.service.singles.verify(tenant)
        assert proof.holds, proof.faults
        assert (proof.messages, proof.sent, proof.unknown) == (point, accepted, unknown)
        to = [line["to"] for line in await fake.log()]
        assert len(to) == len(set(to)), "nobody twice"
        assert len(to) <= point
        assert point > 30
        assert 0 < unknown < point / 2


async def _lived(at: Room, tenant: int, new: NewMessage, request: Request, point: int) -> bool:
    with dying_at(point):
        try:
            await at.service.singles.send(tenant, new, request)
            await at.service.single_dispatcher.send_waiting(tenant, NUMBER)
        except (Died, asyncio.CancelledError):
            return False
    return True


async def _freed(postgres_url: str, tenant: int) -> None:
    """The dead worker's lease is over."""
    async with owner(postgres_url) as db:
        await db.execute("update messaging.numbers set single_until = '-infinity' where tenant_id = $1", tenant)


async def test_what_is_not_there_is_refused_by_name(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    async with graph(Config()) as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        connection = await at.connect(tenant)

        async def refused(new: NewMessage) -> HandbillError:
            with pytest.raises(HandbillError) as error:
                await at.service.singles.send(tenant, new, asked(str(uuid4())))
            return error.value

        unknown = await refused(NewMessage(to=TO, template=TemplateMessage("nothing", "en_US")))
        assert (unknown.status, unknown.code) == (422, "TEMPLATE_UNKNOWN")
        assert "nothing" in unknown.detail
        extra = await refused(NewMessage(to=TO, template=TemplateMessage("hello_world", "en_US", {"body.7": "x"})))
        assert (extra.status, extra.code) == (422, "TEMPLATE_VARIABLES")
        assert extra.faults[0].field == "template.variables.body.7"
        sender = await refused(hello(number_id="999"))
        assert (sender.status, sender.code, sender.faults[0].field) == (422, "SENDER_UNKNOWN", "number_id")
        contact = await refused(NewMessage(contact_id=uuid4(), template=HELLO))
        assert (contact.status, contact.code) == (422, "CONTACT_UNKNOWN")
        for odd in (NewMessage(to=TO), NewMessage(template=HELLO), NewMessage(to=TO, template=HELLO, text="both")):
            assert isinstance(await refused(odd), Invalid)
        body = '[{"type": "BODY", "text": "Dear {{1}}, order {{2}}"}]'
        await change(engines, TWO_VARIABLES, connection, body)
        missing = await refused(NewMessage(to=TO, template=TemplateMessage("hello_world", "en_US", {"body.1": "Ada"})))
        assert [fault.field for fault in missing.faults] == ["template.variables.body.2"]
        assert (await at.service.singles.verify(tenant)).messages == 0


async def test_consent_suppression_and_window_stand_in_the_way(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    async with graph(Config()) as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        connection = await at.connect(tenant)

        async def code(new: NewMessage) -> str:
            with pytest.raises(Conflict) as error:
                await at.service.singles.send(tenant, new, asked(str(uuid4())))
            return error.value.code

        assert await code(hello(purpose="marketing")) == "CONSENT_MISSING"
        text = NewMessage(to=TO, text="Here it is.")
        assert await code(text) == "WINDOW_CLOSED"
        await write_to_us(at, fake, connection, TO)
        made = await at.service.singles.send(tenant, text, asked("in the window"))
        assert made.text == "Here it is."
        async with at.running():
            assert (await sent_once(at, tenant, made.message_id)).outcome == "sent"
        async with database.worker() as tx:
            await at.book.suppress(tx, tenant, "whatsapp", TO, "opt_out", None, "test")
        assert await code(text) == "SUPPRESSED"
        assert await code(hello()) == "SUPPRESSED"
        assert len(await fake.log()) == 1
        async with owner(engines.postgres_url) as db:  # the window closes, and the person may be written to again
            await db.execute("update messaging.inbound set at = at - interval '1 day' where tenant_id = $1", tenant)
            await db.execute("delete from contacts.suppressions where tenant_id = $1", tenant)
        assert await code(text) == "WINDOW_CLOSED"


async def test_what_changes_after_the_message_was_accepted_counts(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    """The window closes, or the person says stop, between the request and the claim."""
    async with graph(Config()) as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        connection = await at.connect(tenant)
        await write_to_us(at, fake, connection, TO)
        text = await at.service.singles.send(tenant, NewMessage(to=TO, text="Late."), asked("text"))
        stop = await at.service.singles.send(tenant, hello("+491700000009"), asked("stop"))
        old = await at.service.singles.send(tenant, hello("+491700000010", ttl_s=30), asked("old"))
        await change(engines, "update messaging.inbound set at = at - interval '1 day' where tenant_id = $1", tenant)
        await change(engines, EXPIRED, old.message_id)
        async with database.worker() as tx:
            await at.book.suppress(tx, tenant, "whatsapp", "+491700000009", "opt_out", None, "test")
        await at.service.single_dispatcher.send_waiting(tenant, NUMBER)
        reasons = [(await at.service.singles.read(tenant, one.message_id)).reason for one in (text, stop, old)]
        assert reasons == ["window_closed", "suppressed_opt_out", "expired"]
        assert await fake.log() == []
        assert (await at.service.singles.verify(tenant)).skipped == 3


async def test_answers_use_nothing_of_a_campaigns_limit_for_a_person(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    """`person_cap` counts what was sent for marketing; a receipt must not keep somebody from a campaign."""
    book = Book([Recipient(None, TO)])
    async with graph(Config()) as fake, room(database, redis, engines.postgres_url, fake.url, book) as at:
        connection = await at.connect(tenant)
        await at.service.singles.send(tenant, hello(), asked("receipt"))
        await at.service.single_dispatcher.send_waiting(tenant, NUMBER)
        campaign = await at.started(tenant, connection, person_cap=PersonCap(1, 24))
        await at.service.keeper.poll()
        await at.service.launcher.write(tenant, campaign.campaign_id)
        await at.service.dispatcher.turn(tenant, NUMBER, None)
        assert await at.states(tenant, campaign.campaign_id) == {"accepted": 1}
