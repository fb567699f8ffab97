"""Product events a second from the journal into PostgreSQL and ClickHouse: keyed, resolved, enriched, shipped.

5 % identify, 10 % set something, 2 % are copies. Two workers share the lanes. The clock stops when every event is
counted and ClickHouse has it. The limit is what no pipeline can save: the same bytes decoded, their keys inserted and
their rows shipped by one process with no journal, no people, no enrichment, no cursor.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

import asyncpg
import msgspec

from benches._bench import Options, Result, alternating, main, require, say
from benches._shop import ACTOR, house
from handbill.events.model import CapturedEvent, Edge, EdgeKind, Event, Row, decode, encode, key, sender
from handbill.events.shipping_rows import COLUMNS, Number, RowMaker
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.migrations import migrate_clickhouse
from handbill.kit.clock import from_ms
from handbill.tenants.model import NewTenant
from handbill.wiring.house import House, postgres_urls
from tests.kit.stack import stack

BAR = "ratio >= 0.30, goal 20k/s"
ENTRY = 500
BATCH = 5_000
IDENTIFY, SET, COPIES = 0.05, 0.10, 0.02
PATIENCE_S = 600.0
SHIP_WAIT_S = 0.25
AGENTS = tuple(
    f"Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_{n % 8}) AppleWebKit/537.36 (KHTML, like Gecko)"
    f" Chrome/{100 + n}.0.0.0 Safari/537.36"
    for n in range(200)
)
SOMEBODY = UUID(int=7)
_word = itertools.count()


def events(dice: random.Random, tenants: Sequence[int], people: int, number: int, now_ms: int) -> list[CapturedEvent]:
    """Of the last hour, by so many people over all tenants; a person has a browser's id and identifies itself by it."""
    word = f"01j9x-{next(_word)}"
    made: list[CapturedEvent] = []
    for n in range(number):
        if made and dice.random() < COPIES:
            made.append(dice.choice(made[-20_000:]))
            continue
        tenant, who, kind = tenants[n % len(tenants)], dice.randrange(people // len(tenants)), dice.random()
        properties = msgspec.json.encode(
            {"$current_url": f"https://shop.example/p/{who % 997}", "price": n % 500, "plan": "pro", "cart": [1, 2, 3]}
        )
        name, distinct_id, edge, told = "$pageview", f"anon-{who}", None, None
        if kind < IDENTIFY:
            name, distinct_id, edge = "$identify", f"user-{who}", Edge(EdgeKind.IDENTIFY, f"anon-{who}")
        elif kind < IDENTIFY + SET:
            name, told = "$set", msgspec.json.encode({"plan": ("free", "pro")[who % 2], "seen": n})
        made.append(
            CapturedEvent(
                tenant, f"{word}-{n:08d}", now_ms - dice.randrange(3_600_000), now_ms, name, distinct_id, "own",
                properties, set=told, edge=edge, session=f"s-{who}", ip="203.0.113.9",
                user_agent=AGENTS[who % len(AGENTS)],
                url=f"https://shop.example/p/{who % 997}", language="en-GB", screen_width=1440, screen_height=900,
            )
        )  # fmt: skip
    return made


async def put(built: House, made: Sequence[Event]) -> None:
    """Into the journal, as the edge packs them, without its HTTP."""
    by_lane: dict[str, list[bytes]] = {}
    for event in made:
        by_lane.setdefault(built.lanes.lane_for(event.tenant, sender(event)), []).append(encode(event))

    async def lane(name: str, bodies: list[bytes]) -> None:
        for at in range(0, len(bodies), ENTRY):
            await built.journal.append(name, bodies[at : at + ENTRY])

    await asyncio.gather(*(lane(name, bodies) for name, bodies in by_lane.items()))


async def done(built: House) -> None:
    """Until everything is counted and shipped."""
    ended = time.monotonic() + PATIENCE_S
    while True:
        await built.edge.look()
        if not built.edge.lag_events and not built.edge.unshipped:
            return
        require(time.monotonic() < ended, f"still behind after {PATIENCE_S:g} s")
        await asyncio.sleep(0.02)


async def _no_public_ids(numbers: Collection[Number]) -> Mapping[Number, str]:
    return {}


class Bare:
    """Decode, insert keys, insert rows; PostgreSQL and ClickHouse at the same time, as two workers would."""

    def __init__(self, connection: asyncpg.Connection, clickhouse: ClickHouse) -> None:
        self._connection = connection
        self._clickhouse = clickhouse
        self._maker = RowMaker(lambda tenant, name: SOMEBODY, lambda address: None, _no_public_ids)

    async def insert(self, bodies: Sequence[bytes]) -> int:
        found = {}
        for place, body in enumerate(bodies):
            event = decode(body)
            assert isinstance(event, CapturedEvent)
            number = key("capture", event.id)
            found[event.tenant, number] = Row(place, number, msgspec.structs.replace(event, user_agent=None), body)
        rows = [found[name] for name in sorted(found)]
        return (await asyncio.gather(self._keys(rows), self._rows(rows)))[0]

    async def _keys(self, rows: Sequence[Row]) -> int:
        fresh = await self._connection.fetch(
            "insert into events.event_keys (tenant_id, key, stored_time) select * from"
            " unnest($1::int[], $2::bytea[], $3::timestamptz[]) on conflict do nothing returning 1",
            [row.event.tenant for row in rows],
            [row.key for row in rows],
            [from_ms(row.event.received) for row in rows],
        )
        return len(fresh)

    async def _rows(self, rows: Sequence[Row]) -> None:
        columns = list(zip(*(self._maker.record(row, {}, 0) for row in rows), strict=True))
        await self._clickhouse.insert_columns("events", COLUMNS, columns, f"bare-{next(_word)}")


async def check(built: House, tenants: Sequence[int], sent: Sequence[CapturedEvent]) -> int:
    """Every event once, and by its person as PostgreSQL has it; how many people there are."""
    keys = {(event.tenant, event.id) for event in sent}
    listed = ", ".join(map(str, tenants))
    rows = await built.clickhouse.query(
        f"select count(), uniqExact(tenant_id, event_id) from events where tenant_id in ({listed})"
    )
    require(rows == [(len(keys), len(keys))], f"ClickHouse has {rows[0]} of {len(keys)} events")
    owner = await asyncpg.connect(postgres_urls(built.settings).worker)
    try:
        found = await owner.fetch(
            "select tenant_id, count(distinct person_id) from people.distinct_ids where tenant_id = any ($1::int[])"
            " group by 1",
            list(tenants),
        )
    finally:
        await owner.close()
    for tenant, people in found:
        rows = await built.clickhouse.query(
            "select uniqExact(if(empty(o.distinct_id), e.person_id, o.person_id)) from events e left join"
            " (select distinct_id, argMax(person_id, version) as person_id from person_distinct_id_overrides"
            " where tenant_id = {t:UInt32} group by distinct_id having argMax(deleted, version) = 0) o"
            " on o.distinct_id = e.distinct_id where e.tenant_id = {t:UInt32}",
            {"t": tenant},
        )
        # An id that others only named has no event of its own: ClickHouse may know fewer ids, never more people.
        require(0 < rows[0][0] <= people, f"ClickHouse has {rows[0][0]} people of tenant {tenant}, PostgreSQL {people}")
    return sum(people for _, people in found)


async def overrides_told(built: House) -> None:
    owner = await asyncpg.connect(postgres_urls(built.settings).worker)
    try:
        ended = time.monotonic() + PATIENCE_S
        while await owner.fetchval("select exists (select from people.distinct_ids where shipped < version)"):
            require(time.monotonic() < ended, "the overrides are not shipped")
            await asyncio.sleep(0.1)
    finally:
        await owner.close()


async def body(options: Options) -> Result:
    number = options.scaled(300_000, 40_000)
    people = options.scaled(100_000, 10_000)
    dice = random.Random(11)
    sent: list[CapturedEvent] = []
    # The last few events of a round would wait five seconds for company: that is no speed.
    hasty = {"HANDBILL_EVENTS__SHIP_WAIT_S": str(SHIP_WAIT_S)}
    async with (
        stack(clickhouse=True, settings=hasty) as built,
        house(built) as ours,
        contextlib.AsyncExitStack() as doors,
    ):
        await migrate_clickhouse(ours.clickhouse)
        made = []
        for n in range(12):
            new = NewTenant(name=f"Shop {n}", slug=f"shop-{n}")
            made.append((await ours.tenants.create_tenant(new, actor=ACTOR)).tenant_id)
        counted, bare = made[:8], made[8:]
        connection = await asyncpg.connect(postgres_urls(ours.settings).worker)
        doors.push_async_callback(connection.close)
        plain = Bare(connection, ours.clickhouse)
        for _ in range(2):
            await doors.enter_async_context(built.worker("--only", "consume,cron"))
        sent += events(dice, counted, people, 1, ours.clock.now_ms())
        await put(ours, sent)
        await done(ours)  # the workers have opened their lines

        async def value() -> float:
            some = events(dice, counted, people, number, ours.clock.now_ms())
            sent.extend(some)
            began = time.perf_counter()
            await put(ours, some)
            await done(ours)
            rate = len(some) / (time.perf_counter() - began)
            say(f"processed {rate:,.0f} events/s")
            return rate

        async def limit() -> float:
            some = [encode(event) for event in events(dice, bare, people, number, ours.clock.now_ms())]
            began = time.perf_counter()
            for at in range(0, len(some), BATCH):
                await plain.insert(some[at : at + BATCH])
            rate = len(some) / (time.perf_counter() - began)
            say(f"decoded and inserted {rate:,.0f} events/s")
            return rate

        rounds = await alternating(value, limit)
        await overrides_told(ours)
        known = await check(ours, counted, sent)
    detail = {
        "events_per_round": number,
        "people": known,
        "identify": IDENTIFY,
        "set": SET,
        "copies": COPIES,
        "bytes_per_event": len(encode(sent[0])),
        "workers": 2,
        "ship_wait_s": SHIP_WAIT_S,
        **rounds.detail(),
    }
    return Result(rounds.value, "events/s", rounds.limit, detail)


if __name__ == "__main__":
    main("process", body)
