"""PostgreSQL is frozen: connections stay open and nothing is answered. Who waits, for how long, and what is given."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

import pytest

from handbill.banners.catalogue import Catalogue, Found
from handbill.caps.model import By, Limits, Rule, Window
from handbill.caps.service import CapsService
from handbill.infra.postgres import Database, HotTimeouts, PostgresAway, derive
from handbill.infra.redis import Redis
from handbill.kit.retry import Retry
from handbill.kit.telemetry import metrics
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.kit.clocks import FakeClock
from tests.kit.engines import Engines
from tests.kit.hot import UNHURRIED
from tests.kit.proxy import Proxy, proxy
from tests.kit.show_caps import HOUR, CapsHouse, FakeBook
from tests.kit.waiting import eventually, soon
from tests.store.tenants_room import ACTOR, service

FOR_EVER = HotTimeouts(fallback_s=1e6, lookup_s=1e6)
SHORT = HotTimeouts(fallback_s=0.01, lookup_s=0.02)


@dataclass
class Line:
    """A database that can be frozen, and how long hot look-ups wait for it from then on."""

    net: Proxy
    database: Database

    def freeze(self, timeouts: HotTimeouts) -> None:
        self.database.hot._timeouts = timeouts
        self.net.freeze()

    def thaw(self) -> None:
        self.database.hot._timeouts = UNHURRIED
        self.net.thaw()

    async def is_answering(self) -> bool:
        return self.database.hot._unanswered_since is None


@pytest.fixture
async def line(engines: Engines) -> AsyncIterator[Line]:
    async with proxy(engines.postgres_url) as (net, url):
        database = Database(derive(url), hot=UNHURRIED, acquire_timeout_ms=20_000, policy=Retry(tries=1, delay_ms=1))
        await database.start()
        try:
            yield Line(net, database)
        finally:
            net.thaw()
            await database.stop()


@dataclass
class TenantSetup:
    """Tenants on that database, with a clock that the test moves."""

    tenants: TenantService
    clock: FakeClock
    tenant: int

    async def key(self, kind: str = "write", **more: object) -> str:
        scopes = ["audit:read"] if kind == "secret" else []
        new = NewKey(kind=kind, name="k", scopes=scopes, **more)  # type: ignore[arg-type]
        return (await self.tenants.create_key(self.tenant, new, actor=ACTOR)).key


@pytest.fixture
async def setup(line: Line, redis: Redis, tenant: int) -> AsyncIterator[TenantSetup]:
    clock = FakeClock()
    tenants = service(line.database, redis, clock)
    yield TenantSetup(tenants, clock, tenant)
    await tenants.stop()


def lookups(outcome: str) -> float:
    return float(metrics.PG_HOT_LOOKUPS.labels(outcome)._value.get())


async def test_a_write_key_and_its_tenant_are_given_at_once_and_fetched_in_the_background(
    line: Line, setup: TenantSetup
) -> None:
    directory, key = setup.tenants.directory, await setup.key()
    assert await directory.write_key(key)
    assert (await directory.profile(setup.tenant)).tenant.tenant_id == setup.tenant
    for _ in range(2):
        setup.clock.advance(seconds=29)  # of the thirty in which nobody waits
        line.freeze(FOR_EVER)  # whoever waits, waits for ever
        for _ in range(20):
            assert await soon(directory.write_key(key)), "without waiting"
            assert await soon(directory.profile(setup.tenant)) is not None
        assert len(line.database.hot._running) == 2, "one look-up of the key and one of the tenant, however many ask"
        line.thaw()
        await eventually(lambda: not line.database.hot._running)


async def test_an_old_answer_waits_for_the_timeout_once_and_is_used_for_ten_minutes(
    line: Line, setup: TenantSetup
) -> None:
    directory = setup.tenants.directory
    write, secret, unseen = await setup.key(), await setup.key("secret"), await setup.key()
    assert await directory.write_key(write)
    assert await directory.secret_key(secret)
    await directory.profile(setup.tenant)
    setup.clock.advance(minutes=5)
    line.freeze(SHORT)
    for _ in range(3):
        assert await soon(directory.secret_key(secret))
        assert await soon(directory.write_key(write))
        assert await soon(directory.profile(setup.tenant)) is not None
        with pytest.raises(PostgresAway) as away:
            await soon(directory.write_key(unseen))
        assert (away.value.status, away.value.retry_after) == (503, 1.0)
    waited, refused = lookups("timed_out"), lookups("refused")
    for _ in range(50):
        assert await directory.write_key(write)
        assert await directory.secret_key(secret)
        assert await directory.profile(setup.tenant) is not None
        with pytest.raises(PostgresAway):
            await directory.write_key(unseen)
    assert lookups("timed_out") == waited, "nobody waits any more"
    assert lookups("refused") == refused + 50, "nobody asks any more"
    setup.clock.advance(minutes=6)
    for old in (directory.write_key(write), directory.secret_key(secret), directory.profile(setup.tenant)):
        with pytest.raises(PostgresAway):
            await old
    line.thaw()
    await eventually(line.is_answering)
    assert await directory.write_key(unseen), "it answers again, and is asked again"
    assert await directory.write_key(write)


async def test_a_write_key_that_is_known_brings_its_tenant_along(line: Line, setup: TenantSetup) -> None:
    directory, key = setup.tenants.directory, await setup.key()
    for _ in range(2):
        assert await directory.write_key(key)
        await eventually(lambda: not directory._flights)
        setup.clock.advance(minutes=9)
    assert await directory.write_key(key), "nobody has asked for its tenant so far"
    await eventually(lambda: not directory._flights)
    line.freeze(SHORT)
    setup.clock.advance(minutes=9)
    assert (await soon(directory.profile(setup.tenant))).tenant.tenant_id == setup.tenant


@pytest.mark.parametrize("kind", ["write", "secret"])
async def test_a_key_is_never_used_past_its_end(line: Line, setup: TenantSetup, kind: str) -> None:
    directory = setup.tenants.directory
    key = await setup.key(kind, expires_at=setup.clock.now() + timedelta(seconds=60))
    ask = directory.write_key if kind == "write" else directory.secret_key
    assert await ask(key)
    line.freeze(SHORT)
    setup.clock.advance(ms=59_999)
    assert await soon(ask(key))
    setup.clock.advance(ms=1)
    with pytest.raises(PostgresAway):
        await soon(ask(key))


async def test_a_revoked_key_is_refused_when_the_message_was_lost(line: Line, setup: TenantSetup, redis: Redis) -> None:
    directory, other = setup.tenants.directory, service(line.database, redis, setup.clock)
    key = await setup.key()
    assert await directory.write_key(key)
    (row,) = await setup.tenants.list_keys(setup.tenant)
    await other.revoke_key(setup.tenant, row.key_id, actor=ACTOR)  # this directory listens to nobody
    setup.clock.advance(seconds=6)
    assert await directory.write_key(key), "the first to ask gets the old answer"
    await eventually(lambda: not directory._flights)
    assert await directory.write_key(key) is None
    await other.stop()


async def test_after_a_gap_known_keys_are_given_while_postgresql_is_silent(line: Line, setup: TenantSetup) -> None:
    directory = setup.tenants.directory
    write, secret, unseen = await setup.key(), await setup.key("secret"), await setup.key()
    assert await directory.write_key(write)
    assert await directory.secret_key(secret)
    await directory.profile(setup.tenant)
    await eventually(lambda: not directory._flights)
    line.freeze(SHORT)
    directory.on_change("", b"")  # Redis was away for a moment
    for _ in range(2):
        assert await soon(directory.write_key(write))
        assert await soon(directory.secret_key(secret))
        assert (await soon(directory.profile(setup.tenant))).tenant.tenant_id == setup.tenant
        with pytest.raises(PostgresAway):
            await soon(directory.write_key(unseen))
    setup.clock.advance(minutes=11)
    with pytest.raises(PostgresAway):
        await soon(directory.write_key(write))


@pytest.mark.parametrize("kind", ["write", "secret"])
async def test_a_key_revoked_during_a_gap_is_refused_as_soon_as_postgresql_answers(
    line: Line, setup: TenantSetup, redis: Redis, kind: str
) -> None:
    directory, other = setup.tenants.directory, service(line.database, redis, setup.clock)
    revoked, kept = await setup.key(kind), await setup.key(kind)
    ask = directory.write_key if kind == "write" else directory.secret_key
    assert await ask(revoked)
    assert await ask(kept)
    row = next(row for row in await setup.tenants.list_keys(setup.tenant) if revoked.endswith(row.hint[-4:]))
    await other.revoke_key(setup.tenant, row.key_id, actor=ACTOR)  # this directory listens to nobody
    assert await ask(revoked), "nothing was told so far"
    directory.on_change("", b"")
    line.freeze(SHORT)
    assert await soon(ask(kept))
    line.thaw()
    await eventually(line.is_answering)
    assert await ask(revoked) is None, "not even the first to ask gets the old answer"
    assert await ask(kept)
    await other.stop()


async def test_a_suspension_during_a_gap_is_seen_by_the_first_to_ask(
    line: Line, setup: TenantSetup, redis: Redis
) -> None:
    directory, other = setup.tenants.directory, service(line.database, redis, setup.clock)
    assert (await directory.profile(setup.tenant)).tenant.status == "active"
    await other.suspend(setup.tenant, actor=ACTOR)
    assert (await directory.profile(setup.tenant)).tenant.status == "active"
    directory.on_change("", b"")
    assert (await directory.profile(setup.tenant)).tenant.status == "suspended"
    await other.stop()


async def test_a_listener_that_never_speaks_is_given_up_in_time(redis: Redis, tenant: int) -> None:
    """No greeting at all: a port that somebody listens on."""
    accepted: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: accepted.append(writer), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    database = Database(derive(f"postgresql://o:p@127.0.0.1:{port}/x?sslmode=disable"), hot=SHORT)
    await database.start()
    tenants = service(database, redis)
    catalogue = Catalogue(database, redis, FakeClock())
    waited = lookups("timed_out")
    try:
        for _ in range(20):
            with pytest.raises(PostgresAway):
                await soon(tenants.directory.profile(tenant))
            with pytest.raises(PostgresAway):
                await soon(catalogue.find("banner", uuid4()))
            with pytest.raises(PostgresAway):
                await soon(catalogue.banner(Found(tenant, 1)))
        assert lookups("timed_out") == waited + 1, "nobody else queues behind it"
    finally:
        await tenants.stop()
        await database.stop()
        for writer in accepted:
            writer.close()
        server.close()


@pytest.fixture
def caps_setup(line: Line, redis: Redis, tenant: int, unique: Callable[[str], str]) -> CapsHouse:
    book = FakeBook(b7=Limits((Window(2, 24 * HOUR),)))
    return CapsHouse(redis, line.database, tenant, unique("caps"), book)


async def test_caps_that_redis_cannot_vouch_for_are_given_unsure(line: Line, caps_setup: CapsHouse) -> None:
    await caps_setup.accept(caps_setup.view("a"))
    line.freeze(SHORT)
    waited = lookups("timed_out")
    for _ in range(20):  # no mark of a whole store: PostgreSQL would be asked
        caps = await soon(caps_setup.caps.look(caps_setup.viewer()))
        assert not caps.sure
        assert caps.seen(By.USER, 7) == 1, "what Redis knows"
    assert lookups("timed_out") == waited + 1
    full = [Rule(By.USER, 7, Limits((Window(1, 24 * HOUR),)))]
    assert not caps.free(full, caps_setup.clock.now_ms())
    with pytest.raises(PostgresAway):
        await soon(caps_setup.caps.completed(caps_setup.viewer(), (By.USER,), caps))
    line.thaw()
    await eventually(line.is_answering)
    assert (await caps_setup.caps.look(caps_setup.viewer())).sure


async def test_both_engines_silent_is_busy_within_the_timeout(line: Line, caps_setup: CapsHouse) -> None:
    alone = CapsService(Redis("redis://127.0.0.1:1/0"), line.database, caps_setup.book, caps_setup.clock)
    await alone.look(caps_setup.viewer())
    line.freeze(SHORT)
    for _ in range(20):
        with pytest.raises(PostgresAway):
            await soon(alone.look(caps_setup.viewer()))
