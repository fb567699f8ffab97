"""Messages a second to a fake Graph server that takes 50 ms to answer: the whole way against a bare loop.

The whole way: claim with its checks, template filled in, tokens of number, tenant and pair, attempt committed before
the request is written, the outcome committed after it, turns as jobs through outbox and queue. The bare loop posts the
same bodies with aiohttp and as many requests in flight, and keeps nothing. Both speak to the same server, in turn.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import AbstractAsyncContextManager

import aiohttp
import asyncpg
import msgspec
import uvloop

from benches._bench import Options, Result, alternating, main, require, say
from handbill.fake_graph.model import Config, Faults, Number
from handbill.infra.postgres import Database, derive
from handbill.infra.redis import Redis
from handbill.kit.telemetry import logs
from handbill.messaging.dispatch import TurnPolicy
from handbill.messaging.service import MessagingPolicy
from tests.kit.graph import graph_process, many_numbers
from tests.kit.reach import Book, people, room
from tests.kit.stack import stack

BAR = "ratio >= 0.50, goal 2,000/s"
NUMBERS = 50
LATENCY_MS = 50
IN_FLIGHT = 256
PER_SECOND = 1_000
"""Of each number: far above what one core sends, so that no limit of ours or theirs is what is measured."""


async def body(options: Options) -> Result:
    logs.configure("warning")
    count = options.scaled(30_000, 8_000)
    turns = itertools.count()
    async with stack() as engines, _fake() as url:
        database = Database(derive(engines.postgres_url), app_size=4, worker_size=16, direct_size=2)
        redis = Redis(engines.redis_url)
        await database.start()
        await redis.start()
        try:
            found = await alternating(
                lambda: _campaign(database, redis, engines.postgres_url, url, count, next(turns)),
                lambda: _bare(url, count),
                rounds=1 if options.quick else 3,
            )
        finally:
            await redis.stop()
            await database.stop()
    detail = {"messages": count, "numbers": NUMBERS, "latency_ms": LATENCY_MS, "in_flight": IN_FLIGHT, **found.detail()}
    return Result(found.value, "messages/s", found.limit, detail)


async def _campaign(database: Database, redis: Redis, postgres_url: str, url: str, count: int, turn: int) -> float:
    tenant = await _tenant(postgres_url, turn)
    policy = MessagingPolicy(turn=TurnPolicy(standard_per_second=0))
    book = Book(people(count))
    async with room(database, redis, postgres_url, url, book, policy, connections=IN_FLIGHT) as at:
        connection = await at.connect(tenant, [number.id for number in _numbers()], pace=0)
        campaign = await at.started(tenant, connection)
        await at.service.keeper.poll()
        while not (await at.service.campaigns.read(tenant, campaign.campaign_id)).audience_done:
            await at.service.launcher.write(tenant, campaign.campaign_id)
        began = time.perf_counter()
        async with at.running(concurrency=64, sweep_s=1.0):
            while await at.state(tenant, campaign.campaign_id) != "completed":
                await asyncio.sleep(0.05)
            took = time.perf_counter() - began
        proof = await at.service.campaigns.verify(tenant, campaign.campaign_id)
        require(proof.holds and proof.sent == count, f"everybody was to be reached once: {proof}")
    say(f"campaign {turn}: {count / took:.0f}/s")
    return count / took


async def _bare(url: str, count: int) -> float:
    numbers = [number.id for number in _numbers()]
    left = iter(range(count))
    connector = aiohttp.TCPConnector(limit=IN_FLIGHT)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def lane() -> None:
            for place in left:
                body = msgspec.json.encode(
                    {
                        "messaging_product": "whatsapp",
                        "recipient_type": "individual",
                        "to": f"4916{place:08d}",
                        "type": "template",
                        "template": {"name": "hello_world", "language": {"code": "en_US"}},
                        "biz_opaque_callback_data": f"bare-{place}",
                    }
                )
                headers = {"Authorization": "Bearer good", "Content-Type": "application/json"}
                path = f"{url}/v23.0/{numbers[place % NUMBERS]}/messages"
                async with session.post(path, data=body, headers=headers) as reply:
                    msgspec.json.decode(await reply.read())
                    require(reply.status == 200, f"the fake server answered {reply.status}")

        began = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(IN_FLIGHT)))
        rate = count / (time.perf_counter() - began)
    say(f"bare loop: {rate:.0f}/s")
    return rate


def _numbers() -> tuple[Number, ...]:
    return many_numbers(NUMBERS, per_second=PER_SECOND)


def _fake() -> AbstractAsyncContextManager[str]:
    return graph_process(Config(numbers=_numbers(), pair_burst=1_000_000, faults=Faults(latency_ms=LATENCY_MS)))


async def _tenant(postgres_url: str, turn: int) -> int:
    connection = await asyncpg.connect(postgres_url)
    try:
        made = await connection.fetchval(
            "insert into tenants.tenants (public_id, slug, name, created_at, updated_at)"
            " values (gen_random_uuid(), $1, 'Bench', now(), now()) returning tenant_id",
            f"dispatch-{turn}",
        )
        await connection.execute("insert into tenants.settings (tenant_id, updated_at) values ($1, now())", made)
        return int(made)
    finally:
        await connection.close()


if __name__ == "__main__":
    uvloop.install()  # as every process of ours
    main("dispatch", body)
