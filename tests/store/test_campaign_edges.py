"""Where two things meet: a no behind a shared telephone, two launches of one page, old spellings, a late return."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from handbill.contacts.service import from_whatsapp
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.messaging.plan import AudienceSpec, NewCampaign, UsedTemplate
from handbill.messaging.ports import AudiencePage, Recipient
from handbill.messaging.store import S
from tests.kit import desk
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, graph
from tests.kit.reach import Book, Room, people, room


@pytest.fixture
async def at(database: Database, redis: Redis, engines: Engines) -> AsyncIterator[Room]:
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url, Crossed()) as made:
        yield made


class Crossed(Book):
    """An address book in which something may happen between a page's reading and its writing."""

    meanwhile: Any = None

    async def audience(
        self, tenant_id: int, channel: str, spec: AudienceSpec, after: uuid.UUID | None, limit: int
    ) -> AudiencePage:
        page = await super().audience(tenant_id, channel, spec, after, limit)
        if self.meanwhile is not None:
            work, self.meanwhile = self.meanwhile, None
            await work()
            page = AudiencePage([*page.recipients, Recipient(None, "+491799999999")], page.after)
        return page

    def address(self, channel: str, wire: str) -> str:
        return from_whatsapp(wire)


async def begun(at: Room, tenant: int, connection: uuid.UUID, **options: Any) -> uuid.UUID:
    campaign = (await at.started(tenant, connection, **options)).campaign_id
    await at.service.keeper.poll()
    await at.service.launcher.write(tenant, campaign)
    return campaign


async def reasons(at: Room, tenant: int, campaign: uuid.UUID) -> dict[str, dict[str, int]]:
    return (await at.service.campaigns.outcomes(tenant, campaign)).reasons


async def test_a_no_counts_for_everybody_behind_the_address(at: Room, engines: Engines, tenant: int) -> None:
    ours, theirs, mail = uuid.uuid4(), uuid.uuid4(), "ada@example.com"
    shared, free = "+491700000001", "+491700000002"
    async with desk.owner(engines.postgres_url) as db:
        for contact, address, yes, no in (
            (ours, shared, ["whatsapp"], []), (theirs, shared, [], ["email", "sms", "whatsapp"]),
            (uuid.uuid4(), free, [], ["email"]),
        ):  # fmt: skip
            await db.execute(
                "insert into contacts.contacts (tenant_id, contact_id, phone, whatsapp, email, granted, denied,"
                " created_at, updated_at) values ($1, $2, $3, $3, $4, $5, $6, now(), now())",
                tenant, contact, address, mail, yes, no,
            )  # fmt: skip
        rows = await db.fetch(
            "select place, reason from messaging.may_not_send($1, $2, $3, $4, $5, now()) order by place", tenant,
            ["sms", "sms", "email", "email"], [shared, free, mail, "b@example.com"], [None] * 4, ["utility"] * 4,
        )  # fmt: skip
    assert [row["reason"] for row in rows] == ["consent_denied", None, "consent_denied", None]
    at.book.default = [Recipient(ours, shared), Recipient(None, free)]
    campaign = await begun(at, tenant, await at.connect(tenant), purpose="marketing")
    await at.service.dispatcher.turn(tenant, NUMBER, None)
    assert await at.states(tenant, campaign) == {"accepted": 1, "skipped": 1}
    assert await reasons(at, tenant, campaign) == {"skipped": {"consent_denied": 1}}


async def test_who_loses_a_page_leaves_nothing_behind(at: Room, tenant: int) -> None:
    assert isinstance(at.book, Crossed)
    at.book.default = people(3)
    campaign = (await at.started(tenant, await at.connect(tenant))).campaign_id
    await at.service.keeper.poll()
    written: list[int] = []

    async def winner() -> None:
        written.append(await at.service.launcher.write(tenant, campaign))

    at.book.meanwhile = winner
    assert (await at.service.launcher.write(tenant, campaign), written) == (0, [3])
    assert await at.states(tenant, campaign) == {"pending": 3}, "a row of the loser's page would stand in no count"
    assert (await at.service.campaigns.verify(tenant, campaign)).audience == 3


async def test_a_test_send_knows_old_spellings(at: Room, tenant: int) -> None:
    new = NewCampaign(
        "Text", await at.connect(tenant), UsedTemplate("hello_world", "en_US"), purpose="utility"
    )  # fmt: skip
    draft = await at.service.campaigns.create(tenant, new, actor="test")
    wires = ["+5215512345678", "+525512345678", "+551187654321", "+491700000001"]
    made = await at.service.campaigns.test_send(
        tenant, draft.campaign_id, [Recipient(None, wire) for wire in wires], actor="test"
    )
    page = await at.service.campaigns.messages(tenant, made.campaign_id, None, 10)
    assert sorted(one.address for one in page.items) == ["+491700000001", "+525512345678", "+5511987654321"]
    assert made.audience_size == 3


async def test_claims_of_a_tenant_come_one_after_the_other(database: Database, engines: Engines, tenant: int) -> None:
    """Though nothing that counts is running: it may begin between a look and the claim."""
    free = "select pg_try_advisory_xact_lock(hashtextextended('handbill.messaging', $1::int))"
    async with desk.owner(engines.postgres_url) as db:
        async with database.worker() as tx:
            await tx.execute(S.lock_counted, tenant)
            assert await db.fetchval(free, tenant) is False
            assert await db.fetchval(free, tenant + 1_000_000) is True, "other tenants do not wait"
        assert await db.fetchval(free, tenant) is True


async def test_a_message_that_comes_back_opens_its_campaign_again(at: Room, engines: Engines, tenant: int) -> None:
    at.book.default = people(2)
    campaign = await begun(at, tenant, await at.connect(tenant))
    await at.service.dispatcher.turn(tenant, NUMBER, None)
    await at.service.keeper.finish(tenant)
    assert await at.state(tenant, campaign) == "completed"
    await at.service.keeper.poll()
    assert await at.state(tenant, campaign) == "completed"
    async with desk.owner(engines.postgres_url) as db:  # as `again` leaves one that had counted as unknown
        await db.execute(
            "update messaging.messages set state = 'pending', claim = null, wamid = null, accepted_at = null,"
            " settled_at = null where tenant_id = $1 and address = $2", tenant, people(1)[0].address,
        )  # fmt: skip
    await at.service.keeper.poll()
    assert await at.state(tenant, campaign) == "running"
    await at.service.dispatcher.turn(tenant, NUMBER, None, retries=True)
    await at.service.keeper.finish(tenant)
    assert await at.state(tenant, campaign) == "completed"
    assert await at.states(tenant, campaign) == {"accepted": 2}
