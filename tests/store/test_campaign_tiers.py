"""A tenant's tier and speed: changed while it sends, each at its own pace beside the other, as the provider sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from handbill.fake_graph.model import Config
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.messaging.dispatch import TurnPolicy
from handbill.messaging.pacer import Pacer, tenant_pace
from handbill.messaging.service import MessagingPolicy
from handbill.tenants.service import TenantService
from tests.kit.engines import Engines
from tests.kit.graph import graph, many_numbers
from tests.kit.reach import Book, people, room
from tests.kit.waiting import eventually

POLICY = MessagingPolicy(turn=TurnPolicy(standard_per_second=10, enterprise_per_second=50))
MakeTenant = Callable[..., Awaitable[int]]


async def set_tier(database: Database, redis: Redis, tenant: int, tier: Any) -> None:
    tenants = TenantService(database, redis, seal_key=b"s" * 32)
    await tenants.set_tier(tenant, tier, actor="cli")
    await tenants.stop()


async def test_tier_and_speed_count_for_the_next_batch(
    database: Database, redis: Redis, engines: Engines, tenant: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    take = Pacer.take

    async def watched(self: Pacer, *args: Any, per_second: int, tenant_per_second: int) -> Any:
        asked.append(tenant_per_second)
        return await take(self, *args, per_second=per_second, tenant_per_second=tenant_per_second)

    monkeypatch.setattr(Pacer, "take", watched)
    (number,) = many_numbers(1)
    async with (
        graph(Config(numbers=(number,))) as fake,
        room(database, redis, engines.postgres_url, fake.url, Book(people(2)), POLICY) as at,
    ):
        connection = await at.connect(tenant, [number.id], pace=None)

        async def asked_now() -> int:
            campaign = (await at.started(tenant, connection)).campaign_id
            await at.service.keeper.begin()
            await at.service.launcher.write(tenant, campaign)
            await at.service.dispatcher.turn(tenant, number.id, None)
            return asked[-1]

        assert await asked_now() == 10
        await set_tier(database, redis, tenant, "enterprise")
        assert await asked_now() == 50
        await at.service.connections.set_pace(tenant, 25, actor="cli")
        assert await asked_now() == 25
        await at.service.connections.set_pace(tenant, None, actor="cli")
        await set_tier(database, redis, tenant, "standard")
        assert await asked_now() == 10


async def test_an_enterprise_tenant_beside_a_standard_one(
    database: Database, redis: Redis, engines: Engines, make_tenant: MakeTenant
) -> None:
    """Neither is ever ahead of its own pace. `make bench-tiers` measures how near they come to it."""
    large, small = await make_tenant(), await make_tenant()
    await set_tier(database, redis, large, "enterprise")
    numbers = many_numbers(2)
    book = Book()
    book.people = {large: people(60), small: people(15, first=50_000_000)}
    async with (
        graph(Config(numbers=numbers)) as fake,
        room(database, redis, engines.postgres_url, fake.url, book, POLICY) as at,
    ):
        campaigns = {}
        for tenant, number in ((large, numbers[0]), (small, numbers[1])):
            connection = await at.connect(tenant, [number.id], pace=None)
            campaigns[tenant] = (await at.started(tenant, connection)).campaign_id
        start_ms = at.clock.now_ms()
        async with at.running():

            async def are_over() -> bool:
                return {await at.state(tenant, one) for tenant, one in campaigns.items()} == {"completed"}

            await eventually(are_over, what="both campaigns")
        log = await fake.log()
    for number, per_second, count in ((numbers[0], 50, 60), (numbers[1], 10, 15)):
        times = [line["at_ms"] for line in log if line["number"] == number.id]
        assert len(times) == count
        assert is_within(times, start_ms, per_second)


def is_within(times: Sequence[int], start_ms: int, per_second: int) -> bool:
    """Whether no message came before its token: waiting for a slow machine only makes them later."""
    pace = tenant_pace(per_second)
    waits = [max(place - pace.burst + 1, 0) * pace.interval_us / 1000 for place in range(len(times))]
    return all(at >= start_ms + wait - 5 for at, wait in zip(sorted(times), waits, strict=True))
