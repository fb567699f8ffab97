"""An enterprise tenant (50 a second) beside standard ones (10), as the provider sees them.

`value` is what the enterprise tenant sustains from its first message to its last, `limit` what its tier allows. The
detail has the same of the standard tenants, and of everybody the fullest second, wherever it begins.
"""

from __future__ import annotations

import asyncio

import aiohttp
import asyncpg
import msgspec
import uvloop

from benches._bench import Options, Result, main, require
from handbill.fake_graph.model import Config, Faults, Logged
from handbill.infra.postgres import Database, derive
from handbill.infra.redis import Redis
from handbill.kit.telemetry import logs
from handbill.messaging.dispatch import TurnPolicy
from handbill.messaging.service import MessagingPolicy
from tests.kit.graph import graph_process, many_numbers
from tests.kit.reach import Book, people, room
from tests.kit.stack import stack

BAR = "ratio >= 0.90"
STANDARD, ENTERPRISE = 10, 50
LATENCY_MS = 100
NEIGHBOURS = 3


async def body(options: Options) -> Result:
    logs.configure("warning")
    seconds = options.scaled(60, 10)
    numbers = many_numbers(1 + NEIGHBOURS)
    tiers = ["enterprise"] + ["standard"] * NEIGHBOURS
    rates = [ENTERPRISE] + [STANDARD] * NEIGHBOURS
    config = Config(numbers=numbers, faults=Faults(latency_ms=LATENCY_MS))
    async with stack() as engines, graph_process(config) as url:
        database = Database(derive(engines.postgres_url), app_size=4, worker_size=8, direct_size=2)
        redis = Redis(engines.redis_url)
        await database.start()
        await redis.start()
        try:
            tenants = [await _tenant(engines.postgres_url, place, tier) for place, tier in enumerate(tiers)]
            book = Book()
            for place, (tenant, rate) in enumerate(zip(tenants, rates, strict=True)):
                book.people[tenant] = people(rate * seconds, first=place * 1_000_000)
            policy = MessagingPolicy(turn=TurnPolicy(standard_per_second=STANDARD, enterprise_per_second=ENTERPRISE))
            async with room(database, redis, engines.postgres_url, url, book, policy) as at:
                campaigns = {}
                for tenant, number in zip(tenants, numbers, strict=True):
                    connection = await at.connect(tenant, [number.id], pace=None)
                    campaigns[tenant] = (await at.started(tenant, connection)).campaign_id
                async with at.running():
                    for tenant, campaign in campaigns.items():
                        while await at.state(tenant, campaign) != "completed":
                            await asyncio.sleep(0.1)
            times = await _times(url)
        finally:
            await redis.stop()
            await database.stop()
    found = [sorted(times[number.id]) for number in numbers]
    require([len(one) for one in found] == [rate * seconds for rate in rates], "everybody was to be reached once")
    sustained = [(len(one) - 1) * 1000 / (one[-1] - one[0]) for one in found]
    fullest = [_fullest_second(one) for one in found]
    detail = {
        "seconds": seconds, "tiers": rates, "sustained": [round(one, 2) for one in sustained],
        "fullest_second": fullest, "latency_ms": LATENCY_MS,
    }  # fmt: skip
    return Result(sustained[0], "messages/s", ENTERPRISE, detail)


def _fullest_second(times: list[int]) -> int:
    first = most = 0
    for place, at in enumerate(times):
        while times[first] <= at - 1000:
            first += 1
        most = max(most, place - first + 1)
    return most


async def _times(url: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    async with aiohttp.ClientSession() as session, session.get(f"{url}/_log?after=0") as reply:
        async for line in reply.content:
            logged = msgspec.json.decode(line, type=Logged)
            found.setdefault(logged.number, []).append(logged.at_ms)
    return found


async def _tenant(postgres_url: str, place: int, tier: str) -> int:
    connection = await asyncpg.connect(postgres_url)
    try:
        made = await connection.fetchval(
            "insert into tenants.tenants (public_id, slug, name, tier, created_at, updated_at)"
            " values (gen_random_uuid(), $1, 'Bench', $2, now(), now()) returning tenant_id",
            f"tiers-{place}", tier,
        )  # fmt: skip
        await connection.execute("insert into tenants.settings (tenant_id, updated_at) values ($1, now())", made)
        return int(made)
    finally:
        await connection.close()


if __name__ == "__main__":
    uvloop.install()  # as every process of ours
    main("tiers", body)
