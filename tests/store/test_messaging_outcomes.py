"""Outcomes of sends: one that PostgreSQL refuses spoils no other, and what never left us is not taken for sent."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable

import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.errors import Busy, HandbillError, NotFound
from handbill.kit.retry import Retry
from handbill.kit.telemetry import metrics
from handbill.messaging import judging
from handbill.messaging.consequences import Consequences
from handbill.messaging.model import Accepted, Account, Message, Outcome, Refused
from handbill.messaging.providers.whatsapp import WhatsApp
from handbill.messaging.store import Settlement
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, graph
from tests.kit.reach import Book, Room, people, room
from tests.kit.waiting import soon

BAD = "4917" + "00000007"
NAMED = Sql("select count(*) from messaging.messages where tenant_id = $1 and wamid is not null", "test_named")


@pytest.fixture
async def at(database: Database, redis: Redis, engines: Engines) -> AsyncIterator[Room]:
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url, Book(people(20))) as made:
        yield made


def answer(monkeypatch: pytest.MonkeyPatch, bad: Callable[[], Outcome], together: int = 1) -> list[str]:
    """A provider that accepts all but one recipient, once it saw so many, and the recipients it saw."""
    seen: list[str] = []
    enough = asyncio.Event()

    async def send(provider: WhatsApp, account: Account, message: Message) -> Outcome:
        seen.append(message.to)
        if len(seen) >= together:
            enough.set()
        await soon(enough.wait())
        return bad() if message.to == BAD else Accepted(f"wamid.{uuid.uuid4().hex}")

    monkeypatch.setattr(WhatsApp, "send", send)
    return seen


async def send_all(at: Room, tenant: int) -> dict[str, int]:
    campaign = (await at.started(tenant, await at.connect(tenant))).campaign_id
    await at.service.keeper.poll()
    await at.service.launcher.write(tenant, campaign)
    await at.service.dispatcher.turn(tenant, NUMBER, None)
    return await at.states(tenant, campaign)


@pytest.mark.parametrize(
    "outcome",
    [Refused(2**31, "x"), Refused(99_999, "a\0b"), Refused(99_999, "\ud800"), Accepted("wamid.\0")],
    ids=["code", "nul", "surrogate", "wamid"],
)
async def test_recorder_isolates_an_outcome_that_cannot_be_stored(
    at: Room, tenant: int, monkeypatch: pytest.MonkeyPatch, outcome: Outcome
) -> None:
    answer(monkeypatch, lambda: outcome, together=20)
    states = await send_all(at, tenant)
    async with at.database.worker() as tx:
        assert await tx.fetchval(NAMED, tenant) == 19, "its neighbours keep what the provider answered"
    assert states == ({"accepted": 20} if isinstance(outcome, Accepted) else {"accepted": 19, "failed": 1})


async def test_recorder_counts_only_outcomes_that_were_recorded(at: Room, tenant: int) -> None:
    counter = metrics.MESSAGES.labels("accepted")
    before = counter._value.get()
    await at.service.dispatcher._recorder.settle(Settlement(tenant, uuid.uuid4(), uuid.uuid4(), "accepted", "wamid.1"))
    assert counter._value.get() == before


@pytest.mark.parametrize("error", [Busy("later"), NotFound("gone")], ids=["busy", "not_found"])
async def test_dispatcher_keeps_messages_whose_credentials_cannot_be_opened(
    at: Room, tenant: int, monkeypatch: pytest.MonkeyPatch, error: HandbillError
) -> None:
    calls = 0
    seen = answer(monkeypatch, lambda: Accepted("wamid.bad"))

    async def open_credentials(provider: WhatsApp, account: Account) -> None:
        nonlocal calls
        calls += 1
        if calls % 4 == 0:
            raise error

    monkeypatch.setattr(WhatsApp, "open_credentials", open_credentials)
    states = await send_all(at, tenant)
    assert states == {"accepted": 15, "pending": 5}
    assert len(seen) == 15


async def test_dispatcher_takes_an_error_before_the_request_for_not_sent(
    at: Room, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Outcome:
        raise Busy("later")

    answer(monkeypatch, fail)
    assert await send_all(at, tenant) == {"accepted": 19, "pending": 1}


async def test_dispatcher_records_a_refusal_whose_side_effects_fail(
    at: Room, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def apply(*_: object) -> None:
        raise Busy("later")

    monkeypatch.setattr(Consequences, "apply", apply)
    monkeypatch.setattr(judging, "RETRY", Retry(tries=2, delay_ms=0))
    answer(monkeypatch, lambda: Refused(131050, "user stopped marketing"))
    assert await send_all(at, tenant) == {"accepted": 19, "failed": 1}
