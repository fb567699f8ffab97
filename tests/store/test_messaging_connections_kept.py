"""Connections: asked about before they are kept, secrets that nobody reads again, numbers and templates in step."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from handbill.fake_graph.model import Config
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.kit.errors import Conflict, HandbillError, NotFound, PreconditionFailed
from handbill.messaging.links import ConnectionPatch, NewConnection
from handbill.messaging.model import Account
from tests.conftest import MakeTenant
from tests.kit import desk
from tests.kit.clocks import FakeClock
from tests.kit.engines import Engines
from tests.kit.graph import NUMBER, WABA, graph, many_numbers
from tests.kit.reach import Room, room

SECOND = str(int(NUMBER) + 1)
THIRD = str(int(NUMBER) + 2)


def new(**parts: object) -> NewConnection:
    given = {
        "name": "Main",
        "waba_id": WABA,
        "numbers": [NUMBER],
        "token": "good-token",
        "app_secret": "the-app-secret",
    }
    return NewConnection(**{**given, **parts})  # type: ignore[arg-type]


async def everything(engines: Engines, tenant: int) -> str:
    """Every row of this tenant in this room and in the audit log, as text; bytes as their letters too."""
    async with desk.owner(engines.postgres_url) as db:
        tables = await db.fetch("select tablename from pg_tables where schemaname = 'messaging'")
        names = [f"messaging.{row['tablename']}" for row in tables] + ["tenants.audit_log"]
        rows: list[str] = []
        for name in names:
            found = await db.fetch(f"select t::text as line from {name} t where tenant_id = $1", tenant)
            rows += [row["line"] for row in found]
    return "\n".join(rows)


async def test_secrets_go_in_and_never_out(engines: Engines, database: Database, redis: Redis, tenant: int) -> None:
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        made = await at.service.connections.connect(tenant, new(), actor="test")
        assert made.webhook == f"/webhooks/whatsapp/{made.connection_id}"
        assert [(one.number_id, one.per_second, one.quality) for one in made.numbers] == [(NUMBER, 80, "GREEN")]
        changed = await at.service.connections.change(
            tenant, made.connection_id, ConnectionPatch(name="Other", token="better-token"), actor="test", version=1
        )
        assert (changed.name, changed.version) == ("Other", 2)
        with pytest.raises(PreconditionFailed):
            await at.service.connections.change(
                tenant, made.connection_id, ConnectionPatch(name="Late"), actor="test", version=1
            )
        safe = at.service.connections._safe
        kept = await safe.credentials(Account(tenant, NUMBER, WABA, str(made.connection_id)))
        assert (kept.token, kept.app_secret, kept.old_app_secret) == ("better-token", "the-app-secret", None)
        text = await everything(engines, tenant)
        assert "Other" in text
        for secret in ("good-token", "better-token", "the-app-secret"):
            assert secret not in text
            assert secret.encode().hex() not in text
            assert secret not in repr(changed) + repr(kept)


async def test_what_the_provider_does_not_know_is_not_kept(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    config = Config(tokens=("good-token",), numbers=many_numbers(2))
    async with graph(config) as fake, room(database, redis, engines.postgres_url, fake.url) as at:
        connections = at.service.connections
        for wrong in (new(token="bad-token"), new(numbers=["999"]), new(waba_id="999")):
            with pytest.raises(HandbillError) as caught:
                await connections.connect(tenant, wrong, actor="test")
            assert caught.value.code in ("PROVIDER_TOKEN", "PROVIDER_REFUSED"), caught.value.detail
        assert (await connections.listed(tenant, None, 10)).items == []

        made = await connections.connect(tenant, new(), actor="test")
        with pytest.raises(HandbillError):
            await connections.change(tenant, made.connection_id, ConnectionPatch(token="bad-token"), actor="test")
        await connections.refresh(tenant, made.connection_id, actor="test")  # the good token is still there
        with pytest.raises(Conflict) as taken:
            await connections.connect(tenant, new(name="Again"), actor="test")
        assert taken.value.code == "NUMBER_TAKEN"
        assert len((await connections.listed(tenant, None, 10)).items) == 1


async def test_numbers_come_go_and_rest(
    engines: Engines, database: Database, redis: Redis, make_tenant: MakeTenant
) -> None:
    tenant, other = await make_tenant(), await make_tenant()
    async with (
        graph(Config(numbers=many_numbers(3))) as fake,
        room(database, redis, engines.postgres_url, fake.url) as at,
    ):
        connections = at.service.connections
        made = (await connections.connect(tenant, new(), actor="test")).connection_id
        both = await connections.add_number(tenant, made, SECOND, actor="test")
        assert [one.number_id for one in both.numbers] == [NUMBER, SECOND]
        with pytest.raises(HandbillError):
            await connections.add_number(tenant, made, "31337", actor="test")
        await desk.draft(at, tenant, made)
        with pytest.raises(Conflict):
            await connections.remove_number(tenant, made, SECOND, actor="test")
        with pytest.raises(Conflict):
            await connections.remove(tenant, made, actor="test")
        async with desk.owner(engines.postgres_url) as db:
            await db.execute(
                "update messaging.numbers set paused_until = 'infinity', pause_reason = 'x' where tenant_id = $1",
                tenant,
            )
        resumed = await connections.resume_number(tenant, made, SECOND, actor="test")
        assert [one.pause_reason for one in resumed.numbers] == ["x", None]

        with pytest.raises(NotFound):
            await connections.read(other, made)
        with pytest.raises(NotFound):
            await connections.change(other, made, ConnectionPatch(name="Mine"), actor="test")
        with pytest.raises(NotFound):
            await connections.resume_number(tenant, made, "\0", actor="test")
        theirs = (await connections.connect(other, new(numbers=[THIRD]), actor="test")).connection_id
        for taken in (
            connections.connect(other, new(), actor="test"),
            connections.add_number(other, theirs, SECOND, actor="test"),
        ):
            with pytest.raises(Conflict) as caught:
                await taken
            assert caught.value.code == "NUMBER_TAKEN"
            assert "yours" not in caught.value.detail
        assert [one.number_id for one in (await connections.read(other, theirs)).numbers] == [THIRD], "nothing was kept"
        await connections.remove(other, theirs, actor="test")
        free = await connections.connect(tenant, new(numbers=[THIRD]), actor="test")  # let go, it is anybody's
        await connections.remove(tenant, free.connection_id, actor="test")
        with pytest.raises(NotFound):
            await at.service.incoming.handshake(uuid4(), {})


async def states(at: Room, tenant: int, connection: UUID) -> dict[str, str]:
    page = await at.service.connections.templates(tenant, connection, None, 100)
    return {one.name: one.state for one in page.items}


async def test_templates_follow_the_provider(engines: Engines, database: Database, redis: Redis, tenant: int) -> None:
    clock = FakeClock()
    async with graph() as fake, room(database, redis, engines.postgres_url, fake.url, clock=clock) as at:
        connections = at.service.connections
        connection = (await connections.connect(tenant, new(), actor="test")).connection_id
        before = await states(at, tenant, connection)
        assert before["hello_world"] == "APPROVED"
        campaign = (await at.started(tenant, connection)).campaign_id
        await fake.control(template={"name": "hello_world", "status": "PAUSED"})
        clock.advance(minutes=5)
        await connections.refresh(tenant, connection, actor="test")
        assert (await states(at, tenant, connection))["hello_world"] == "PAUSED"
        assert (await at.service.campaigns.read(tenant, campaign)).reason == "template_paused"
        clock.advance(minutes=5)
        for name in before:
            await fake("DELETE", f"/v23.0/{WABA}/message_templates", name=name)
        await connections.refresh(tenant, connection, actor="test")
        assert await states(at, tenant, connection) == {}

        made = [f"t{place:02d}" for place in range(7)]
        for name in made:
            body = {"name": name, "language": "en_US", "category": "MARKETING"}
            await fake(
                "POST", f"/v23.0/{WABA}/message_templates", {**body, "components": [{"type": "BODY", "text": "x"}]}
            )
        assert await connections.queue_all() >= 1
        await connections.refresh(tenant, connection, actor="test")
        seen, cursor = [], None
        while True:
            page = await connections.templates(tenant, None, cursor, 3)
            seen += [one.name for one in page.items]
            cursor = page.next
            if cursor is None:
                break
        assert seen == made
