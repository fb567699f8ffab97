"""Webhooks at the door and behind it: who is let in, what follows from what they say, and what a death leaves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import pytest

from handbill.fake_graph.model import Config
from handbill.infra.postgres import Database, Tx
from handbill.infra.redis import Redis
from handbill.kit.batcher import BatchLimits
from handbill.kit.errors import Busy, Forbidden, NotFound, TooLarge
from handbill.messaging import incoming
from handbill.messaging.hearing import Hearing, Kept
from handbill.messaging.hooks import NewHook
from handbill.messaging.incoming import LARGEST, TRIES, InboxFilter
from handbill.messaging.links import ConnectionPatch
from handbill.messaging.webhooks import sign
from tests.conftest import MakeTenant
from tests.kit import desk
from tests.kit.clocks import FakeClock
from tests.kit.crashes import Died, enumerate_points
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, graph, many_numbers
from tests.kit.reach import SECRET, Book, room
from tests.kit.waiting import eventually, soon

NOW_S = 1_772_366_400
ALL = InboxFilter()


async def suppressed(db: Any, tenant: int) -> dict[str, tuple[str, datetime | None]]:
    rows = await db.fetch("select address, reason, until from contacts.suppressions where tenant_id = $1", tenant)
    return {row["address"]: (row["reason"], row["until"]) for row in rows}


async def kept(db: Any, tenant: int) -> int:
    return int(await db.fetchval("select count(*) from messaging.webhook_inbox where tenant_id = $1", tenant))


async def test_only_the_provider_is_let_in(engines: Engines, database: Database, redis: Redis, tenant: int) -> None:
    clock = FakeClock()
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url, clock=clock) as at:
        inbox, connections = at.service.incoming, at.service.connections
        connection = await at.connect(tenant)
        body = desk.messages(messages=[desk.wrote("w1", "491701", "Hello", NOW_S)])
        for wrong in (None, "", "sha256=", sign("other", body), sign(SECRET, body + b" "), sign(SECRET, body)[:-1]):
            with pytest.raises(Forbidden) as caught:
                await inbox.keep(connection, body, wrong)
            assert caught.value.code == "WEBHOOK_SIGNATURE"
        with pytest.raises(NotFound):
            await inbox.keep(uuid4(), body, sign(SECRET, body))
        with pytest.raises(TooLarge):
            await inbox.keep(connection, b" " * (LARGEST + 1), sign(SECRET, body))
        async with desk.owner(engines.postgres_url) as db:
            assert await kept(db, tenant) == 0
            assert await desk.told(at, connection, body, body) == [True, False]
            assert await kept(db, tenant) == 1

        query = {"hub.mode": "subscribe", "hub.challenge": "1158201444"}
        token = (await connections.read(tenant, connection)).verify_token
        assert await inbox.handshake(connection, {**query, "hub.verify_token": token}) == "1158201444"
        with pytest.raises(Forbidden):
            await inbox.handshake(connection, {**query, "hub.verify_token": "other"})

        # A new app secret: the one before is good for another day, and no longer.
        await connections.change(tenant, connection, ConnectionPatch(app_secret="second"), actor="test")
        assert not await inbox.keep(connection, body, sign("second", body))
        assert not await inbox.keep(connection, body, sign(SECRET, body))
        clock.advance(hours=24)
        with pytest.raises(Forbidden):
            await inbox.keep(connection, body, sign(SECRET, body))
        assert not await inbox.keep(connection, body, sign("second", body))


async def test_the_latest_wish_stands_in_every_order(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    def pressed(address: str, value: str, at_s: int) -> bytes:
        said = {"wa_id": address.lstrip("+"), "value": value, "category": "marketing_messages", "timestamp": str(at_s)}
        return desk.messages(user_preferences=[said])

    def written(address: str, text: str, at_s: int) -> bytes:
        return desk.messages(messages=[desk.wrote(f"{address}:{text}:{at_s}", address, text, at_s)])

    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        connection = await at.connect(tenant)
        stays, comes_back, twice = [], [], []
        for place, (order, apart) in enumerate(itertools.product(itertools.permutations(range(3)), (True, False))):
            one, two, three = (f"+49170{kind}{place:02d}" for kind in (1, 2, 3))
            stays.append(one)
            comes_back.append(two)
            twice.append(three)
            said = [
                (written(one, "START", NOW_S), written(two, "STOP", NOW_S), written(three, "¡Baja!", NOW_S)),
                (pressed(one, "resume", NOW_S + 1), pressed(two, "stop", NOW_S + 1), pressed(three, "stop", NOW_S)),
                (written(one, "stop.", NOW_S + 1), written(two, "Start", NOW_S + 2), written(three, "start", NOW_S)),
            ]
            for part in order:
                await desk.told(at, connection, *said[part])
                if apart:
                    await desk.worked_off(at)
        await desk.worked_off(at)
        async with desk.owner(engines.postgres_url) as db:
            found = await suppressed(db, tenant)
        assert found == dict.fromkeys([*stays, *twice], ("opt_out", None)), "of two at once the no stands"
        assert not set(comes_back) & set(found)
        page = await at.service.incoming.inbox(tenant, None, 200, InboxFilter(wishes=True))
        assert len(page.items) == 12 * 6


async def test_failures_speak_for_others_too(engines: Engines, database: Database, redis: Redis, tenant: int) -> None:
    clock = FakeClock()
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url, clock=clock) as at:
        connection = await at.connect(tenant)
        async with desk.owner(engines.postgres_url) as db:
            addresses = [f"+49170{place}" for place in range(5)]
            rounds = [await desk.sent(db, tenant, await desk.draft(at, tenant, connection), addresses) for _ in "abc"]
            first, second, third = rounds

            async def told(*statuses: dict[str, Any]) -> None:
                await desk.told(at, connection, desk.messages(statuses=list(statuses)))
                await desk.worked_off(at)

            def gone(message: UUID, at_s: int = NOW_S) -> dict[str, Any]:
                return desk.status(message, "failed", at_s, code=131026, details="not on WhatsApp")

            await told(gone(first[0]), gone(first[1]))
            await told(gone(first[0], NOW_S + 1), gone(first[0]))
            assert await suppressed(db, tenant) == {}, "once may be chance, and copies are once"
            await told(desk.status(second[1], "delivered", NOW_S))
            await told(gone(second[0]))
            await told(gone(third[1]))
            await told(desk.status(second[2], "failed", NOW_S, code=131050))
            until = datetime(2026, 3, 31, 12, tzinfo=UTC)
            assert await suppressed(db, tenant) == {"+491700": ("bounce", until), "+491702": ("opt_out", None)}

            assert not (await at.service.connections.switch(tenant)).stopped
            await told(desk.status(second[3], "failed", NOW_S, code=131042))
            assert (await at.service.connections.switch(tenant)).reason == "provider_131042"


async def test_templates_and_alerts(engines: Engines, database: Database, redis: Redis, tenant: int) -> None:
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        connection = await at.connect(tenant)
        at.book.default = []
        campaign = (await at.started(tenant, connection)).campaign_id
        at_s = int(datetime.now(UTC).timestamp()) + 100

        async def state() -> str:
            return (await at.service.connections.templates(tenant, connection, None, 10)).items[0].state

        assert await state() == "APPROVED"
        await desk.told(at, connection, desk.template("hello_world", "PAUSED", at_s + 1, "low quality"))
        await desk.told(at, connection, desk.template("hello_world", "APPROVED", at_s))
        await desk.told(at, connection, desk.template("hello_world", "FLAGGED", at_s + 5))
        await desk.worked_off(at)
        assert await state() == "PAUSED", "an older word and one that says nothing of the state change nothing"
        assert await at.state(tenant, campaign) == "paused"
        assert (await at.service.campaigns.read(tenant, campaign)).reason == "template_paused"
        await at.service.connections.refresh(tenant, connection, actor="test")
        assert await state() == "PAUSED", "a webhook of the last minute knows more than a list"

        quality = {"event": "FLAGGED", "current_limit": "TIER_250", "display_phone_number": "1555"}
        await desk.told(at, connection, desk.hook("phone_number_quality_update", quality, time=at_s))
        await desk.told(at, connection, b"\xff\xfe not JSON", desk.hook("new_field", {"x": "\0"}, time=at_s))
        await desk.worked_off(at)
        page = await at.service.incoming.alerts(tenant, None, 3)
        rest = await at.service.incoming.alerts(tenant, page.next, 3)
        fields = [alert.field for alert in (*page.items, *rest.items)]
        assert sorted(fields) == sorted(
            ["message_template_status_update"] * 3 + ["phone_number_quality_update", "odd:", "odd:new_field"]
        )
        async with desk.owner(engines.postgres_url) as db:
            jobs = await db.fetchval(
                "select count(*) from jobs.outbox_events where tenant_id = $1 and name = 'refresh'", tenant
            )
        assert jobs == 1


class Sulking(Book):
    """Cannot deal with one address."""

    def __init__(self) -> None:
        super().__init__()
        self.sulks = True

    async def opt_out(self, tx: Tx, tenant_id: int, channel: str, address: str, *, source: str, proof: str) -> None:
        if self.sulks and address == "+4917066":
            raise ValueError("not this one")
        await super().opt_out(tx, tenant_id, channel, address, source=source, proof=proof)


async def test_poison_is_alone_and_has_a_way_back(
    engines: Engines, database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    tenant, neighbour = await make_tenant(), await make_tenant()
    book = Sulking()
    one, two = many_numbers(2)
    async with (
        graph(Config(numbers=(one, two))) as fake,
        room(database, redis, engines.postgres_url, fake.url, book) as at,
    ):
        connection, other = await at.connect(tenant, [one.id]), await at.connect(neighbour, [two.id])

        def stop(address: str) -> bytes:
            return desk.messages(messages=[desk.wrote(f"w{address}", address, "STOP", NOW_S)])

        await desk.told(at, connection, stop("4917065"), stop("4917066"), stop("4917067"))
        await desk.told(at, other, stop("4917065"))
        for _ in range(TRIES):
            await at.service.incoming.work()
        async with desk.owner(engines.postgres_url) as db:
            assert set(await suppressed(db, tenant)) == {"+4917065", "+4917067"}
            assert set(await suppressed(db, neighbour)) == {"+4917065"}
            (parked,) = (await at.service.incoming.parked(tenant, None, 10)).items
            assert (parked.tries, parked.connection_id) == (TRIES, connection)
            assert "not this one" in (parked.error or "")
            assert (await at.service.incoming.parked(neighbour, None, 10)).items == []
            assert len((await at.service.incoming.inbox(tenant, None, 10, ALL)).items) == 2, "all of it or nothing"

            book.sulks = False
            assert (await at.service.incoming.replay(neighbour, actor="test")).replayed == 0
            assert (await at.service.incoming.replay(tenant, actor="test")).replayed == 1
            await desk.worked_off(at)
            assert set(await suppressed(db, tenant)) == {"+4917065", "+4917066", "+4917067"}
        assert (await at.service.incoming.parked(tenant, None, 10)).items == []


async def test_a_death_at_any_point_loses_and_repeats_nothing(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    """The provider repeats what was not answered; what was answered needs nobody to repeat it."""
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        connection = await at.connect(tenant)
        await at.service.hook_desk.create(tenant, NewHook("http://127.0.0.1:9/x", ["contact.opted_out"]), actor="test")
        async with desk.owner(engines.postgres_url) as db:
            campaign = await desk.draft(at, tenant, connection)
            place = 0
            message, body, answered = UUID(int=0), b"", False

            async def attempt() -> None:
                nonlocal answered
                try:
                    await desk.told(at, connection, body)
                except asyncio.CancelledError:  # the commit that was shared died, in a task of its own
                    raise Died from None
                answered = True
                await at.service.incoming.work()

            async def prepare() -> None:
                nonlocal message, body, answered, place
                place += 1
                address = f"+491718{place:04d}"
                (message,) = await desk.sent(db, tenant, campaign, [address])
                parts = [desk.status(message, word, NOW_S) for word in ("sent", "delivered")]
                stop = desk.wrote(f"stop {place}", address, "STOP", NOW_S)
                body, answered = desk.messages(statuses=parts, messages=[stop]), False

            async def check(number: int, name: str) -> None:
                if not answered:
                    await desk.told(at, connection, body)
                await desk.worked_off(at)
                state = await db.fetchval("select state from messaging.messages where message_id = $1", message)
                assert state == "delivered", name
                assert len(await suppressed(db, tenant)) == place, name
                told = await db.fetchval("select count(*) from messaging.hook_deliveries where tenant_id = $1", tenant)
                assert told == place, name
                assert await kept(db, tenant) == place, name
                await prepare()

            await prepare()
            points = await enumerate_points(attempt, check, only=":pg:", what="one webhook")
            assert points > 20


async def test_the_inbox_is_read_in_pages_and_by_its_owner(
    engines: Engines, database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    tenant, other = await make_tenant(), await make_tenant()
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        connection = await at.connect(tenant)
        said = [desk.wrote(f"w{place}", f"49170{place % 3}", "Hi", NOW_S + place // 4) for place in range(23)]
        await desk.told(at, connection, desk.messages(messages=said))
        await desk.worked_off(at)
        seen, cursor = [], None
        while True:
            page = await at.service.incoming.inbox(tenant, cursor, 5, ALL)
            seen += page.items
            cursor = page.next
            if cursor is None:
                break
        assert len({one.wamid for one in seen}) == 23
        assert [one.at for one in seen] == sorted((one.at for one in seen), reverse=True)
        assert len((await at.service.incoming.inbox(tenant, None, 50, InboxFilter(address="+491701"))).items) == 8
        late = InboxFilter(since=datetime.fromtimestamp(NOW_S + 5, UTC))
        assert len((await at.service.incoming.inbox(tenant, None, 50, late)).items) == 3
        assert (await at.service.incoming.inbox(other, None, 50, ALL)).items == []


async def test_a_batch_of_webhooks_ends_at_its_limit_in_bytes(
    engines: Engines, database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        await desk.worked_off(at)
        connection = await at.connect(tenant)
        bodies = [desk.messages(messages=[desk.wrote(f"w{n}", "491701", "Hello", NOW_S)]) for n in range(5)]
        await desk.told(at, connection, *bodies)
        monkeypatch.setattr(incoming, "MAX_BATCH_BYTES", 2 * len(bodies[0]))
        assert [await at.service.incoming.work() for _ in range(4)] == [2, 2, 1, 0]


async def test_an_error_that_cannot_be_stored_keeps_no_neighbour_from_being_worked_on(
    engines: Engines, database: Database, redis: Redis, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hear = Hearing.hear

    async def fail_on_one(self: Hearing, tx: Tx, rows: Sequence[Kept]) -> None:
        if any(b"w1" in row.body for row in rows):
            raise ValueError("a lone surrogate \ud800 and a NUL \0")
        await hear(self, tx, rows)

    monkeypatch.setattr(Hearing, "hear", fail_on_one)
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        await desk.worked_off(at)
        connection = await at.connect(tenant)
        bodies = [desk.messages(messages=[desk.wrote(f"w{n}", "491701", "Hello", NOW_S)]) for n in range(3)]
        await desk.told(at, connection, *bodies)
        for _ in range(TRIES):
            await at.service.incoming.work()
        assert len((await at.service.incoming.inbox(tenant, None, 10, ALL)).items) == 2
        (parked,) = (await at.service.incoming.parked(tenant, None, 10)).items
        assert "surrogate ?" in (parked.error or "")


async def test_webhooks_that_wait_for_a_slow_database_are_limited_for_each_tenant(
    engines: Engines, database: Database, redis: Redis, make_tenant: MakeTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, go_on = incoming.Incoming._write, asyncio.Event()

    async def write_slowly(self: Any, tenant_id: int, asked: Any) -> list[bool]:
        await go_on.wait()
        return await write(self, tenant_id, asked)

    monkeypatch.setattr(incoming.Incoming, "_write", write_slowly)
    monkeypatch.setattr(incoming, "WAITING", BatchLimits(waiting_items=3))
    config = Config(numbers=many_numbers(2))
    async with graph(config) as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        await desk.worked_off(at)
        busy, other = await make_tenant(), await make_tenant()
        first = await at.connect(busy)
        second = await at.connect(other, [str(int(NUMBER) + 1)])
        bodies = [desk.messages(messages=[desk.wrote(f"w{n}", "491701", "Hello", NOW_S)]) for n in range(5)]
        told = [asyncio.create_task(desk.told(at, first, body)) for body in bodies[:3]]
        batchers = at.service.incoming._batchers
        await eventually(lambda: busy in batchers and batchers[busy]._items == 3)
        with pytest.raises(Busy):
            await soon(desk.told(at, first, bodies[3]))
        neighbour = asyncio.create_task(desk.told(at, second, bodies[4]))
        await eventually(lambda: other in batchers and batchers[other]._items == 1)
        go_on.set()
        assert await soon(asyncio.gather(*told, neighbour)) == [[True]] * 4
        assert await desk.told(at, first, bodies[3]) == [True]
