"""Banner events a second from the journal into PostgreSQL, with one SIGKILL of a worker in every round.

Two workers share the lanes; one of them is killed a third of the way, another takes its place. The limit is the same
rows, decoded beforehand, through a bare keyed insert on one connection. Afterwards: how long an accepted event takes
until a reader can see it, at a steady load.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import statistics
import time
from collections.abc import Sequence

import asyncpg

from benches._bench import Options, Result, alternating, main, require, rounded, say
from benches._count_bare import Bare, batches
from benches._shop import house, shops
from handbill.events.model import BannerEvent, Click, Impression, View, encode, key, sender
from handbill.kit.errors import HandbillError
from handbill.wiring.house import House, postgres_urls
from tests.kit.ledger import Ledger, check
from tests.kit.processes import Process
from tests.kit.stack import Stack, stack

BAR = "ratio >= 0.50, goal 40k/s"
ENTRY = 500
COPIES = 0.02
PATIENCE_S = 600.0

_word = itertools.count()


class Tenants:
    """Whose events are made: numbers as the catalogue has them."""

    def __init__(self, built: House, numbers: Sequence[int]) -> None:
        self.shops = []
        for number in numbers:
            shown = built.catalogue.tenant(number)
            self.shops.append((number, list(shown.by_id), list(shown.placements), list(shown.campaigns)))

    def events(self, dice: random.Random, number: int, now_ms: int) -> list[BannerEvent]:
        """85 % impressions, 5 % clicks, 10 % views, of the last hour; 2 % are copies of one before."""
        word = f"01j9x-{next(_word)}"
        made: list[BannerEvent] = []
        for n in range(number):
            if made and dice.random() < COPIES:
                made.append(dice.choice(made[-20_000:]))
                continue
            tenant, banners, placements, campaigns = self.shops[n % len(self.shops)]
            kind = dice.random()
            head = (
                tenant, f"{word}-{n:08d}", now_ms - dice.randrange(3_600_000), now_ms, dice.choice(banners),
                placements[0], campaigns[0], f"user-{dice.randrange(50_000)}", f"sess-{n % 20_000}", "mobile", "DE",
                "https://shop.example/spring/shoes?page=2", (),
            )  # fmt: skip
            if kind < 0.85:
                made.append(Impression(*head, referrer="https://search.example/"))
            elif kind < 0.90:
                made.append(Click(*head, destination="https://shop.example/shoes/7"))
            else:
                made.append(View(*head, device_id="d", duration_ms=4_000))
        return made


async def put(built: House, events: Sequence[BannerEvent]) -> None:
    """Into the journal, as the edge packs them, without its HTTP."""
    by_lane: dict[str, list[bytes]] = {}
    for event in events:
        by_lane.setdefault(built.lanes.lane_for(event.tenant, sender(event)), []).append(encode(event))

    async def lane(name: str, bodies: list[bytes]) -> None:
        for at in range(0, len(bodies), ENTRY):
            await built.journal.append(name, bodies[at : at + ENTRY])

    await asyncio.gather(*(lane(name, bodies) for name, bodies in by_lane.items()))


async def behind(built: House) -> int:
    """Events that no transaction has counted yet."""
    await built.edge.look()
    return built.edge.lag_events


async def until(built: House, most: int) -> None:
    ended = time.monotonic() + PATIENCE_S
    while await behind(built) > most:
        require(time.monotonic() < ended, f"the workers are still behind after {PATIENCE_S:g} s")
        await asyncio.sleep(0.02)


class Workers:
    """Two consuming workers; `kill` takes one away and lets another begin."""

    def __init__(self, built: Stack, open_until: contextlib.AsyncExitStack) -> None:
        self._built = built
        self._open = open_until
        self._running: list[Process] = []

    async def begin(self) -> None:
        self._running.append(await self._open.enter_async_context(self._built.worker("--only", "consume")))

    async def kill(self) -> None:
        victim = self._running.pop(0)
        victim.kill()
        await victim.exit()
        await self.begin()


async def preload(connection: asyncpg.Connection, keys: int) -> None:
    """Keys of events long counted, so that the index is as large as in a busy installation."""
    for at in range(0, keys, 1_000_000):
        await connection.execute(
            "insert into events.event_keys (tenant_id, key, stored_time)"
            " select 1000 + n % 8, uuid_send(gen_random_uuid()), now() - interval '1 day'"
            " from generate_series(1, $1) n",
            min(1_000_000, keys - at),
        )
    await connection.execute("vacuum analyze events.event_keys")


async def latencies(built: House, tenants: Tenants, rate: float, seconds: float) -> list[float]:
    """From accepted to readable, in ms, of one event in fifty at a steady `rate`."""
    dice = random.Random(4)
    sent: dict[tuple[int, bytes], float] = {}
    found: list[float] = []
    url = postgres_urls(built.settings).worker
    reader = await asyncpg.connect(url)
    feeding = True

    async def feed() -> None:
        step = 0.05
        due = time.monotonic()
        for _ in range(round(seconds / step)):
            due += step
            events = tenants.events(dice, max(1, int(rate * step)), built.clock.now_ms())
            await put(built, events)
            now = time.perf_counter()
            for event in events[::50]:
                sent.setdefault((event.tenant, key(event.kind, event.id)), now)
            await asyncio.sleep(max(0.0, due - time.monotonic()))

    async def look() -> None:
        while feeding or sent:
            waiting = list(sent)
            rows = await reader.fetch(
                "select k.tenant_id, k.key from unnest($1::int[], $2::bytea[]) u (tenant_id, key)"
                " join events.event_keys k using (tenant_id, key)",
                [tenant for tenant, _ in waiting],
                [number for _, number in waiting],
            )
            now = time.perf_counter()
            found.extend((now - sent.pop((row[0], row[1]))) * 1000 for row in rows)
            await asyncio.sleep(0.002)

    looking = asyncio.create_task(look())
    try:
        await feed()
        feeding = False
        await asyncio.wait_for(looking, PATIENCE_S)
    finally:
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError, HandbillError):
            await looking
        await reader.close()
    return sorted(found)


async def body(options: Options) -> Result:
    keys = options.scaled(20_000_000, 200_000)
    number = options.scaled(1_000_000, 150_000)
    lease = options.scaled(6, 2)
    dice = random.Random(11)
    ledger = Ledger()
    built_settings = {"HANDBILL_EVENTS__LEASE_S": str(lease)}
    async with stack(settings=built_settings) as built, house(built) as ours, contextlib.AsyncExitStack() as doors:
        made = [shop.tenant for shop in await shops(ours, tenants=16)]
        await ours.catalogue.refresh()
        counted, bare = Tenants(ours, made[:8]), Tenants(ours, made[8:])
        owner = await asyncpg.connect(built.postgres_url)
        await preload(owner, keys)
        await owner.close()
        plain = await Bare.opened(postgres_urls(ours.settings).worker)
        doors.push_async_callback(plain.close)
        workers = Workers(built, doors)
        await workers.begin()
        await workers.begin()

        async def value() -> float:
            events = counted.events(dice, number, ours.clock.now_ms())
            ledger.note(events)
            began = time.perf_counter()
            await put(ours, events)
            await until(ours, number * 2 // 3)
            killing = asyncio.create_task(workers.kill())
            await until(ours, 0)
            rate = len(events) / (time.perf_counter() - began)
            await killing
            say(f"counted {rate:,.0f} events/s, one worker killed")
            return rate

        async def limit() -> float:
            events = bare.events(dice, number, ours.clock.now_ms())
            ready = list(batches(events))
            began = time.perf_counter()
            fresh = sum([await plain.insert(one, rows) for one, rows in ready])
            rate = len(events) / (time.perf_counter() - began)
            require(fresh > number * 0.9, "the bare insert found its keys taken")
            say(f"bare keyed insert {rate:,.0f} events/s")
            return rate

        rounds = await alternating(value, limit)
        await check(ours.database, ledger)
        steady = rounds.value * 0.3
        waits = await latencies(ours, counted, steady, options.scaled(30, 5))
    detail = {
        "accept_to_readable_p50_ms": rounded(statistics.median(waits)),
        "accept_to_readable_p99_ms": rounded(waits[int(len(waits) * 0.99)]),
        "at_events_per_s": rounded(steady),
        "probes": len(waits),
        "events_per_round": number,
        "preloaded_keys": keys,
        "kills": len(rounds.values),
        "lease_s": lease,
        "copies": COPIES,
        "workers": 2,
        **rounds.detail(),
    }
    return Result(rounds.value, "events/s", rounds.limit, detail)


if __name__ == "__main__":
    main("count", body)
