"""Drafts are changed, copied and deleted; what was started is not. How campaigns begin, and from which numbers."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from types import SimpleNamespace
from typing import cast

import pytest

from handbill.fake_graph.model import Config
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.errors import Conflict, Invalid, NotFound, PreconditionFailed
from handbill.messaging.drafts import CampaignPatch
from handbill.messaging.plan import AudienceSpec, BindingIn, NewCampaign, PersonCap, UsedTemplate, UsedText
from handbill.wiring.house import House
from handbill.wiring.messaging import MessageSweep
from tests.conftest import MakeTenant
from tests.kit.engines import Engines
from tests.kit.graph import graph as fake_graph
from tests.kit.graph import many_numbers
from tests.kit.reach import Book, Room, people, room

HELLO = UsedTemplate("hello_world", "en_US")
AUDIT = Sql(
    "select action from tenants.audit_log where tenant_id = $1 and action like 'campaign.%' order by audit_id",
    "read_audit",
)
NUMBERS = Sql(
    "select number_id, count(*)::int as n from messaging.messages where tenant_id = $1 group by 1", "by_number"
)


@pytest.fixture
async def at(database: Database, redis: Redis, engines: Engines) -> AsyncIterator[Room]:
    config = Config(numbers=many_numbers(130))
    async with (
        fake_graph(config) as fake,
        room(database, redis, engines.postgres_url, fake.url, Book(people(600))) as made,
    ):
        yield made


async def test_a_draft_is_changed_copied_and_deleted(at: Room, tenant: int, make_tenant: MakeTenant) -> None:
    connection = await at.connect(tenant, ["100000000000001"])
    campaigns, drafts, now = at.service.campaigns, at.service.drafts, at.clock.now()
    new = NewCampaign(
        "Spring", connection, HELLO, price=Decimal("0.10"), spend_cap=Decimal(5), person_cap=PersonCap(1, 24),
        scheduled_at=now + timedelta(hours=1), audience=AudienceSpec(tags_any=["a"]),
    )  # fmt: skip
    made = await campaigns.create(tenant, new, actor="test")
    patch = CampaignPatch(name="Summer", person_cap=None, spend_cap=Decimal(9), audience=AudienceSpec(tags_all=["b"]))
    changed = await drafts.change(tenant, made.campaign_id, patch, version=made.version, actor="test")
    assert changed == await campaigns.read(tenant, made.campaign_id)
    assert (changed.name, changed.person_cap, changed.spend_cap) == ("Summer", None, Decimal(9))
    assert (changed.price, changed.scheduled_at, changed.content) == (made.price, made.scheduled_at, made.content)
    assert changed.audience == AudienceSpec(tags_all=["b"])
    with pytest.raises(PreconditionFailed):
        await drafts.change(tenant, made.campaign_id, patch, version=made.version, actor="test")
    with pytest.raises(Invalid) as refused:
        await drafts.change(tenant, made.campaign_id, CampaignPatch(price=Decimal(0)), actor="test")
    assert [fault.field for fault in refused.value.faults] == ["price"], "a spend cap needs a price"
    with pytest.raises(NotFound):
        await drafts.change(await make_tenant(), made.campaign_id, patch, actor="test")

    copy = await drafts.clone(tenant, made.campaign_id, None, actor="test")
    assert (copy.name, copy.state, copy.version) == ("Copy of Summer", "draft", 1)
    same = ("content", "audience", "price", "spend_cap", "scheduled_at", "numbers", "purpose", "quiet")
    assert [getattr(copy, name) for name in same] == [getattr(changed, name) for name in same]
    await drafts.delete(tenant, copy.campaign_id, version=1, actor="test")
    with pytest.raises(NotFound):
        await campaigns.read(tenant, copy.campaign_id)
    async with at.database.worker() as tx:
        actions = [row["action"] for row in await tx.fetch(AUDIT, tenant)]
    assert actions == ["campaign.create", "campaign.change", "campaign.clone", "campaign.delete"]


async def test_what_was_started_stays_and_can_be_copied(at: Room, tenant: int) -> None:
    connection = await at.connect(tenant, ["100000000000001"])
    started = await at.started(tenant, connection, expires_at=at.clock.now() + timedelta(hours=1))
    drafts = at.service.drafts
    for verb in (
        drafts.change(tenant, started.campaign_id, CampaignPatch(name="x"), actor="test"),
        drafts.delete(tenant, started.campaign_id, actor="test"),
    ):
        with pytest.raises(Conflict) as refused:
            await verb
        assert refused.value.code == "CAMPAIGN_STATE"
    copy = await drafts.clone(tenant, started.campaign_id, "Again", actor="test")
    assert (copy.name, copy.state, copy.expires_at) == ("Again", "draft", started.expires_at)
    assert copy.scheduled_at is None, "its time is over"


@pytest.mark.parametrize("field", ["frist_name", "attributes.", "", "city", "attributes.NAME.", "contact_id"])
async def test_an_unknown_field_is_refused_by_name(at: Room, tenant: int, field: str) -> None:
    connection = await at.connect(tenant, ["100000000000001"])
    new = NewCampaign("Spring", connection, HELLO, bindings={"body.1": BindingIn(field)})
    if field == "attributes.NAME.":  # any name may be an attribute's
        await at.service.campaigns.create(tenant, new, actor="test")
        return
    with pytest.raises(Invalid) as refused:
        await at.service.campaigns.create(tenant, new, actor="test")
    assert [fault.field for fault in refused.value.faults] == ["bindings.body.1.field"]
    assert repr(field) in refused.value.faults[0].reason


async def test_numbers_beyond_the_hundredth_are_used(at: Room, tenant: int) -> None:
    numbers = [number.id for number in many_numbers(130)]
    connection = await at.connect(tenant, numbers)
    campaign = await at.started(tenant, connection)
    assert campaign.numbers == sorted(numbers)
    await at.service.keeper.begin()
    await at.service.launcher.write(tenant, campaign.campaign_id)
    async with at.database.worker() as tx:
        used = {row["number_id"] for row in await tx.fetch(NUMBERS, tenant)}
    assert len(used & set(sorted(numbers)[100:])) > 20


async def test_a_campaign_begins_with_the_next_sweep_and_not_with_the_next_minute(
    at: Room, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(*_: object) -> None:
        return None

    connection = await at.connect(tenant, ["100000000000001"])
    campaign = await at.started(tenant, connection)
    sweep = MessageSweep(cast(House, SimpleNamespace(messaging=at.service)))
    monkeypatch.setattr(sweep, "rest", at_once)
    await sweep.turn()
    assert await at.state(tenant, campaign.campaign_id) == "running"
    assert (tenant, campaign.campaign_id) not in await at.service.keeper.begin()


async def test_the_rest_of_a_poll_goes_round(at: Room, make_tenant: MakeTenant) -> None:
    """Whoever has few ready is not behind all that another has."""
    owners: dict[uuid.UUID, int] = {}
    tenants = []
    for place, count in enumerate((12, 3)):
        tenant = await make_tenant()
        tenants.append(tenant)
        connection = await at.connect(tenant, [many_numbers(2)[place].id])
        for _ in range(count):
            owners[(await at.started(tenant, connection, content=UsedText("Hi"))).campaign_id] = tenant
    begun = [owners[campaign] for _, campaign in await at.service.keeper.begin() if campaign in owners]
    assert (begun.count(tenants[0]), begun.count(tenants[1])) == (7, 3)
