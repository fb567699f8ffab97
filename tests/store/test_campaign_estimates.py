"""What an estimate says beside what a campaign comes to: the same for every reason, if nothing changes in between."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from handbill.fake_graph.model import Config
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.clock import SystemClock
from handbill.kit.errors import Busy
from handbill.messaging.estimate_differences import count_outcomes
from handbill.messaging.estimate_model import Estimate
from handbill.messaging.estimates import EstimatePolicy
from handbill.messaging.limits import GRACE_MS
from handbill.messaging.plan import BindingIn, NewCampaign, PersonCap, Quiet, UsedTemplate, UsedText
from handbill.messaging.ports import Recipient
from handbill.messaging.service import MessagingPolicy
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, graph, many_numbers
from tests.kit.reach import Book, Room, people, room

TEMPLATE = {
    "id": "9", "name": "named", "language": "en",
    "components": [{"type": "BODY", "text": "Hello {{1}} from {{2}}" + "." * 1000}],
}  # fmt: skip
CONTACT = Sql(
    "insert into contacts.contacts (tenant_id, contact_id, granted, denied, phone, whatsapp, created_at, updated_at)"
    " values ($1, $2, $3, $4, $5, $5, now(), now())",
    "add_contact",
)
SUPPRESS = Sql(
    "insert into contacts.suppressions (tenant_id, channel, address, reason, until, created_at)"
    " values ($1, 'whatsapp', $2, $3, $4, now()) on conflict do nothing",
    "add_suppression",
)
WROTE = Sql(
    "insert into messaging.inbound (tenant_id, wamid, connection_id, number_id, address, name, at, kind, text, payload)"
    " values ($1, $2, $3, $4, $5, '', $6, 'text', 'hi', '')",
    "add_inbound",
)


class Sender:
    """A room with one connection, whose campaigns are run by hand."""

    def __init__(self, at: Room, tenant: int, connection: uuid.UUID) -> None:
        self.at, self.tenant, self.connection = at, tenant, connection
        self.campaigns = at.service.campaigns

    async def started(self, **options: Any) -> uuid.UUID:
        return (await self.at.started(self.tenant, self.connection, **options)).campaign_id

    async def sent(self, campaign: uuid.UUID, number: str = NUMBER) -> dict[str, int]:
        """Begun and sent to the end; how many messages came to what."""
        await self.at.service.keeper.begin()
        await self.at.service.launcher.write(self.tenant, campaign)
        await self.at.service.dispatcher.turn(self.tenant, number, None)
        outcomes = await self.campaigns.outcomes(self.tenant, campaign)
        return count_outcomes(outcomes.states, outcomes.reasons)

    async def estimate_of(self, **options: Any) -> Estimate:
        options.setdefault("content", UsedTemplate("hello_world", "en_US"))
        options.setdefault("purpose", "utility")
        draft = await self.campaigns.create(self.tenant, NewCampaign("Look", self.connection, **options), actor="test")
        return await self.campaigns.estimate(self.tenant, draft.campaign_id)

    async def wrote(self, address: str, age: timedelta, number: str = NUMBER) -> None:
        async with self.at.database.worker() as tx:
            at = self.at.clock.now() - age
            await tx.execute(WROTE, self.tenant, uuid.uuid4().hex, self.connection, number, address, at)


@pytest.fixture
async def sender(database: Database, redis: Redis, engines: Engines, tenant: int) -> AsyncIterator[Sender]:
    policy = MessagingPolicy(estimate=EstimatePolicy(max_s=600))
    numbers = many_numbers(2, per_second=1_000)
    config = Config(numbers=numbers, service_window=False)
    async with (
        graph(config) as fake,
        room(database, redis, engines.postgres_url, fake.url, Book(people(10)), policy, SystemClock()) as at,
    ):
        await fake.control(templates={"200000000000001": [TEMPLATE, _hello()]})
        connection = await at.connect(tenant, [number.id for number in numbers])
        async with database.worker() as tx:
            await tx.execute(Sql("update messaging.numbers set tier = null where tenant_id = $1", "lift"), tenant)
        yield Sender(at, tenant, connection)


def _hello() -> dict[str, Any]:
    return {"id": "1", "name": "hello_world", "language": "en_US", "components": [{"type": "BODY", "text": "Hello"}]}


class Person:
    """One generated contact."""

    def __init__(self, drawn: tuple[Any, ...]) -> None:
        self.place, self.consent, self.is_gone, self.suppressed, self.wrote_h, self.had, self.name, self.city = drawn


PEOPLE = st.lists(
    st.tuples(
        st.integers(0, 12),  # two contacts may share an address
        st.sampled_from(["granted", "granted", "granted", "silent", "denied", "nobody"]),
        st.sampled_from([False, False, True]),
        st.sampled_from([None, None, None, "opt_out", "bounce", "ended"]),
        st.sampled_from([None, 1, 23, 25]),
        st.integers(0, 2),
        st.sampled_from(["Ada", "Ada", " ", None, "A" * 30]),
        st.sampled_from(["Rio", "Rio", None]),
    ),
    max_size=14,
)


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(drawn=PEOPLE, purpose=st.sampled_from(["marketing", "utility"]), is_text=st.booleans(), is_capped=st.booleans())
async def test_an_estimate_is_the_outcome_for_every_reason(
    sender: Sender, drawn: list[tuple[Any, ...]], purpose: str, is_text: bool, is_capped: bool
) -> None:
    base = uuid.uuid4().int % 9_000_000 * 100  # addresses of this example alone
    found = [Person(one) for one in drawn]
    now = sender.at.clock.now()
    recipients: list[Recipient] = []
    async with sender.at.database.worker() as tx:
        for one in found:
            address, contact = f"+4915{base + one.place:09d}", uuid.uuid4()
            granted = ["whatsapp"] if one.consent == "granted" else []
            denied = ["whatsapp"] if one.consent == "denied" else []
            if not one.is_gone and one.consent != "nobody":
                await tx.execute(CONTACT, sender.tenant, contact, granted, denied, address)
            if one.suppressed is not None:
                until = now - timedelta(hours=1) if one.suppressed == "ended" else None
                reason = "bounce" if one.suppressed == "ended" else one.suppressed
                await tx.execute(SUPPRESS, sender.tenant, address, reason, until)
            fields = {"name": one.name, "attributes.city": one.city}
            recipients.append(Recipient(None if one.consent == "nobody" else contact, address, fields))
    for one, person in zip(found, recipients, strict=True):
        if one.wrote_h is not None:
            await sender.wrote(person.address, timedelta(hours=one.wrote_h))
    for had in (1, 2):  # messages of earlier campaigns, for the cap
        before = [person for one, person in zip(found, recipients, strict=True) if one.had >= had]
        sender.at.book.default = [Recipient(None, person.address) for person in before]
        await sender.sent(await sender.started(numbers=[NUMBER]))
    sender.at.book.default = recipients
    bindings = {"body.1": BindingIn("name"), "body.2": BindingIn("attributes.city")}
    campaign = await sender.started(
        content=UsedText("Hello") if is_text else UsedTemplate("named", "en"), bindings={} if is_text else bindings,
        purpose=purpose, numbers=[NUMBER], person_cap=PersonCap(1, 24) if is_capped else None,
    )  # fmt: skip
    actual = await sender.sent(campaign)
    proof = await sender.campaigns.verify(sender.tenant, campaign)
    assert proof.holds
    assert proof.estimate is not None
    assert proof.estimate.is_complete
    expected = {"sent": proof.estimate.ready} | {f"skipped:{why}": n for why, n in proof.estimate.skipped.items()}
    assert actual == {name: count for name, count in expected.items() if count}
    assert proof.differences == []
    assert proof.audience == proof.estimate.audience


async def test_free_text_goes_only_to_whom_the_window_is_open(sender: Sender) -> None:
    """And a minute before it closes nothing is sent any more."""
    closes = timedelta(hours=24) - timedelta(milliseconds=GRACE_MS)
    slack = timedelta(seconds=50)
    ages = {"+491700000001": closes - slack, "+491700000002": closes + timedelta(seconds=1), "+491700000003": None}
    for address, age in ages.items():
        if age is not None:
            await sender.wrote(address, age)
    await sender.wrote("+491700000004", timedelta(hours=1), number=many_numbers(2)[1].id)
    sender.at.book.default = [Recipient(None, address) for address in (*ages, "+491700000004")]
    text = UsedText("Hello again")
    found = await sender.sent(await sender.started(content=text, numbers=[NUMBER]))
    assert found == {"sent": 1, "skipped:window_closed": 3}, "the fourth wrote to another number"
    both = await sender.started(content=text)
    for number in many_numbers(2):
        found = await sender.sent(both, number.id)
    assert found == {"sent": 2, "skipped:window_closed": 2}, "each from the number that the person wrote to"


async def test_an_estimate_names_what_stands_in_the_way(sender: Sender) -> None:
    sender.at.book.default = people(6)
    async with sender.at.database.worker() as tx:
        await tx.execute(SUPPRESS, sender.tenant, people(1)[0].address, "opt_out", None)
        await tx.execute(
            Sql("update messaging.numbers set tier = 2, paused_until = 'infinity' where tenant_id = $1", "pause"),
            sender.tenant,
        )
    await sender.at.service.connections.turn_switch(sender.tenant, stopped=True, actor="test")
    ends = sender.at.clock.now() + timedelta(hours=1)
    found = await sender.estimate_of(price=Decimal("0.50"), spend_cap=Decimal("1.20"), expires_at=ends)
    problems = {problem.code: problem.people for problem in found.problems}
    assert problems == {
        "sending_stopped": None, "senders_paused": None, "suppressed_opt_out": 1, "tier": 3, "spend_cap": 3,
    }  # fmt: skip
    assert (found.audience, found.ready, found.skipped) == (6, 5, {"suppressed_opt_out": 1})
    assert (found.unaffordable, found.later["tier"], found.cost, found.within_cap) == (3, 3, Decimal("2.50"), False)
    assert found.seconds is None, "nothing can be sent"
    async with sender.at.database.worker() as tx:
        await tx.execute(
            Sql("update messaging.numbers set paused_until = null where tenant_id = $1", "go"), sender.tenant
        )
    found = await sender.estimate_of(expires_at=ends)
    assert found.seconds == 2 * 86_400, "two people a day"
    assert "expires_before_end" in {problem.code for problem in found.problems}
    unknown = await sender.estimate_of(content=UsedTemplate("not_there", "en"))
    assert unknown.skipped == {"suppressed_opt_out": 1, "template_gone": 5}
    assert [one.code for one in unknown.problems if one.is_blocking] == ["template_unknown"]


async def test_quiet_hours_put_off_and_skip_nobody(sender: Sender) -> None:
    clock = sender.at.clock.now()
    quiet = Quiet(
        (clock - timedelta(hours=1)).time().replace(tzinfo=None),
        (clock + timedelta(hours=1)).time().replace(tzinfo=None), "contact", "UTC",
    )  # fmt: skip
    far = "Etc/GMT+9" if clock.hour % 2 else "Etc/GMT-9"
    sender.at.book.default = [*people(2), Recipient(None, "+491799999999", {}, far)]
    found = await sender.estimate_of(quiet=quiet)
    assert (found.ready, found.later["quiet_hours"], found.skipped) == (3, 2, {})


async def test_an_audience_beyond_the_look_is_counted_in_part(
    database: Database, redis: Redis, engines: Engines, tenant: int
) -> None:
    policy = MessagingPolicy(estimate=EstimatePolicy(max_people=1_000))
    async with (
        graph() as fake,
        room(database, redis, engines.postgres_url, fake.url, Book(people(2_500)), policy) as at,
    ):
        sender = Sender(at, tenant, await at.connect(tenant))
        found = await sender.estimate_of()
        assert (found.audience, found.is_complete) == (1_000, False)
        assert "estimate_partial" in {problem.code for problem in found.problems}
        assert at.book.asked == 1


async def test_a_campaign_starts_when_its_audience_cannot_be_estimated(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def is_busy(*_: Any, **__: Any) -> Any:
        raise Busy("The segment is being evaluated.")

    with monkeypatch.context() as patch:
        patch.setattr(Book, "audience", is_busy)
        campaign = await sender.started(numbers=[NUMBER])
    assert await sender.sent(campaign) == {"sent": 10}
    proof = await sender.campaigns.verify(sender.tenant, campaign)
    assert (proof.estimate, proof.differences) == (None, [])


async def test_verify_explains_each_difference(sender: Sender) -> None:
    campaign = await sender.started(numbers=[NUMBER])
    async with sender.at.database.worker() as tx:  # after the estimate
        await tx.execute(SUPPRESS, sender.tenant, people(1)[0].address, "opt_out", None)
    sender.at.book.default = people(9)
    await sender.sent(campaign)
    proof = await sender.campaigns.verify(sender.tenant, campaign)
    found = {one.name: (one.estimated, one.actual) for one in proof.differences}
    assert found == {"audience": (10, 9), "sent": (10, 8), "skipped:suppressed_opt_out": (0, 1)}
    assert all(one.explanation for one in proof.differences)
    by_message = [one for one in proof.differences if one.name != "audience"]
    assert sum(one.actual - one.estimated for one in by_message) == 9 - 10, "nothing is left unexplained"
