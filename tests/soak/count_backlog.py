"""PostgreSQL is down and 200,000 events come in: all are taken, the caps hold, and afterwards all are counted."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import aiohttp

from handbill.events.model import View
from handbill.infra.embedded.postgres import start_postgres
from handbill.infra.migrations import migrate
from handbill.kit.clock import SystemClock
from tests.kit.processes import free_port
from tests.kit.tracker import PHONE, Tracker, Undying
from tests.soak.context import Context
from tests.soak.count_under_fire import a_tracker, adapters, drained, exact

BACKLOG = 200_000


async def shown(client: aiohttp.ClientSession, sending: Tracker, tenant: int) -> list[str]:
    headers = {"X-Write-Key": sending.names[tenant].write_key, "User-Agent": PHONE}
    async with client.get(f"{sending.url}/banners", params={"user_id": "grace"}, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        found: list[str] = (await reply.json())["banners"]
        return found


async def warm(sending: Tracker) -> None:
    """An api that has served before knows its tenants' keys."""
    async with aiohttp.ClientSession() as client:
        for shop in sending.shops:
            await shown(client, sending, shop.tenant)


async def capped(sending: Tracker) -> None:
    """Two views close a banner's cap though nothing can be committed."""
    tenant = sending.shops[0].tenant
    headers = {"X-Write-Key": sending.names[tenant].write_key, "User-Agent": PHONE}
    async with aiohttp.ClientSession() as client:
        banner = (await shown(client, sending, tenant))[0]
        for number in range(2):
            body = {"banner_id": banner, "user_id": "grace", "event_id": f"g{number}", "view_duration_ms": 0}
            async with client.post(f"{sending.url}/views", json={**body, "dismissed": True}, headers=headers) as reply:
                assert reply.status == 202, await reply.text()
        assert banner not in await shown(client, sending, tenant)
    internal = {public: number for number, public in sending.names[tenant].banners.items()}[banner]
    now = SystemClock().now_ms()
    sending.ledger.note([View(tenant, f"g{n}", now, now, internal, user="grace", dismissed=True) for n in range(2)])


async def run(ctx: Context) -> dict[str, Any]:
    port = free_port()
    env = {"HANDBILL_API__PORT": str(port), "HANDBILL_BANNERS__THROTTLE_PER_MINUTE": "0"}
    ctx.settings.update(backlog=BACKLOG)
    async with ctx.stack(postgres=False) as built:
        engine = await start_postgres(built.home / "engines")
        built.postgres_url = engine.url
        own_port = int(engine.url.rpartition(":")[2].partition("/")[0])
        await migrate(engine.url)
        try:
            async with adapters(engine.url, built.redis_url) as (database, redis):
                sending = await a_tracker(ctx, database, redis, port)
                sending.size = 300
                api = Undying("api", env=built.env(**env), ready="api-ready")
                worker = Undying("worker", "--only", "consume", env=built.env(**env), ready="worker-ready")
                async with api.alive(), worker.alive():
                    await warm(sending)
                    os.kill(engine.pid, signal.SIGKILL)
                    await engine.wait()
                    ctx.say("PostgreSQL is down; events come in")
                    stop = asyncio.Event()
                    load = asyncio.create_task(sending.run(SystemClock().now_ms(), stop))
                    while sending.answered < BACKLOG and not load.done():
                        await asyncio.sleep(0.1)
                    stop.set()
                    await load
                    await capped(sending)
                    ctx.say(f"{sending.answered:,} answered; PostgreSQL comes back")
                    engine = await start_postgres(built.home / "engines", port=own_port)
                    await drained(database, redis)
                    found = await exact(database, sending)
        finally:
            await engine.stop()
    return {**found, "events_answered": sending.answered}
