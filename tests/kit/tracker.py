"""A tracker as a page has one, and what keeps the processes alive that it talks to while somebody kills them.

The tracker repeats a request with the same ids until it is answered, and only then writes its events into the ledger:
so at the end the ledger holds exactly what the product has promised to count.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from handbill.banners.catalogue import Catalogue
from handbill.events.model import BannerEvent, Click, Impression, View
from handbill.infra.postgres import Database
from handbill.kit.clock import from_ms
from tests.kit import ledger
from tests.kit.ledger import Cell, Ledger, Shop
from tests.kit.processes import process

PHONE = (
    "Mozilla/5.0 (Linux; Android 14; Pixel 8) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0 Mobile Safari/537.36"
)
BOT = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"
PATHS = {
    Impression: "/api/banners/events/impression/batch",
    Click: "/api/banners/events/click/batch",
    View: "/views/batch",
}
AGAIN = (429, 500, 502, 503)


@dataclass(frozen=True)
class Names:
    """What the wire calls a shop's things."""

    banners: Mapping[int, str]
    placements: Mapping[int | None, str]
    write_key: str


def names(catalogue: Catalogue, tenant: int, write_key: str) -> tuple[Shop, Names]:
    shown = catalogue.tenant(tenant)
    shop = Shop(tenant, tuple(banner.id for banner in shown.banners), tuple(shown.placements))
    banners = {banner.id: str(banner.public_id) for banner in shown.banners}
    placements: dict[int | None, str] = {number: str(each.public_id) for number, each in shown.placements.items()}
    return shop, Names(banners, placements, write_key)


def wire(event: BannerEvent, called: Names) -> dict[str, Any]:
    if isinstance(event, View):
        return {
            "banner_id": called.banners[event.banner], "placement_id": called.placements[event.placement],
            "user_id": event.user, "event_id": event.id, "view_duration_ms": event.duration_ms,
            "dismissed": event.dismissed, "device_id": event.device_id, "session_id": event.session,
        }  # fmt: skip
    body = {
        "bannerPublicId": called.banners[event.banner], "placementPublicId": called.placements[event.placement],
        "correlationId": event.id, "userId": event.user, "sessionId": event.session, "pageUrl": event.page,
        "occurredAt": from_ms(event.at).isoformat(),
    }  # fmt: skip
    if isinstance(event, Click):
        body["destinationUrl"] = event.destination
    return {key: value for key, value in body.items() if value is not None}


@dataclass
class Tracker:
    """`pace` is the most events a second over all senders; 0 for as fast as they are answered."""

    url: str
    shops: Sequence[Shop]
    names: Mapping[int, Names]
    dice: random.Random
    size: int = 20
    pace: float = 0.0
    ledger: Ledger = field(default_factory=Ledger)
    answered: int = 0
    requests: int = 0
    repeated: Counter[str] = field(default_factory=Counter)
    """Why requests had to be sent again: a status, or that nobody answered."""
    _made: int = 0

    def part(self, now_ms: int) -> list[BannerEvent]:
        """Events of one request: one tenant, one kind, one user agent."""
        self._made += 1
        shop = self.dice.choice(self.shops)
        made = ledger.events(self.dice, [shop], self.size * 3, now_ms, word=f"p{self._made}-")
        first = made[0]
        alike = [e for e in made if type(e) is type(first) and ("bot" in e.marks) == ("bot" in first.marks)]
        return alike[: self.size]

    async def deliver(self, client: aiohttp.ClientSession, part: Sequence[BannerEvent]) -> None:
        first = part[0]
        called = self.names[first.tenant]
        agent = BOT if "bot" in first.marks else PHONE
        headers = {"User-Agent": agent, "X-Write-Key": called.write_key}
        body = {"events": [wire(event, called) for event in part]}
        while True:
            self.requests += 1
            try:
                async with client.post(self.url + PATHS[type(first)], json=body, headers=headers) as reply:
                    said = await reply.text()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                self.repeated[type(error).__name__] += 1
                await asyncio.sleep(0.05)  # sleeps: a client's patience before it asks again
                continue
            if reply.status == 202:
                assert '"rejected":[]' in said, said[:500]
                self.ledger.note(part)
                self.answered += len(part)
                return
            assert reply.status in AGAIN, f"{reply.status}: {said[:500]}"
            self.repeated[str(reply.status)] += 1
            await asyncio.sleep(0.05)  # sleeps: a client's patience before it asks again

    async def run(self, now_ms: int, stop: asyncio.Event, senders: int = 8) -> None:
        """Until told to stop; every request under way is answered before this returns. One in ten is sent twice."""
        began = asyncio.get_running_loop().time()
        taken = 0

        async def one(client: aiohttp.ClientSession) -> None:
            nonlocal taken
            while not stop.is_set():
                part = self.part(now_ms)
                taken += len(part)
                if self.pace:
                    ahead = taken / self.pace - (asyncio.get_running_loop().time() - began)
                    if ahead > 0:
                        with contextlib.suppress(TimeoutError):
                            await asyncio.wait_for(stop.wait(), ahead)
                await self.deliver(client, part)
                if self.dice.random() < 0.1:
                    await self.deliver(client, part)

        limit = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(timeout=limit) as client, asyncio.TaskGroup() as group:
            for _ in range(senders):
                group.create_task(one(client))


def by_day(cells: Mapping[Cell, int]) -> Counter[Cell]:
    """A view's time is the server's: which quarter of an hour it fell into is not ours to say. All else is exact."""
    found: Counter[Cell] = Counter()
    for (tenant, banner, placement, campaign, bucket, figure), number in cells.items():
        quarter = bucket.replace(year=2000, month=1, day=1, hour=0, minute=0)
        exact = figure in ("impressions", "clicks", "marked_impressions", "marked_clicks")
        found[(tenant, banner, placement, campaign, bucket if exact else quarter, figure)] += number
    return found


async def check(database: Database, book: Ledger) -> bool:
    """By banner, placement, bucket and figure; by row; by user's total. True, for whoever waits for it."""
    found = by_day(await ledger.counted(database, book.tenants()))
    wanted = by_day(book.cells)
    wrong = {cell: (found[cell], wanted[cell]) for cell in found.keys() | wanted.keys() if found[cell] != wanted[cell]}
    assert not wrong, f"{len(wrong)} cells differ (found, answered): {dict(list(wrong.items())[:5])}"
    async with database.worker() as tx:
        rows = {(row["tenant_id"], row["kind"]): row["n"] for row in await tx.fetch(ledger.ROWS, book.tenants())}
        totals = {tuple(row)[:3]: row["total"] for row in await tx.fetch(ledger.TOTALS, book.tenants())}
    assert rows == dict(book.rows)
    assert totals == dict(book.seen)
    return True


class Undying:
    """A process that is started again whenever it was killed; `strike` kills it with SIGKILL."""

    def __init__(self, *args: str, env: Mapping[str, str], ready: str) -> None:
        self._args, self._env, self._ready = args, env, ready
        self._strike = asyncio.Event()
        self._up = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.kills = 0

    @contextlib.asynccontextmanager
    async def alive(self) -> AsyncIterator[Undying]:
        self._task = asyncio.create_task(self._run())
        try:
            await self.up()
            yield self
        finally:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def up(self) -> None:
        """Wait until it is ready; if it cannot start, say why."""
        assert self._task is not None
        waiting = asyncio.create_task(self._up.wait())
        await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED, timeout=120)
        waiting.cancel()
        if self._task.done():
            self._task.result()
        assert self._up.is_set(), f"{self._args} is not ready after two minutes"

    async def strike(self) -> None:
        """Kill it as soon as it is up, and return at once: it comes back by itself."""
        await self.up()
        self._up.clear()
        self._strike.set()

    async def _run(self) -> None:
        while True:
            async with process(*self._args, env=self._env) as running:
                await running.log(event=self._ready)
                self._up.set()
                struck = asyncio.create_task(self._strike.wait())
                ended = asyncio.create_task(running.child.wait())
                try:
                    await asyncio.wait([struck, ended], return_when=asyncio.FIRST_COMPLETED)
                    assert struck.done(), f"{self._args} ended by itself\n{running.tail()}"
                finally:
                    for task in (struck, ended):
                        task.cancel()
                running.kill()
                await running.exit()
            self._strike.clear()
            self.kills += 1
