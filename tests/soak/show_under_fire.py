"""Decisions and views by many users while workers and API processes are killed and connections to Redis are cut.

What must hold: every accepted view is stored once; nobody sees a strict banner more than x times under leases that were
reported in time; when the fire is out, every process shows a soft banner exactly to those who have not reached x; and
the caps that lived through it are those that PostgreSQL gives back to an emptied Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import Counter
from functools import partial
from typing import Any

import aiohttp

from handbill.caps.model import LEASED, State, Subject
from handbill.caps.packed import unpack
from handbill.caps.store import CapsStore
from handbill.infra.postgres import Database
from handbill.infra.postgres.urls import derive
from handbill.infra.redis import Keys, Redis
from handbill.infra.sqlfiles import Sql
from handbill.tenants.model import NewKey, NewTenant
from handbill.tenants.service import TenantService
from tests.kit.processes import free_port, process
from tests.kit.stack import Stack
from tests.kit.waiting import eventually
from tests.soak.context import Context

USERS = 40  # at once
OPENS = 25
X, Y_HOURS, Z_S = 5, 24, 60
LEASE_S = Z_S + 60

_ROWS = Sql(
    "select user_id, banner_id, count(*) as rows, count(distinct event_id) as events from caps.user_views"
    " where tenant_id = $1 group by user_id, banner_id",
    "rows",
    "soak",
)
_IDS = Sql("select id, public_id, name from banners.banners where tenant_id = $1", "ids", "soak")


class Fire:
    def __init__(self, ctx: Context, built: Stack, database: Database, redis: Redis) -> None:
        self.ctx, self.built, self.database, self.redis = ctx, built, database, redis
        self.ports = [free_port(), free_port()]
        self.accepted: dict[str, tuple[str, str]] = {}  # event -> user, banner
        self.timely: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.users: list[str] = []
        self.over = asyncio.Event()

    async def furnish(self) -> None:
        tenants = TenantService(self.database, self.redis, seal_key=b"s" * 32)
        made = await tenants.create_tenant(NewTenant(name="Fire", slug="fire"), actor="soak")
        self.tenant = made.tenant_id
        self.secret = (
            await tenants.create_key(self.tenant, NewKey(kind="secret", name="s", scopes=["*"]), actor="soak")
        ).key
        self.write = (await tenants.create_key(self.tenant, NewKey(kind="write", name="w"), actor="soak")).key
        await tenants.stop()

    # --- requests: a client repeats what had no answer, with the same ids
    async def ask(self, client: aiohttp.ClientSession, method: str, path: str, body: Any = None, **headers: str) -> Any:
        while True:
            port = self.ctx.random.choice(self.ports)
            try:
                async with client.request(
                    method, f"http://127.0.0.1:{port}{path}", json=body, headers=headers
                ) as reply:
                    if reply.status < 500 and reply.status != 429:
                        assert reply.status < 300, await reply.text()
                        return await reply.json()
            except (aiohttp.ClientError, TimeoutError):
                self.counts["unanswered"] += 1
            await asyncio.sleep(0.05)

    async def create(self, client: aiohttp.ClientSession) -> None:
        for mode in ("soft", "strict"):
            body = {"name": mode, "x_times": X, "y_hours": Y_HOURS, "z_duration_sec": Z_S, "cap_mode": mode}
            await self.ask(client, "POST", "/admin/banners", body, Authorization=f"Bearer {self.secret}")
        async with self.database.worker() as tx:
            rows = await tx.fetch(_IDS, self.tenant)
        self.banners = {str(row["public_id"]): (row["id"], row["name"]) for row in rows}

    async def live(self, client: aiohttp.ClientSession, number: int) -> None:
        """Opens the app again and again; reports most of what it is shown, sometimes twice. Then another user comes."""
        chance = self.ctx.random
        headers = {"X-Write-Key": self.write}
        while not self.over.is_set():
            user = f"user-{number}-{len(self.users)}"
            self.users.append(user)
            for _ in range(OPENS):
                begun = time.monotonic()
                found = await self.ask(client, "POST", "/v1/decide", {"user_id": user, "limit": 5}, **headers)
                self.counts["decisions"] += 1
                for shown in found["decisions"][0]["banners"]:
                    if chance.random() < 0.8:  # the others are never reported: their slots come back by themselves
                        await self._report(client, user, shown, begun, headers)
                if self.over.is_set():
                    return
                await asyncio.sleep(chance.uniform(0.02, 0.3))

    async def _report(
        self, client: aiohttp.ClientSession, user: str, shown: Any, begun: float, headers: dict[str, str]
    ) -> None:
        event, banner = uuid.uuid4().hex, shown["banner_id"]
        body = {
            "banner_id": banner, "user_id": user, "event_id": event, "view_duration_ms": 0, "dismissed": True,
            "token": shown["token"],
        }  # fmt: skip
        for _ in range(1 + (self.ctx.random.random() < 0.3)):
            await self.ask(client, "POST", "/views", body, **headers)
        self.accepted[event] = (user, banner)
        if self.banners[banner][1] == "strict" and time.monotonic() - begun < LEASE_S - 5:
            self.timely[user] += 1

    # --- the fire
    async def burn(self, *args: str, port: int | None = None) -> None:
        """One process at a time, killed after a while without warning, and the next one started."""
        settings = {"HANDBILL_API__PORT": str(port)} if port else {}
        env = self.built.env(**settings)
        while not self.over.is_set():
            async with process(*args, env=env) as running:
                await running.log(event=f"{args[0]}-ready", timeout=120)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._end.wait(), self.ctx.random.uniform(4, 15))
                running.kill()
                await running.exit()
                self.counts[f"{args[0]}_kills"] += 1

    async def cut(self) -> None:
        while not self.over.is_set():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._end.wait(), self.ctx.random.uniform(3, 8))
            async with self.redis.connection() as own:
                self.counts["cuts"] += int(await own.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))

    async def rage(self, client: aiohttp.ClientSession) -> None:
        self._end = asyncio.Event()
        fires = [asyncio.create_task(self.burn("api", port=port)) for port in self.ports]
        fires.append(asyncio.create_task(self.burn("worker", "--only", "consume")))
        await self.create(client)
        fires.append(asyncio.create_task(self.cut()))
        users = [asyncio.create_task(self.live(client, n)) for n in range(USERS)]
        await asyncio.wait([*fires, *users], timeout=self.ctx.time_left(), return_when=asyncio.FIRST_EXCEPTION)
        self.over.set()
        await asyncio.gather(*users)  # with the processes still coming and going
        self._end.set()
        await asyncio.gather(*fires)

    # --- afterwards
    async def check(self, client: aiohttp.ClientSession) -> None:
        store = CapsStore(self.redis, Keys())
        first, second = (self.built.env(HANDBILL_API__PORT=str(port)) for port in self.ports)
        async with (
            process("api", env=first) as one,
            process("api", env=second) as two,
            process("worker", "--only", "consume", env=self.built.env()) as worker,
        ):
            await asyncio.gather(
                one.log(event="api-ready"), two.log(event="api-ready"), worker.log(event="worker-ready")
            )
            await eventually(self.stored, timeout=300, what="every accepted view stored once")
            await eventually(partial(self.confirmed, store), timeout=120, what="every view confirmed in its cap")
            await self.shown(client)
            before = await self.kept(store)
            await self.redis.call("FLUSHALL")
            await eventually(store.whole, timeout=120, what="the caps are rebuilt")
            assert await self.kept(store) == before
        assert all(number <= X for number in self.timely.values()), self.timely.most_common(3)

    async def stored(self) -> bool:
        expected = Counter((user, self.banners[banner][0]) for user, banner in self.accepted.values())
        async with self.database.worker() as tx:
            rows = await tx.fetch(_ROWS, self.tenant)
        assert all(row["rows"] == row["events"] for row in rows)
        return {(row["user_id"], row["banner_id"]): row["rows"] for row in rows} == dict(expected)

    async def confirmed(self, store: CapsStore) -> bool:
        values = (await self.kept(store)).values()
        return all(
            seen.state is State.CONFIRMED for scopes in values for kept in scopes.values() for seen in kept.times
        )

    async def shown(self, client: aiohttp.ClientSession) -> None:
        seen = Counter(user for user, banner in self.accepted.values() if self.banners[banner][1] == "soft")
        soft = next(each for each, (_, name) in self.banners.items() if name == "soft")
        for user in self.users:
            for port in self.ports:
                async with client.get(
                    f"http://127.0.0.1:{port}/banners?user_id={user}", headers={"X-Write-Key": self.write}
                ) as reply:
                    assert (soft in (await reply.json())["banners"]) is (seen[user] < X), user

    async def kept(self, store: CapsStore) -> dict[str, dict[int, Any]]:
        """Everybody's times; leases apart, which only Redis knows."""
        values = {user: await store.raw(Subject(self.tenant, user)) for user in self.users}
        return {
            user: {scope: kept for scope, kept in unpack(value).items() if not scope & LEASED}
            for user, value in values.items()
        }


async def run(ctx: Context) -> dict[str, Any]:
    ctx.settings.update(users_at_once=USERS, x=X, y_hours=Y_HOURS, z_s=Z_S, apis=2, workers=1)
    limits = {"HANDBILL_BANNERS__THROTTLE_PER_MINUTE": "0", "HANDBILL_BANNERS__DECISIONS_PER_MINUTE": "0"}
    async with ctx.stack(settings=limits) as built:
        database, redis = Database(derive(built.postgres_url)), Redis(built.redis_url, timeout=10)
        await database.start()
        await redis.start()
        fire = Fire(ctx, built, database, redis)
        try:
            await fire.furnish()
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as client:
                await fire.rage(client)
                ctx.say(f"{len(fire.accepted)} views, {dict(fire.counts)}; checking")
                await fire.check(client)
        finally:
            await redis.stop()
            await database.stop()
    return {
        "users": len(fire.users),
        "views": len(fire.accepted),
        "timely_strict_views": sum(fire.timely.values()),
        "users_at_their_strict_limit": sum(number == X for number in fire.timely.values()),
        **fire.counts,
    }
