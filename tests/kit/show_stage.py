"""Two API processes and a worker by the board's clock, and the verbs of a client and of an operator.

The stage has a thread and an event loop of its own: hypothesis drives plain functions, and the processes' output is
read meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import uuid
from collections.abc import Coroutine, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import asyncpg

from handbill.infra.postgres import Database, derive
from handbill.infra.redis import Redis
from handbill.kit.clock import to_ms
from handbill.tenants.model import NewKey
from handbill.tenants.service import TenantService
from tests.kit.hot import UNHURRIED
from tests.kit.processes import Process, free_port, program
from tests.kit.show_board import Board
from tests.kit.waiting import eventually

T = TypeVar("T")
START_MS = to_ms(datetime(2026, 3, 1, 12, tzinfo=UTC))
PROCESSES = (
    ("api", 0),
    ("api", 3_600),
    ("worker", -7_200),
)  # what they are, and by how much their own clocks are wrong


class Shop:
    """A fresh tenant with its keys."""

    def __init__(self, tenant: int, secret: str, write: str) -> None:
        self.tenant, self.secret, self.write = tenant, secret, write
        self.sent = 0  # views accepted, copies too


class Stage:
    def __init__(self, env: Mapping[str, str], postgres_url: str, redis_url: str, home: Path) -> None:
        self.board = Board(home / "board")
        self.board.now_ms = START_MS
        self._home = home
        self._env = dict(env)
        self._postgres_url = postgres_url
        self._redis_url = redis_url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stage", daemon=True)
        self._ports: list[int] = []
        self._open = contextlib.AsyncExitStack()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(300)

    def start(self) -> None:
        self._thread.start()
        self.do(self._start())

    def stop(self) -> None:
        try:
            self.do(self._open.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(60)
            self._loop.close()
            self.board.close()

    async def _start(self) -> None:
        enter = self._open.enter_async_context
        self._client = await enter(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)))
        self.owner = await asyncpg.connect(self._postgres_url)
        self._open.push_async_callback(self.owner.close)
        self._database = Database(derive(self._postgres_url), app_size=2, worker_size=2, direct_size=1, hot=UNHURRIED)
        self._redis = Redis(self._redis_url, timeout=30)
        for part in (self._database, self._redis):
            await part.start()
            self._open.push_async_callback(part.stop)
        self._tenants = TenantService(self._database, self._redis, seal_key=b"s" * 32)
        self._open.push_async_callback(self._tenants.stop)
        started = [await enter(self._process(slot, *each)) for slot, each in enumerate(PROCESSES)]
        for running, (kind, _) in zip(started, PROCESSES, strict=True):
            await running.log(event=f"{kind}-ready", timeout=120)
        self.processes = started

    def _process(self, slot: int, kind: str, skew_s: int) -> contextlib.AbstractAsyncContextManager[Process]:
        port = free_port()
        if kind == "api":
            self._ports.append(port)
        env = {
            **self._env,
            "HANDBILL_API__PORT": str(port),
            "HANDBILL_BANNERS__THROTTLE_PER_MINUTE": "0",
            "HANDBILL_BANNERS__DECISIONS_PER_MINUTE": "0",
            "HANDBILL_LOG__LEVEL": "info",
        }
        args = (kind, "--only", "consume,cron") if kind == "worker" else (kind,)
        board = str(self._home / "board")
        return program(
            sys.executable, "-m", "tests.kit.show_process", board, str(slot), str(skew_s), "--", *args, env=env
        )

    # --- an operator
    async def shop(self) -> Shop:
        name, now = uuid.uuid4(), datetime.now(UTC)
        tenant = await self.owner.fetchval(
            "insert into tenants.tenants (public_id, slug, name, created_at, updated_at)"
            " values ($1, $2, 'Stage', $3, $3) returning tenant_id",
            name, f"t-{name.hex}", now,
        )  # fmt: skip
        await self.owner.execute("insert into tenants.settings (tenant_id, updated_at) values ($1, $2)", tenant, now)
        keys = [NewKey(kind="secret", name="all", scopes=["*"]), NewKey(kind="write", name="w")]
        made = [await self._tenants.create_key(tenant, key, actor="test") for key in keys]
        self.board.tenant = tenant
        return Shop(tenant, made[0].key, made[1].key)

    async def admin(self, shop: Shop, method: str, path: str, body: Any, process: int = 0) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {shop.secret}"}
        async with self._client.request(method, self._url(process, path), json=body, headers=headers) as reply:
            assert reply.status in (200, 201), await reply.text()
            found: dict[str, Any] = await reply.json()
        return found

    async def known(self, shop: Shop) -> None:
        """Until every process has the catalogue as it is now."""
        version = await self.owner.fetchval(
            "select version from banners.catalogue_versions where tenant_id = $1", shop.tenant
        )
        await eventually(
            lambda: all(self.board.version(slot) >= version for slot in range(len(PROCESSES))),
            what="every process has the new catalogue",
        )

    async def drained(self, shop: Shop) -> None:
        """Until everything that was accepted is committed or refused, and Redis knows which."""
        await eventually(lambda: self.board.projected >= shop.sent, what="every accepted view is projected")

    async def forget(self) -> None:
        """Redis loses its caps and the mark that they are whole. A rebuild that is under way must not set the mark."""
        marks = ("hb:caps:{caps}:mark", "hb:caps:{caps}:building")
        await self._redis.call("DEL", *marks)
        async for keys in self._scan(b"hb:c:*"):
            if keys:
                await self._redis.call("DEL", *keys)
        await self._redis.call("DEL", *marks)

    async def _scan(self, pattern: bytes) -> Any:
        cursor: bytes | int = 0
        while True:
            cursor, keys = await self._redis.call("SCAN", cursor, "MATCH", pattern, "COUNT", 1_000)
            yield keys
            if int(cursor) == 0:
                return

    # --- a client
    async def shown(self, shop: Shop, process: int, **query: str | None) -> list[str]:
        """GET /banners."""
        params = {name: value for name, value in query.items() if value is not None}
        headers = {"X-Write-Key": shop.write}
        async with self._client.get(self._url(process, "/banners"), params=params, headers=headers) as reply:
            assert reply.status == 200, await reply.text()
            return list((await reply.json())["banners"])

    async def decide(self, shop: Shop, process: int, body: Mapping[str, Any]) -> dict[str, str]:
        """POST /v1/decide: the tokens of the banners that are to be shown."""
        async with self._client.post(
            self._url(process, "/v1/decide"), json=body, headers={"X-Write-Key": shop.write}
        ) as reply:
            assert reply.status == 200, await reply.text()
            decisions = (await reply.json())["decisions"]
        return {banner["banner_id"]: banner["token"] for each in decisions for banner in each["banners"]}

    async def view(self, shop: Shop, process: int, body: Mapping[str, Any] | list[Mapping[str, Any]]) -> None:
        many = isinstance(body, list)
        path = "/views/batch" if many else "/views"
        async with self._client.post(
            self._url(process, path), json={"events": body} if many else body, headers={"X-Write-Key": shop.write}
        ) as reply:
            assert reply.status == 202, await reply.text()
        shop.sent += len(body) if many else 1

    def _url(self, process: int, path: str) -> str:
        return f"http://127.0.0.1:{self._ports[process]}{path}"
