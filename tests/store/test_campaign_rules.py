"""What a claim looks at, in the statement that claims: consent, suppression, caps, tier, money, quiet hours, pauses."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import time, timedelta
from decimal import Decimal
from typing import Any

import asyncpg
import pytest
from msgspec import structs

from handbill.fake_graph.model import PORTFOLIO, Config
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.clock import SystemClock
from handbill.kit.errors import Busy, Conflict
from handbill.messaging import store
from handbill.messaging.consequences import Pauses
from handbill.messaging.pacer import Pacer
from handbill.messaging.plan import BindingIn, NewCampaign, PersonCap, Quiet, UsedTemplate, UsedText
from handbill.messaging.ports import Recipient
from handbill.messaging.service import MessagingPolicy, TurnPolicy
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, Graph, graph, many_numbers
from tests.kit.reach import Book, Room, people, room
from tests.kit.waiting import soon


class Moved(SystemClock):
    """The system's clock, moved forward when told."""

    ahead = timedelta()

    def now(self) -> Any:
        return super().now() + self.ahead

    def now_ms(self) -> int:
        return super().now_ms() + int(self.ahead.total_seconds() * 1000)


class Bench:
    """A room and the fake server, turns run by hand: no queue, no clockwork, no waiting."""

    def __init__(self, at: Room, fake: Graph, tenant: int, connection: uuid.UUID, clock: Moved) -> None:
        self.at, self.fake, self.tenant, self.connection, self.clock = at, fake, tenant, connection, clock
        self.book = at.book
        self.service = at.service

    async def begun(self, **options: Any) -> uuid.UUID:
        campaign = await self.at.started(self.tenant, self.connection, **options)
        await self.service.keeper.poll()
        await self.service.launcher.write(self.tenant, campaign.campaign_id)
        return campaign.campaign_id

    async def turn(self, retries: bool = False) -> None:
        await self.service.dispatcher.turn(self.tenant, NUMBER, None, retries=retries)

    async def states(self, campaign_id: uuid.UUID) -> dict[str, int]:
        return await self.at.states(self.tenant, campaign_id)

    async def reasons(self, campaign_id: uuid.UUID) -> dict[str, dict[str, int]]:
        return (await self.service.campaigns.outcomes(self.tenant, campaign_id)).reasons

    async def state(self, campaign_id: uuid.UUID) -> tuple[str, str | None]:
        found = await self.service.campaigns.read(self.tenant, campaign_id)
        return found.state, found.reason


@pytest.fixture
async def bench(database: Database, redis: Redis, engines: Engines, tenant: int) -> AsyncIterator[Bench]:
    async with _bench(database, redis, engines, tenant, Config()) as made:
        yield made


@asynccontextmanager
async def _bench(
    database: Database, redis: Redis, engines: Engines, tenant: int, config: Config
) -> AsyncIterator[Bench]:
    clock = Moved()
    policy = MessagingPolicy(pauses=Pauses(throttled_s=30))
    async with (
        graph(config) as fake,
        room(database, redis, engines.postgres_url, fake.url, Book(people(10)), policy, clock) as at,
    ):
        yield Bench(at, fake, tenant, await at.connect(tenant), clock)


async def test_consent_and_suppression_are_asked_in_the_claim(bench: Bench, engines: Engines) -> None:
    granted, silent, denied, gone = (uuid.uuid4() for _ in range(4))
    connection = await asyncpg.connect(engines.postgres_url)
    try:
        for contact, yes, no in ((granted, ["whatsapp"], []), (silent, [], []), (denied, [], ["whatsapp"])):
            await connection.execute(
                "insert into contacts.contacts (tenant_id, contact_id, granted, denied, created_at, updated_at)"
                " values ($1, $2, $3, $4, now(), now())", bench.tenant, contact, yes, no,
            )  # fmt: skip
        for address, until in (("+491700000011", None), ("+491700000012", "-1 hour"), ("+491700000013", "1 hour")):
            await connection.execute(
                "insert into contacts.suppressions (tenant_id, channel, address, reason, until, created_at)"
                " values ($1, 'whatsapp', $2, 'opt_out', now() + $3::text::interval, now())",
                bench.tenant, address, until,
            )  # fmt: skip
    finally:
        await connection.close()
    bench.book.default = [
        Recipient(granted, "+491700000001"), Recipient(silent, "+491700000002"), Recipient(denied, "+491700000003"),
        Recipient(gone, "+491700000004"), Recipient(None, "+491700000011"), Recipient(None, "+491700000012"),
        Recipient(None, "+491700000013"),
    ]  # fmt: skip
    marketing = await bench.begun(purpose="marketing")
    await bench.turn()
    assert await bench.states(marketing) == {"accepted": 2, "skipped": 5}
    assert await bench.reasons(marketing) == {
        "skipped": {"consent_missing": 1, "consent_denied": 1, "contact_gone": 1, "suppressed_opt_out": 2}
    }
    utility = await bench.begun()
    await bench.turn()
    assert await bench.states(utility) == {"accepted": 3, "skipped": 4}


async def test_one_row_per_address_and_two_contacts_may_share_one(bench: Bench) -> None:
    bench.book.default = [*people(5), *people(3)]
    campaign = await bench.begun()
    await bench.turn()
    assert await bench.states(campaign) == {"accepted": 5}
    assert (await bench.service.campaigns.verify(bench.tenant, campaign)).audience == 5


async def test_a_person_gets_no_more_than_the_cap_from_all_campaigns(bench: Bench) -> None:
    cap = PersonCap(count=1, hours=24)
    first, second = await bench.begun(person_cap=cap), await bench.begun(person_cap=cap)
    await bench.turn()
    both = [await bench.states(first), await bench.states(second)]
    assert sum(one.get("accepted", 0) for one in both) == 10
    assert sum(one.get("skipped", 0) for one in both) == 10
    bench.clock.ahead = timedelta(hours=25)
    third = await bench.begun(person_cap=cap)
    await bench.turn()
    assert await bench.states(third) == {"accepted": 10}


async def test_the_tier_counts_people_over_a_day(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    async with _bench(
        database, redis, engines, tenant, Config(numbers=many_numbers(1, per_second=1_000), tiers={PORTFOLIO: 250})
    ) as bench:
        bench.book.default = people(255)
        campaign = await bench.begun()
        await bench.turn()
        assert await bench.states(campaign) == {"accepted": 250, "pending": 5}
        again = await bench.begun(content=UsedTemplate("hello_world", "en_US"))
        await bench.turn()
        known = await bench.states(again)
        assert known["accepted"] > 0, "who was written to today may be written to again"
        _, audit = await bench.fake("GET", "/_audit")
        assert audit["refused"] == {}
        assert audit["most_people_in_a_day"] == {PORTFOLIO: 250}
        bench.clock.ahead = timedelta(hours=25)
        await bench.fake.control(ahead_ms=25 * 3_600_000)
        await bench.service.campaigns.cancel(tenant, again, actor="test")
        await bench.turn()
        assert await bench.states(campaign) == {"accepted": 255}


async def test_money_is_a_hard_cap(bench: Bench) -> None:
    campaign = await bench.begun(price=Decimal("0.25"), spend_cap=Decimal("1.10"))
    await bench.turn()
    assert await bench.states(campaign) == {"accepted": 4, "pending": 6}
    await bench.service.keeper.poll()
    assert await bench.state(campaign) == ("paused", "spend_cap")
    assert (await bench.service.campaigns.read(bench.tenant, campaign)).spent == Decimal("1.00")


async def test_quiet_hours_of_tenant_and_of_contact(bench: Bench) -> None:
    here = bench.clock.now()
    since = (here - timedelta(hours=1)).time().replace(tzinfo=None)
    until = (here + timedelta(hours=1)).time().replace(tzinfo=None)
    far = "Etc/GMT+9" if here.hour % 2 else "Etc/GMT-9"
    bench.book.default = [*people(2), Recipient(None, "+491799999999", {}, far)]
    tenant = await bench.begun(quiet=Quiet(since, until, "tenant", "UTC"))
    contact = await bench.begun(quiet=Quiet(since, until, "contact", "UTC"))
    await bench.turn()
    assert await bench.states(tenant) == {"pending": 3}
    assert await bench.states(contact) == {"accepted": 1, "pending": 2}, "nine hours away it is not quiet"
    bench.clock.ahead = timedelta(hours=1, minutes=5)
    await bench.turn()
    assert await bench.states(tenant) == {"accepted": 3}
    assert await bench.states(contact) == {"accepted": 3}


@pytest.mark.parametrize(
    ("since", "until", "clock", "quiet"),
    [("22:00", "07:00", "23:30", 7.5), ("22:00", "07:00", "06:59", 1 / 60), ("22:00", "07:00", "07:00", None),
     ("12:00", "14:00", "12:00", 2), ("12:00", "14:00", "14:00", None), ("09:00", "09:00", "09:00", None)],
)  # fmt: skip
async def test_quiet_until(engines: Engines, since: str, until: str, clock: str, quiet: float | None) -> None:
    connection = await asyncpg.connect(engines.postgres_url)
    try:
        hours = await connection.fetchval(
            "select extract(epoch from messaging.quiet_until('Europe/Berlin', $1, $2, at) - at)::float8 / 3600"
            " from (select ('2026-01-15 ' || $3)::timestamp at time zone 'Europe/Berlin' as at) x",
            time.fromisoformat(since), time.fromisoformat(until), clock,
        )  # fmt: skip
        assert hours == (None if quiet is None else pytest.approx(quiet))
        assert await connection.fetchval("select messaging.zone_or_utc('No/Where')") == "UTC"
    finally:
        await connection.close()


async def test_pause_resume_stop_cancel_expire(bench: Bench) -> None:
    verbs, keeper = bench.service.campaigns, bench.service.keeper
    paused, expired, cancelled = await bench.begun(), await bench.begun(expires_at=_in(bench, 1)), await bench.begun()
    await verbs.pause(bench.tenant, paused, actor="test")
    await bench.service.connections.turn_switch(bench.tenant, stopped=True, actor="test")
    await bench.turn()
    assert (await bench.fake("GET", "/_audit"))[1]["taken"] == 0, "the switch stops all of it"
    await bench.service.connections.turn_switch(bench.tenant, stopped=False, actor="test")
    await verbs.cancel(bench.tenant, cancelled, actor="test")
    assert await bench.reasons(cancelled) == {"skipped": {"cancelled": 10}}
    bench.clock.ahead = timedelta(hours=2)
    await keeper.poll()
    assert await bench.state(expired) == ("expired", "expired")
    assert await bench.reasons(expired) == {"skipped": {"expired": 10}}
    await bench.turn()
    assert await bench.states(paused) == {"pending": 10}
    await verbs.resume(bench.tenant, paused, actor="test")
    await bench.turn()
    assert await bench.states(paused) == {"accepted": 10}
    with pytest.raises(Conflict):
        await verbs.resume(bench.tenant, cancelled, actor="test")
    for campaign in (paused, expired, cancelled):
        assert (await verbs.verify(bench.tenant, campaign)).holds


async def test_failed_ones_go_again_when_asked_and_unknown_ones_never(bench: Bench) -> None:
    retry = bench.service.campaigns.retry_failed
    await bench.fake.control(faults={"codes": {"131026": 1.0}})
    failed = await bench.begun()
    await bench.turn()
    assert await bench.reasons(failed) == {"failed": {"provider_131026": 10}}
    await bench.fake.control(faults={"lost_answer": 1.0})
    unknown = await bench.begun()
    await bench.turn()
    assert await bench.states(unknown) == {"unknown": 10}
    await bench.fake.control(faults={})
    await bench.service.keeper.finish(bench.tenant)
    assert (await bench.state(failed))[0] == (await bench.state(unknown))[0] == "completed"
    await retry(bench.tenant, unknown, None, actor="test")
    await retry(bench.tenant, failed, ["provider_1"], actor="test")
    assert (await bench.state(failed))[0] == "completed", "nobody failed for that reason"
    await retry(bench.tenant, failed, None, actor="test")
    await bench.turn()
    assert await bench.states(failed) == {"accepted": 10}
    assert await bench.states(unknown) == {"unknown": 10}
    _, audit = await bench.fake("GET", "/_audit")
    assert (audit["taken"], audit["twice"]) == (20, 0)


@pytest.mark.parametrize(
    ("code", "state", "stopped"),
    [
        (132001, ("paused", "provider_132001"), False),
        (190, ("running", None), True),
        (131048, ("running", None), False),
    ],
)
async def test_a_code_pauses_campaign_tenant_or_number(
    bench: Bench, code: int, state: tuple[str, str | None], stopped: bool
) -> None:
    await bench.fake.control(faults={"codes": {str(code): 1.0}})
    campaign = await bench.begun()
    await bench.turn()
    assert await bench.state(campaign) == state
    assert (await bench.service.connections.switch(bench.tenant)).stopped is stopped
    assert await bench.states(campaign) == {"pending": 10}, "nobody was reached, and nobody is lost"
    taken = (await bench.fake("GET", "/_audit"))[1]["refused"][str(code)]
    await bench.turn(retries=True)
    assert (await bench.fake("GET", "/_audit"))[1]["refused"] == {str(code): taken}, "nothing more was tried"


async def test_a_template_that_cannot_be_filled_or_sent(bench: Bench) -> None:
    components = [{"type": "BODY", "text": "Hello {{1}}"}]
    await bench.fake.control(
        templates={"200000000000001": [{"id": "9", "name": "named", "language": "en", "components": components}]}
    )
    await bench.service.connections.refresh(bench.tenant, bench.connection, actor="test")
    verbs = bench.service.campaigns
    new = NewCampaign("Bare", bench.connection, UsedTemplate("named", "en"), purpose="utility")
    draft = await verbs.create(bench.tenant, new, actor="test")
    with pytest.raises(Conflict) as refused:
        await verbs.start(bench.tenant, draft.campaign_id, at=None, actor="test")
    assert refused.value.code == "CAMPAIGN_NOT_READY"
    bench.book.default = [*people(3), Recipient(None, "+491711111111", {"name": " "})]
    bindings = {"body.1": BindingIn("name")}
    estimate_of = await verbs.create(
        bench.tenant, structs.replace(new, bindings=bindings, price=Decimal("0.1")), actor="test"
    )
    estimate = await verbs.estimate(bench.tenant, estimate_of.campaign_id)
    assert (estimate.audience, estimate.ready, estimate.missing) == (4, 3, {"body.1": 1})
    assert estimate.cost == Decimal("0.3")
    campaign = await bench.begun(content=UsedTemplate("named", "en"), bindings=bindings)
    await bench.turn()
    assert await bench.states(campaign) == {"accepted": 3, "skipped": 1}
    assert await bench.reasons(campaign) == {"skipped": {"variable_missing": 1}}


async def test_a_test_send_is_a_campaign_of_its_own(bench: Bench) -> None:
    draft = await bench.service.campaigns.create(
        bench.tenant, NewCampaign("Text", bench.connection, UsedText("Hello"), purpose="utility"), actor="test"
    )
    made = await bench.service.campaigns.test_send(bench.tenant, draft.campaign_id, people(2), actor="test")
    await bench.turn()
    assert await bench.reasons(made.campaign_id) == {"skipped": {"window_closed": 2}}, "nobody wrote to us"
    assert await bench.states(draft.campaign_id) == {}


async def test_the_sweeper_frees_claims_and_calls_attempts_unknown(bench: Bench) -> None:
    campaign = await bench.begun()
    async with bench.at.database.worker() as tx:
        now = bench.clock.now()
        number = await store.lock_number(tx, bench.tenant, NUMBER, None, now)
        assert number is not None
        claim = uuid.uuid4()
        rows = await store.claim(
            tx, bench.tenant, number, 10, retries=False, now=now, claim=claim, counted_since=now - timedelta(days=1)
        )
        tried = [(bench.tenant, row.message_id, claim) for row in rows[:4]]
        assert len(await store.record_attempts(tx, tried, now)) == 4
        assert await store.record_attempts(tx, tried, now) == set(), "an attempt is recorded once"
    bench.clock.ahead = timedelta(seconds=100)
    await bench.service.keeper.sweep()
    assert await bench.states(campaign) == {"sending": 4, "pending": 6}
    bench.clock.ahead = timedelta(seconds=200)
    await bench.service.keeper.sweep()
    await bench.turn()
    assert await bench.states(campaign) == {"unknown": 4, "accepted": 6}
    bench.clock.ahead = timedelta(hours=80)
    await bench.service.keeper.sweep()
    assert await bench.reasons(campaign) == {"failed": {"unknown": 4}}
    assert (await bench.service.campaigns.verify(bench.tenant, campaign)).holds


async def test_places_are_given_back_when_redis_does_not_answer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept, they would run out after a while, and this process would wait for ever without sending anything."""
    campaign = await bench.begun()

    async def away(*_: Any, **__: Any) -> Any:
        raise Busy("Redis is away.")

    with monkeypatch.context() as patch:
        patch.setattr(Pacer, "take", away)
        for _ in range(TurnPolicy().in_flight // 10 + 1):
            with pytest.raises(Busy):
                await bench.turn()
            assert await bench.states(campaign) == {"pending": 10}, "what was claimed goes back at once"
    await soon(bench.turn())
    assert await bench.states(campaign) == {"accepted": 10}


def _in(bench: Bench, hours: int) -> Any:
    return bench.clock.now() + timedelta(hours=hours)


async def test_an_erasure_leaves_what_is_counted_and_nothing_that_names_anybody(bench: Bench, engines: Engines) -> None:
    address, contact = "+491712121212", uuid.uuid4()
    connection = await asyncpg.connect(engines.postgres_url)
    try:
        await connection.execute(
            "insert into contacts.contacts (tenant_id, contact_id, phone, whatsapp, external_id, created_at,"
            " updated_at) values ($1, $2, $3, $3, 'ada', now(), now())", bench.tenant, contact, address,
        )  # fmt: skip
        bench.book.default = [Recipient(contact, address, {"name": "Ada"}), *people(2)]
        sent = await bench.begun()
        await bench.turn()
        waiting = await bench.begun()
        done = await bench.service.erasure.erase(bench.tenant, "ada")
        assert done["messaging.messages"] == 2
        assert await bench.service.erasure.erase(bench.tenant, "nobody") == {}
        left = await connection.fetchval(
            "select count(*) from messaging.messages m where m.tenant_id = $1 and m::text like '%' || $2 || '%'",
            bench.tenant, address.lstrip("+"),
        )  # fmt: skip
        assert left == 0
    finally:
        await connection.close()
    assert await bench.states(sent) == {"accepted": 3}
    assert await bench.reasons(waiting) == {"skipped": {"erased": 1}}
    for campaign in (sent, waiting):
        assert (await bench.service.campaigns.verify(bench.tenant, campaign)).holds
