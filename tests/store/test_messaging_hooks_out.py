"""Webhooks of our own: each event to each hook under one id, whatever the other side does; signed, logged, given up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.safe_http import SafeHttpClient
from handbill.jobs.model import Job
from handbill.kit.errors import Conflict, Invalid, NotFound
from handbill.messaging.hooks import MOST, HookPatch, NewHook, Undelivered
from handbill.messaging.hooks_out import EVENTS, PATIENCE
from tests.conftest import MakeTenant
from tests.kit import desk
from tests.kit.clocks import FakeClock
from tests.kit.crashes import enumerate_points
from tests.kit.engines import Engines
from tests.kit.graph import graph
from tests.kit.reach import Room, room
from tests.kit.receiver import Receiver
from tests.kit.waiting import eventually

PAGE = Path(__file__).parents[2] / "docs" / "webhooks.md"
ATTEMPTS = PATIENCE.attempts or 0


def from_the_docs() -> Any:
    """The function that the page tells receivers to use, exactly as it stands there."""
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    names: dict[str, Any] = {}
    exec(code, names)
    return names["is_ours"]


class Try:
    def __init__(self, attempt: int) -> None:
        self.attempt = attempt


def job(tenant: int, delivery: UUID) -> Job:
    opts = {"attempts": ATTEMPTS, "tenant": tenant}
    return Job(id="j", wire_id="j", queue="webhooks", name="deliver", data={"delivery_id": str(delivery)}, opts=opts)


async def delivered(at: Room, tenant: int, delivery: UUID) -> tuple[str, int]:
    """What the queue would do, without its pauses: how it ended, and after how many tries."""
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await at.service.hook_desk.deliver(job(tenant, delivery), Try(attempt)), attempt
        except Undelivered:
            continue
    raise AssertionError("a last try neither delivered nor failed")


async def announce(at: Room, tenant: int, event: str, **body: Any) -> list[UUID]:
    async with at.database.tenant(tenant) as tx:
        return await at.service.hooks.announce(tx, tenant, event, body)


def test_the_page_lists_every_event() -> None:
    rows = re.findall(r"^\| `([a-z_.]+)` \| (.*?) \|$", PAGE.read_text(encoding="utf-8"), re.M)
    assert dict(rows) == EVENTS


async def test_every_event_once_by_its_id(
    engines: Engines, database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    tenant, other = await make_tenant(), await make_tenant()
    clock, is_ours = FakeClock(), from_the_docs()
    good, bad = Receiver(), Receiver(seed=5, trouble=0.5)
    async with (
        graph() as fake,
        good.running(),
        bad.running(),
        room(database, redis, engines.postgres_url, fake.url, clock=clock) as at,
    ):
        hooks = at.service.hook_desk
        some = await hooks.create(tenant, NewHook(good.url, ["campaign.paused"]), actor="test")
        every = await hooks.create(tenant, NewHook(bad.url), actor="test")
        await hooks.create(other, NewHook(good.url), actor="test")
        made = [await announce(at, tenant, "campaign.paused", place=place) for place in range(40)]
        made += [await announce(at, tenant, "import.done", place=place) for place in range(40)]
        assert [len(one) for one in made] == [2] * 40 + [1] * 40
        tries = {delivery: await delivered(at, tenant, delivery) for one in made for delivery in one}
        assert {how for how, _ in tries.values()} == {"delivered"}
        assert max(count for _, count in tries.values()) > 3, "the seed makes trouble"
        for delivery in list(tries)[:5]:
            assert await hooks.deliver(job(tenant, delivery), Try(1)) == "over"

        assert len(good.seen) == 40
        assert {event for _, event, _, _ in good.seen} == {"campaign.paused"}
        assert {str(delivery) for delivery in tries} == set(good.taken) | set(bad.taken)
        assert len({(delivery, body) for delivery, _, _, body in bad.seen}) == 80, "one body for every try"
        assert sum(bad.taken.values()) > 80, "an answer that is lost means taken twice, under one id"
        now = clock.now_ms() / 1000
        for receiver, secret in ((good, some.secret), (bad, every.secret)):
            assert all(is_ours(secret, signed, body, now) for _, _, signed, body in receiver.seen)
            assert not any(is_ours(secret, signed, body + b" ", now) for _, _, signed, body in receiver.seen)
            assert not any(is_ours(secret, signed, body, now + 301) for _, _, signed, body in receiver.seen)
        assert not any(is_ours(every.secret, signed, body, now) for _, _, signed, body in good.seen)

        log: list[Any] = []
        cursor = None
        while True:
            page = await hooks.deliveries(tenant, every.hook.hook_id, cursor, 33, None)
            log += page.items
            cursor = page.next
            if cursor is None:
                break
        assert {(one.delivery_id, one.attempts, one.state) for one in log} == {
            (one[-1], tries[one[-1]][1], "delivered") for one in made
        }
        assert (await hooks.deliveries(other, every.hook.hook_id, None, 50, None)).items == []


async def test_a_death_while_delivering_keeps_the_id(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    """The queue gives the job to somebody else: it goes out again under its id, or is over."""
    receiver = Receiver()
    async with graph() as fake, receiver.running(), room(database, redis, engines.postgres_url, fake.url) as at:
        await at.service.hook_desk.create(tenant, NewHook(receiver.url), actor="test")
        delivery = (await announce(at, tenant, "import.done"))[0]

        async def attempt() -> None:
            await at.service.hook_desk.deliver(job(tenant, delivery), Try(1))

        async def check(number: int, name: str) -> None:
            nonlocal delivery
            assert await at.service.hook_desk.deliver(job(tenant, delivery), Try(1)) in ("delivered", "over"), name
            assert receiver.taken[str(delivery)] in (1, 2), name
            assert len({body for taken, _, _, body in receiver.seen if taken == str(delivery)}) == 1, name
            delivery = (await announce(at, tenant, "import.done"))[0]

        assert await enumerate_points(attempt, check, what="one delivery") > 8
        assert 2 in receiver.taken.values(), "died after it was sent and before it was written down"


async def test_what_is_undone_was_never_announced(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        made = await at.service.hook_desk.create(tenant, NewHook("http://127.0.0.1:9/x"), actor="test")
        with pytest.raises(ZeroDivisionError):
            async with database.tenant(tenant) as tx:
                await at.service.hooks.announce(tx, tenant, "import.done", {})
                raise ZeroDivisionError
        assert (await at.service.hook_desk.deliveries(tenant, made.hook.hook_id, None, 50, None)).items == []


async def test_through_the_queue(engines: Engines, database: Database, redis: Redis, tenant: int) -> None:
    receiver = Receiver()
    async with (
        graph() as fake,
        receiver.running(),
        room(database, redis, engines.postgres_url, fake.url) as at,
        at.running(),
    ):
        made = await at.service.hook_desk.create(tenant, NewHook(receiver.url, ["import.done"]), actor="test")
        sent = await announce(at, tenant, "import.done", rows=5)
        sent.append((await at.service.hook_desk.test(tenant, made.hook.hook_id, actor="test")).delivery_id)
        await eventually(lambda: set(receiver.taken) == {str(one) for one in sent})

        async def logged() -> bool:
            page = await at.service.hook_desk.deliveries(tenant, made.hook.hook_id, None, 50, "delivered")
            return len(page.items) == 2

        await eventually(logged)


async def test_one_that_fails_for_days_is_switched_off(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    clock, dead, watching = FakeClock(), Receiver(), Receiver()
    async with (
        graph() as fake,
        dead.running(),
        watching.running(),
        room(database, redis, engines.postgres_url, fake.url, clock=clock) as at,
    ):
        hooks = at.service.hook_desk
        made = (await hooks.create(tenant, NewHook(dead.url, ["import.done"]), actor="test")).hook
        await hooks.create(tenant, NewHook(watching.url, ["hook.disabled"]), actor="test")

        async def one() -> tuple[UUID, str]:
            (delivery,) = await announce(at, tenant, "import.done")
            return delivery, (await delivered(at, tenant, delivery))[0]

        dead.status = 503
        first, how = await one()
        assert how == "failed"
        clock.advance(hours=71)
        dead.status = 200
        assert (await one())[1] == "delivered"
        assert (await hooks.read(tenant, made.hook_id)).failing_since is None
        dead.status = 503
        await one()
        clock.advance(hours=71)
        await one()
        assert (await hooks.read(tenant, made.hook_id)).active
        (waits,) = await announce(at, tenant, "import.done")
        clock.advance(hours=1)
        (last,) = await announce(at, tenant, "import.done")
        with pytest.raises(Undelivered):
            await hooks.deliver(job(tenant, last), Try(1))
        found = await hooks.read(tenant, made.hook_id)
        assert (found.active, found.off_reason) == (False, "failing")
        assert await announce(at, tenant, "import.done") == []
        states = {
            row.delivery_id: row.state for row in (await hooks.deliveries(tenant, made.hook_id, None, 50, None)).items
        }
        assert (states[waits], states[last]) == ("failed", "failed")
        assert await hooks.deliver(job(tenant, waits), Try(1)) == "over"
        async with desk.owner(engines.postgres_url) as db:
            told = await db.fetchval(
                "select count(*) from messaging.hook_deliveries where tenant_id = $1 and event = 'hook.disabled'",
                tenant,
            )
        assert told == 1

        with pytest.raises(Conflict):
            await hooks.redeliver(tenant, made.hook_id, first, actor="test")
        dead.status = 200
        back = await hooks.change(tenant, made.hook_id, HookPatch(active=True), actor="test")
        assert (back.active, back.failing_since) == (True, None)
        again = await hooks.redeliver(tenant, made.hook_id, first, actor="test")
        assert (again.state, again.delivery_id) == ("waiting", first)
        assert (await delivered(at, tenant, first))[0] == "delivered"
        dead.status = 410
        assert await delivered(at, tenant, (await announce(at, tenant, "import.done"))[0]) == ("failed", 1)


async def test_secrets_renewed_changed_and_kept_apart(
    engines: Engines, database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    tenant, other = await make_tenant(), await make_tenant()
    clock, receiver, is_ours = FakeClock(), Receiver(), from_the_docs()
    async with (
        graph() as fake,
        receiver.running(),
        room(database, redis, engines.postgres_url, fake.url, clock=clock) as at,
    ):
        hooks = at.service.hook_desk
        first = await hooks.create(tenant, NewHook(receiver.url), actor="test")
        hook_id = first.hook.hook_id
        second = await hooks.renew(tenant, hook_id, actor="test")
        fits = []
        for _ in range(2):
            await delivered(at, tenant, (await announce(at, tenant, "import.done"))[0])
            _, _, signed, body = receiver.seen[-1]
            now = clock.now_ms() / 1000
            fits.append([is_ours(secret, signed, body, now) for secret in (first.secret, second.secret)])
            clock.advance(days=1)
        assert fits == [[True, True], [False, True]]
        async with desk.owner(engines.postgres_url) as db:
            rows = await db.fetch("select sealed::text || url as row from messaging.hooks where tenant_id = $1", tenant)
            rows += await db.fetch("select a::text as row from tenants.audit_log a where tenant_id = $1", tenant)
            clear = first.secret.encode().hex()
        assert len(rows) == 3
        assert not any(first.secret in row["row"] or clear in row["row"] for row in rows)

        for verb in (hooks.read, hooks.remove, hooks.renew, hooks.test):
            options = {} if verb == hooks.read else {"actor": "test"}
            with pytest.raises(NotFound):
                await verb(other, hook_id, **options)
        assert (await hooks.listed(other, None, 50)).items == []
        (waiting,) = await announce(at, tenant, "import.done")
        await hooks.remove(tenant, hook_id, actor="test")
        assert await hooks.deliver(job(tenant, waiting), Try(1)) == "over"
        for _ in range(MOST):
            await hooks.create(tenant, NewHook(receiver.url), actor="test")
        with pytest.raises(Conflict):
            await hooks.create(tenant, NewHook(receiver.url), actor="test")


BAD_URLS = (
    "http://example.com/x", "https://127.0.0.1/x", "https://[::1]/x", "https://10.0.0.8/x", "https://a:b@example.com/",
    "https://example.com:22/x", "https://exämple.com/x", "ftp://example.com/", "https:///nowhere", "https://169.254.169.254/",
)  # fmt: skip


async def test_addresses_inside_are_refused(engines: Engines, database: Database, redis: Redis, tenant: int) -> None:
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        hooks = at.service.hook_desk
        await hooks._http.close()
        hooks._http = SafeHttpClient()
        for url in BAD_URLS:
            with pytest.raises(Invalid):
                await hooks.create(tenant, NewHook(url), actor="test")
        with pytest.raises(Invalid):
            await hooks.create(tenant, NewHook("https://example.com/", ["no.event"]), actor="test")
        made = await hooks.create(tenant, NewHook("https://localhost:8443/x"), actor="test")
        (delivery,) = await announce(at, tenant, "import.done")
        with pytest.raises(Undelivered, match="could not be reached"):
            await hooks.deliver(job(tenant, delivery), Try(1))
        assert (await hooks.read(tenant, made.hook.hook_id)).failing_since is not None
