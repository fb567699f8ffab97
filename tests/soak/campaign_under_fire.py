"""A campaign of 100,000 against a provider that loses answers, while workers are killed and Redis is wiped.

At the end nobody was written to twice, everybody has exactly one outcome, and no more is unknown than was in flight at
the kills or lost by the provider; its own log says that no number, pair or portfolio went too fast or too far. PEOPLE
in the environment makes it smaller.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import UUID

import aiohttp
import asyncpg
import msgspec

from handbill.fake_graph.model import PORTFOLIO, Config, Faults
from handbill.infra.sqlfiles import Sql
from handbill.messaging.links import NewConnection
from handbill.messaging.plan import NewCampaign, UsedTemplate
from handbill.messaging.service import KeeperPolicy, MessagingService
from handbill.settings import load
from handbill.wiring import messaging
from handbill.wiring.house import House
from tests.kit.graph import WABA, graph_process, many_numbers
from tests.kit.processes import Process, process
from tests.kit.reach import SECRET, Book, free_numbers, people
from tests.kit.waiting import eventually
from tests.soak.context import Context

NUMBERS = 20
WORKERS = 2
FAULTS = Faults(
    latency_ms=50, jitter_ms=50, lost_answer=0.002, dropped=0.001, bare_5xx=0.001, bare_5xx_taken=0.001,
    graph_5xx=0.005, throttled=0.002, codes={"131026": 0.005, "130472": 0.002},
)  # fmt: skip
_SENDING = Sql("select count(*)::int from messaging.messages where tenant_id = $1 and state = 'sending'", "sending")
_OPEN = Sql(
    "select count(*)::int from messaging.messages where tenant_id = $1 and state in ('pending', 'claimed', 'sending')",
    "open_messages",
)


class Fire:
    def __init__(self, ctx: Context, house: House, room: MessagingService, tenant: int, env: dict[str, str]) -> None:
        self.ctx, self.house, self.room, self.tenant, self.env = ctx, house, room, tenant, env
        self.kills = 0
        self.in_flight = 0
        self.wipes = 0

    async def count(self, statement: Sql) -> int:
        async with self.house.database.worker() as tx:
            return int(await tx.fetchval(statement, self.tenant))

    async def burn(self, audience: int) -> None:
        """Both workers at once, then death for both; what was being written then is what may be unknown."""
        while (left := await self.count(_OPEN)) > audience * 0.05:
            async with self._worker() as one, self._worker() as other:
                await self._live((one, other))
            self.kills += 2
            self.in_flight += await self.count(_SENDING)
            self.room.keeper.policy = KeeperPolicy(claim_s=0, answer_s=0)
            await self.room.keeper.sweep()
            self.ctx.say(f"{left} were open; {self.kills} kills, {self.in_flight} in flight at them")
            if self.wipes == 0 and left < audience * 0.6:
                await self.house.redis.call("FLUSHALL")
                self.wipes += 1

    def _worker(self) -> AbstractAsyncContextManager[Process]:
        return process("worker", "--only", "relay,jobs,cron", env=self.env)

    async def _live(self, workers: tuple[Process, ...]) -> None:
        for worker in workers:
            await worker.log(event="worker-ready")
        await asyncio.sleep(self.ctx.random.uniform(5, 20))
        for worker in workers:
            worker.kill()
        for worker in workers:
            await worker.exit()


async def run(ctx: Context) -> dict[str, Any]:
    audience = int(os.environ.get("PEOPLE", "100000"))
    ctx.settings.update(people=audience, numbers=NUMBERS, workers=WORKERS, faults=msgspec.to_builtins(FAULTS))
    config = Config(seed=ctx.seed, numbers=many_numbers(NUMBERS), tiers={PORTFOLIO: 100_000}, faults=FAULTS)
    async with ctx.stack() as built, graph_process(config) as url:
        await free_numbers(built.postgres_url)
        env = built.env(
            HANDBILL_TENANTS__SEAL_KEY="a seal key for soaks",
            HANDBILL_MESSAGING__GRAPH_URL=url,
            HANDBILL_MESSAGING__CLAIM_S="3",
            HANDBILL_MESSAGING__LEASE_S="5",
            HANDBILL_MESSAGING__UNANSWERED_S="120",
            HANDBILL_MESSAGING__NUMBER_PAUSE_S="2",
            HANDBILL_JOBS__SWEEP_GRACE_S="5",
        )
        house = House(load(env))
        await house.start("tool")
        try:
            tenant = await _tenant(built.postgres_url)
            room = messaging.service(house, Book(people(audience)))
            campaign = await _begun(room, tenant)
            fire = Fire(ctx, house, room, tenant, env)
            await fire.burn(audience)
            async with process("worker", "--only", "relay,jobs,cron", env=env):

                async def dealt_with() -> bool:
                    return await fire.count(_OPEN) == 0

                await eventually(dealt_with, timeout=900)
            await room.keeper.finish(tenant)
            proof = await room.campaigns.verify(tenant, campaign)
            audit = await _audit(url)
            await room.stop()
        finally:
            await house.stop()
    assert proof.holds, proof.faults
    assert proof.sent + proof.failed + proof.skipped + proof.unknown == proof.audience == audience
    assert audit["twice"] == 0, audit["twice_examples"]
    assert proof.unknown <= fire.in_flight + audit["silent"]
    assert max(audit["most_in_a_second"].values()) <= 80
    assert audit["most_to_one_person"] <= 1
    assert audit["most_people_in_a_day"][PORTFOLIO] <= 100_000
    return {
        "audience": proof.audience, "sent": proof.sent, "failed": proof.failed, "skipped": proof.skipped,
        "unknown": proof.unknown, "in_flight_at_kills": fire.in_flight, "answers_lost": audit["silent"],
        "worker_kills": fire.kills, "redis_wipes": fire.wipes, "taken": audit["taken"], "twice": audit["twice"],
        "fullest_second": max(audit["most_in_a_second"].values()), "refused": audit["refused"],
    }  # fmt: skip


async def _begun(room: MessagingService, tenant: int) -> UUID:
    numbers = [number.id for number in many_numbers(NUMBERS)]
    made = await room.connections.connect(tenant, NewConnection("Main", WABA, numbers, "good", SECRET), actor="soak")
    await room.connections.set_pace(tenant, 0, actor="soak")
    new = NewCampaign("Fire", made.connection_id, UsedTemplate("hello_world", "en_US"), purpose="utility")
    campaign = (await room.campaigns.create(tenant, new, actor="soak")).campaign_id
    await room.campaigns.start(tenant, campaign, at=None, actor="soak")
    await room.keeper.poll()
    while not (await room.campaigns.read(tenant, campaign)).audience_done:
        await room.launcher.write(tenant, campaign)
    return campaign


async def _audit(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as client, client.get(url + "/_audit") as reply:
        return dict(await reply.json())


async def _tenant(postgres_url: str) -> int:
    connection = await asyncpg.connect(postgres_url)
    try:
        made = await connection.fetchval(
            "insert into tenants.tenants (public_id, slug, name, created_at, updated_at)"
            " values (gen_random_uuid(), 'soak', 'Soak', now(), now()) returning tenant_id"
        )
        await connection.execute("insert into tenants.settings (tenant_id, updated_at) values ($1, now())", made)
        return int(made)
    finally:
        await connection.close()
