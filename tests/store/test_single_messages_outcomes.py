"""Single messages: what becomes of them once accepted, and where else they come from."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest

from handbill.fake_graph.model import Config, Faults
from handbill.infra.postgres import Database
from handbill.infra.redis import Keys, Redis
from handbill.jobs.chores import RelayChore
from handbill.jobs.model import Job, Unrecoverable
from handbill.kit.clock import SystemClock
from handbill.kit.errors import Conflict, HandbillError, NotFound, Throttled
from handbill.kit.ids import Ids
from handbill.messaging.hooks import NewHook
from handbill.messaging.limits import SECOND_US
from handbill.messaging.pacer import Pacer
from handbill.messaging.service import KeeperPolicy, MessagingPolicy
from handbill.messaging.single_outcomes import SingleOutcomes
from handbill.messaging.singles.model import NewMessage, NewReply
from handbill.messaging.singles.service import SingleMessages
from tests.conftest import MakeTenant
from tests.kit.desk import hook, messages, owner, status, told, worked_off, wrote
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, graph, many_numbers
from tests.kit.reach import Book, people, room
from tests.kit.single_messages import (
    EARLIER,
    EXPIRED,
    LATER,
    TO,
    asked,
    change,
    hello,
    sent_once,
    write_to_us,
)
from tests.kit.waiting import eventually


async def test_a_lost_answer_is_unknown_until_its_webhook_lifts_it(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    policy = MessagingPolicy(keeper=KeeperPolicy(unknown_h=0))
    config = Config(faults=Faults(lost_answer=1.0))
    async with graph(config) as fake, room(database, redis, engines.postgres_url, fake.url, None, policy) as at:
        connection = await at.connect(tenant)
        listener = await at.service.hook_desk.create(tenant, NewHook("https://example.com/hook"), actor="test")
        made = await at.service.singles.send(tenant, hello(), asked("lost"))
        await at.service.single_dispatcher.send_waiting(tenant, NUMBER)
        assert (await at.service.singles.read(tenant, made.message_id)).state == "unknown"
        await at.service.keeper.sweep()  # the deadline: failed, and never sent again by a machine
        failed = await at.service.singles.read(tenant, made.message_id)
        assert (failed.outcome, failed.reason) == ("failed", "unknown")
        for _ in range(2):
            await at.service.single_dispatcher.send_waiting(tenant, NUMBER)
            await at.service.singles.send(tenant, hello(), asked("lost"))
        assert len(await fake.log()) == 1
        at_s = int(at.clock.now().timestamp())
        fact = status(made.message_id, "delivered", at_s, address=TO)
        for copies in (1, 2, 3):
            await told(at, connection, messages(statuses=[fact] * copies))
            await worked_off(at)
        found = await at.service.singles.read(tenant, made.message_id)
        assert (found.outcome, found.state, found.reason) == ("sent", "delivered", None)
        async with owner(engines.postgres_url) as db:
            rows = await db.fetch(
                "select body from messaging.hook_deliveries where hook_id = $1 order by delivery_id",
                listener.hook.hook_id,
            )
        bodies = [json.loads(row["body"]) for row in rows]
        events = [body["event"] for body in bodies]
        assert events == ["message.unknown", "message.failed", "message.delivered"], "each change once"
        assert {body["data"]["idempotency_key"] for body in bodies} == {"lost"}


async def test_a_single_message_takes_the_next_token_of_a_busy_number(redis: Redis, unique: Any) -> None:
    """However many of a campaign wait for the number: the single message goes next, and the campaign after it."""
    pacer = Pacer(redis, Keys(unique("k").replace("-", "")), SystemClock())
    limits: dict[str, int] = {"per_second": 10, "tenant_per_second": 10}
    crowd = [one.address for one in people(16)]
    while not (campaign := await pacer.take(1, "7", crowd, **limits)).wait_us:
        pass
    single = await pacer.take(1, "7", [TO], **limits, reserve_us=SECOND_US)
    behind = await pacer.take(1, "7", crowd, **limits)
    assert campaign.wait_us > 0
    assert single.each == (0,)
    assert single.wait_us <= SECOND_US // 6, "no longer than the distance of two sends"
    assert behind.each[0] == -1
    assert behind.wait_us > single.wait_us, "the campaign waits until the single message has gone"
    far = [(await pacer.take(1, "7", [f"{TO}{n}"], **limits, reserve_us=SECOND_US)).each[0] for n in range(20)]
    assert far.count(0) < 15, "no more is reserved than asked for"
    assert far[-1] == -1


async def test_jobs_of_single_messages_start_before_campaigns(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    """A campaign's backlog waits in the queue; the message that comes last is sent first."""
    async with graph(Config()) as fake, room(database, redis, engines.postgres_url, fake.url, Book(people(30))) as at:
        connection = await at.connect(tenant, pace=10)
        queue = at.jobs.queues.queue("message_dispatch")
        campaign = await at.started(tenant, connection)
        await at.service.keeper.poll()
        await at.service.launcher.write(tenant, campaign.campaign_id)
        made = await at.service.singles.send(tenant, hello(), asked("first"))
        relay = RelayChore(at.jobs.relay, redis)
        await relay.start()
        try:

            async def queued() -> bool:
                names = [job.name for state in ("waiting", "prioritized") for job in await queue.list(state, 0, 10)]
                return {"turn", "send_waiting"} <= set(names)

            await eventually(queued)
        finally:
            await relay.stop()
        assert {job.name for job in await queue.list("waiting", 0, 10)} == {"send_waiting"}, "no turn is among these"
        async with at.running(concurrency=1):
            await sent_once(at, tenant, made.message_id)

            async def some() -> bool:
                return len(await fake.log()) >= 3

            await eventually(some)
        assert (await fake.log())[0]["to"] == TO.lstrip("+")


def a_job(tenant: int | None, data: Any, job_id: str = "order.5", timestamp: int = 5) -> Job:
    opts = {} if tenant is None else {"tenant": tenant}
    return Job(
        id=job_id, wire_id=job_id, queue="message_dispatch", name="send", data=data, opts=opts, timestamp=timestamp
    )


async def test_a_job_of_another_program_sends_one_message(
    database: Database, redis: Redis, engines: Engines, make_tenant: MakeTenant
) -> None:
    async with graph(Config()) as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        tenant, other = await make_tenant(), await make_tenant()
        connection = await at.connect(tenant)
        template = {"name": "hello_world", "language": "en_US"}
        data = {"to": TO, "template": template}
        done = await at.tasks.send(a_job(tenant, data), None)
        assert done["state"] == "accepted"
        assert await at.tasks.send(a_job(tenant, data), None) == done
        kept = await at.service.singles.read(tenant, UUID(done["message_id"]))
        assert (kept.idempotency_key, kept.source) == ("job:order.5", "job")
        counted = [await at.tasks.send(a_job(tenant, data, "7", at_ms), None) for at_ms in (1, 2)]
        assert counted[0]["message_id"] != counted[1]["message_id"], "a queue that was emptied counts again"
        named = await at.tasks.send(a_job(tenant, {**data, "idempotency_key": "mine"}, "8"), None)
        assert (await at.service.singles.read(tenant, UUID(named["message_id"]))).idempotency_key == "mine"
        refused = await at.tasks.send(a_job(tenant, {**data, "purpose": "marketing"}, "m"), None)
        assert (refused["state"], refused["reason"]) == ("skipped", "consent_missing")
        assert await at.tasks.send(a_job(tenant, {**data, "purpose": "marketing"}, "m"), None) == refused
        bad: list[tuple[int | None, Any, str]] = [
            (None, data, "names its tenant"),
            (tenant, {**data, "when": "now"}, "when"),
            (tenant, [1], "payload cannot be read"),
            (tenant, {"to": TO, "template": {**template, "name": "gone"}}, "TEMPLATE_UNKNOWN"),
            (tenant, {**data, "to": None}, "exactly one of to and contact_id"),
            (tenant, {**data, "idempotency_key": "mine", "to": "+491700000002"}, "IDEMPOTENCY_KEY_REUSED"),
            (other, data, "SENDER_UNKNOWN"),
            (other, {**data, "connection_id": str(connection)}, "SENDER_UNKNOWN"),
        ]
        for number, (whose, payload, words) in enumerate(bad):
            with pytest.raises(Unrecoverable, match=words):
                await at.tasks.send(a_job(whose, payload, f"bad.{number}"), None)
        with pytest.raises(NotFound):
            await at.service.singles.read(other, kept.message_id)
        assert (await at.service.singles.list(other, None, 10)).items == []
        assert len(await fake.log()) == 4


async def test_too_many_waiting_messages_are_refused(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    async with graph(Config()) as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        await at.connect(tenant)
        outcomes = SingleOutcomes(at.service.hooks)
        singles = SingleMessages(
            database, at.audit, at.book, at.service.single_dispatcher, outcomes, at.clock, Ids(at.clock), waiting=2
        )
        for number in range(2):
            await singles.send(tenant, hello(f"+49170000010{number}"), asked(str(number)))
        with pytest.raises(Throttled) as error:
            await singles.send(tenant, hello(), asked("3"))
        assert (error.value.code, error.value.retry_after) == ("MESSAGES_WAITING", 10.0)
        await at.service.single_dispatcher.send_waiting(tenant, NUMBER)
        assert (await singles.send(tenant, hello(), asked("3"))).state == "pending"


async def test_a_refusal_for_a_while_is_tried_again_and_one_of_the_content_is_final(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    async with graph(Config()) as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        await at.connect(tenant)
        await fake.control(faults={"graph_5xx": 1.0})
        later = await at.service.singles.send(tenant, hello(), asked("later"))
        await at.service.single_dispatcher.send_waiting(tenant, NUMBER)
        waiting = await at.service.singles.read(tenant, later.message_id)
        assert (waiting.state, waiting.attempts, waiting.outcome) == ("pending", 1, None)
        await fake.control(faults={})
        await change(engines, "update messaging.messages set due_at = now() where message_id = $1", later.message_id)
        retry = Job(
            id="r",
            wire_id="r",
            queue="message_retry",
            name="retry",
            data={"number_id": NUMBER},
            opts={"tenant": tenant},
        )
        await at.tasks.retry(retry, None)
        found = await at.service.singles.read(tenant, later.message_id)
        assert (found.outcome, found.attempts) == ("sent", 2)
        await fake.control(faults={"codes": {"132001": 1.0}})
        wrong = await at.service.singles.send(tenant, hello("+491700000003"), asked("wrong"))
        await at.service.single_dispatcher.send_waiting(tenant, NUMBER)
        ended = await at.service.singles.read(tenant, wrong.message_id)
        assert (ended.outcome, ended.error_code) == ("failed", 132001)


async def test_a_lost_job_is_made_up_for_and_a_stopped_tenants_message_expires(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    async with graph(Config()) as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        await at.connect(tenant)
        made = await at.service.singles.send(tenant, hello(), asked("lost job"))
        await change(engines, "delete from jobs.outbox_events where tenant_id = $1", tenant)
        await change(engines, EARLIER, tenant)
        async with at.running():
            assert (await sent_once(at, tenant, made.message_id)).outcome == "sent"
        await at.service.connections.turn_switch(tenant, stopped=True, actor="test")
        stopped = await at.service.singles.send(tenant, hello("+491700000004"), asked("stopped"))
        await at.service.single_dispatcher.send_waiting(tenant, NUMBER)
        assert (await at.service.singles.read(tenant, stopped.message_id)).state == "pending"
        await change(engines, EXPIRED, stopped.message_id)
        await at.service.keeper.sweep()
        found = await at.service.singles.read(tenant, stopped.message_id)
        assert (found.outcome, found.reason) == ("skipped", "expired")
        assert len(await fake.log()) == 1


async def test_an_erasure_empties_the_message_and_keeps_its_key(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    async with graph(Config()) as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        connection = await at.connect(tenant)
        await write_to_us(at, fake, connection, TO)
        text = NewMessage(to=TO, text="Your code is 1234.")
        made = await at.service.singles.send(tenant, text, asked("code"))
        waiting = await at.service.singles.send(tenant, NewMessage(to=TO, text="And more."), asked("more"))
        await change(
            engines,
            LATER,
            waiting.message_id,
        )
        await at.service.single_dispatcher.send_waiting(tenant, NUMBER)
        export = await at.service.erasure.export(tenant, TO, 10)
        assert [row["fields"] for row in export["messaging.single_messages"]] == [
            {"text": "Your code is 1234."}, {"text": "And more."},
        ]  # fmt: skip
        counts = await at.service.erasure.erase(tenant, TO)
        assert counts["messaging.single_messages"] == 2
        found = await at.service.singles.read(tenant, made.message_id)
        assert (found.text, found.outcome, found.wamid) == (None, "sent", "erased")
        assert found.address.startswith("erased:")
        open_one = await at.service.singles.read(tenant, waiting.message_id)
        assert (open_one.outcome, open_one.reason) == ("skipped", "erased")
        with pytest.raises(Conflict):  # no copy of the request is sent to somebody who was erased
            await at.service.singles.send(tenant, text, asked("code"))
        assert (await at.service.singles.verify(tenant)).holds


async def test_an_answer_goes_from_the_number_that_the_person_wrote_to(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    numbers = many_numbers(3)
    async with graph(Config(numbers=numbers)) as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        connection = await at.connect(tenant, [one.id for one in numbers])
        last = numbers[2].id
        await fake.control(inbound=[{"number": last, "sender": TO.lstrip("+"), "text": "Hello"}])
        at_s = int(at.clock.now().timestamp())
        value = {"messaging_product": "whatsapp", "metadata": {"phone_number_id": last}}
        await told(at, connection, hook("messages", {**value, "messages": [wrote("in.9", TO, "Where is it?", at_s)]}))
        await worked_off(at)
        made = await at.service.singles.reply(tenant, NewReply(wamid="in.9", text="At the door."), asked("answer"))
        assert (made.number_id, made.reply_to, made.connection_id) == (last, "in.9", connection)
        await at.service.single_dispatcher.send_waiting(tenant, last)
        (line,) = await fake.log()
        assert (line["number"], line["to"]) == (last, TO.lstrip("+"))
        with pytest.raises(HandbillError) as error:
            await at.service.singles.reply(tenant, NewReply(wamid="in.10", text="?"), asked("other"))
        assert (error.value.status, error.value.code) == (422, "INBOUND_UNKNOWN")


async def test_one_tenants_single_messages_do_not_hold_up_anothers(
    database: Database, redis: Redis, engines: Engines, make_tenant: MakeTenant
) -> None:
    """Thirty of one tenant wait for its pace; they take one slot, and the other tenant's message goes at once."""
    numbers = many_numbers(2)
    async with graph(Config(numbers=numbers)) as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        busy, other = await make_tenant(), await make_tenant()
        await at.connect(busy, [numbers[0].id], pace=1)
        await at.connect(other, [numbers[1].id], pace=10)
        for number in range(30):
            await at.service.singles.send(busy, hello(f"+491711{number:06d}"), asked(f"key-{number}"))
        made = await at.service.singles.send(other, hello(), asked("other"))
        async with at.running(concurrency=2):
            assert (await sent_once(at, other, made.message_id)).outcome == "sent"
        proof = await at.service.singles.verify(busy)
        assert proof.open > 0, "the busy tenant was still at it"
