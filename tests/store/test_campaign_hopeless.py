"""Refusals that everybody else would get pause a campaign after a few, in the answer and by webhook; others do not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.messaging.dispatch import TurnPolicy
from handbill.messaging.model import Accepted, Account, Message, Outcome, Refused
from handbill.messaging.providers.whatsapp import WhatsApp
from handbill.messaging.service import MessagingPolicy
from tests.kit import desk
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, graph
from tests.kit.reach import Book, Room, people, room

AT_S = 1_750_000_000


@pytest.fixture
async def at(database: Database, redis: Redis, engines: Engines) -> AsyncIterator[Room]:
    policy = MessagingPolicy(turn=TurnPolicy(pause_after=5, in_flight=1))  # one at a time: "in a row" is exact
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url, Book(people(12)), policy) as made:
        yield made


def answer(monkeypatch: pytest.MonkeyPatch, outcome: Callable[[int], Outcome]) -> None:
    count = 0

    async def send(provider: WhatsApp, account: Account, message: Message) -> Outcome:
        nonlocal count
        count += 1
        return outcome(count)

    monkeypatch.setattr(WhatsApp, "send", send)


async def sent(at: Room, tenant: int) -> tuple[str, str | None, dict[str, int]]:
    campaign = (await at.started(tenant, await at.connect(tenant))).campaign_id
    await at.service.keeper.begin()
    await at.service.launcher.write(tenant, campaign)
    await at.service.dispatcher.turn(tenant, NUMBER, None)
    found = await at.service.campaigns.read(tenant, campaign)
    return found.state, found.reason, await at.states(tenant, campaign)


@pytest.mark.parametrize("code", [131047, 131051, 100])
async def test_hopeless_refusals_in_a_row_pause_the_campaign(
    at: Room, tenant: int, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    answer(monkeypatch, lambda _: Refused(code, "no"))
    assert await sent(at, tenant) == ("paused", f"provider_{code}", {"failed": 4, "pending": 8})


@pytest.mark.parametrize("code", [131026, 131050, 130472])
async def test_refusals_about_one_person_pause_nothing(
    at: Room, tenant: int, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    answer(monkeypatch, lambda _: Refused(code, "no"))
    assert await sent(at, tenant) == ("running", None, {"failed": 12})


async def test_an_accepted_message_begins_the_count_again(
    at: Room, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(monkeypatch, lambda place: Accepted(f"w.{place}") if place % 5 == 0 else Refused(131047, "no"))
    state, _, states = await sent(at, tenant)
    assert (state, states) == ("running", {"accepted": 2, "failed": 10})


async def test_failures_by_webhook_pause_it_too(at: Room, engines: Engines, tenant: int) -> None:
    connection = await at.connect(tenant)
    campaign = (await at.started(tenant, connection)).campaign_id
    addresses = [person.address for person in people(12)]
    async with desk.owner(engines.postgres_url) as db:
        messages = await desk.sent(db, tenant, campaign, addresses)
    told = dict(zip(messages, addresses, strict=True))

    async def fail(places: slice, code: int) -> str:
        statuses = [
            desk.status(one, "failed", AT_S, address=told[one], code=code, details="no") for one in messages[places]
        ]
        await desk.told(at, connection, desk.messages(statuses=statuses))
        await desk.worked_off(at)
        return await at.state(tenant, campaign)

    assert await fail(slice(0, 4), 131047) == "queued"
    delivered = desk.status(messages[11], "delivered", AT_S, address=addresses[11])
    await desk.told(at, connection, desk.messages(statuses=[delivered]))
    await desk.worked_off(at)
    assert await fail(slice(4, 6), 131049) == "queued", "about one person"
    assert await fail(slice(6, 10), 131047) == "queued", "one was delivered in between"
    assert await fail(slice(10, 11), 131047) == "paused"
    assert (await at.service.campaigns.read(tenant, campaign)).reason == "provider_131047"
