"""Laws 1 and 2: death at every generated point of accepting and of counting; whoever comes next makes it exact."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

from handbill.banners.limits import CatalogueBook, scope_of
from handbill.banners.service import BannerSink
from handbill.caps.model import State, Subject
from handbill.caps.packed import Shelf
from handbill.caps.service import CapsService, moves_of
from handbill.caps.sink import CapsSink
from handbill.events.batch import Sink
from handbill.events.consumer import Consumer
from handbill.events.edge import Edge
from handbill.events.model import Click, Event, Impression, View, encode, key
from handbill.events.policy import ConsumerPolicy
from handbill.infra.journal.streams import StreamsJournal
from handbill.infra.postgres import Database, derive
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from tests.kit import ledger
from tests.kit.crashes import Died, enumerate_points
from tests.kit.engines import Engines
from tests.kit.loop import LANES, Loop, loop, own_lanes
from tests.kit.waiting import eventually

EXPIRE = Sql(
    "update events.lanes set lease_until = now() - interval '1 second', moved_at = now() where lane = any ($1::text[])",
    "test_expire",
)
GONE = Sql("delete from events.consumers where name like 'victim-%'", "test_gone")
PARKED = Sql("select count(*)::int from events.parked where tenant_id = $1 and event_id = $2", "test_parked")
DROPS = Sql(
    "select reason, sum(events)::int as n from events.drops where tenant_id = $1 group by 1 order by 1", "test_drops"
)
POLICY = ConsumerPolicy(batch_events=100, batch_wait_ms=0, lease_s=600)
QUARTER_MS = 900_000


@dataclass
class Victim:
    """A process of its own, as far as one can be had inside ours: its own lines to the engines, journal and caps."""

    database: Database
    redis: Redis
    house: Loop
    patience: float | None = None

    def _caps(self) -> CapsService:
        return CapsService(
            self.redis, self.database, CatalogueBook(self.house.catalogue), self.house.clock, keys=self.house.keys
        )

    async def accept(self, events: list[Event]) -> None:
        """As the edge does it: views move their caps in the same round trip."""
        journal, caps = StreamsJournal(self.redis, self.house.keys), self._caps()
        extra = []
        for event in events:
            if isinstance(event, View):
                moves = moves_of(key("view", event.id), event.at, event.banner)
                extra += caps.move_commands(event.tenant, event.user or "", moves)
        edge = Edge(journal, self.house.lanes, self.database, self.house.clock)
        waiting = asyncio.create_task(edge.accept(events, extra))
        # The dead give no answer, and neither does their append: a caller has so much patience, then it comes again.
        await asyncio.wait([waiting], timeout=self.patience)
        if not waiting.done():
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            raise Died("no answer")
        await waiting

    async def consume(self, ends: dict[str, str]) -> None:
        """Take the lanes, count until these ends, hand the lanes back. Death anywhere leaves all as it was then."""
        journal = StreamsJournal(self.redis, self.house.keys)
        sinks: list[Sink] = [BannerSink(self.database), CapsSink(self.database, self._caps())]
        name = f"victim-{uuid.uuid4().hex[:8]}"
        consumer = Consumer(self.database, journal, self.house.lanes, sinks, worker=name, policy=POLICY)
        await consumer.start()
        tasks = {consumer._leader._task} - {None}

        def over() -> bool:
            runs = {lane: run for lane, (run, _) in consumer._runs.items()}
            tasks.update(task for _, task in consumer._runs.values())
            if any(task.done() for task in tasks if task):
                return True
            return all(lane in runs and runs[lane].projected == end for lane, end in ends.items())

        try:
            await eventually(over, what="the victim is done or dead")
            with contextlib.suppress(Died):
                await consumer.stop()
        finally:
            for task in filter(None, tasks):
                task.cancel()
            await asyncio.gather(*filter(None, tasks), return_exceptions=True)
            with contextlib.suppress(Died):
                await journal.stop()


@contextlib.asynccontextmanager
async def a_victim(engines: Engines, house: Loop) -> AsyncIterator[Victim]:
    database = Database(derive(engines.postgres_url), worker_size=4, acquire_timeout_ms=30_000)
    redis = Redis(engines.redis_url, timeout=30)
    await database.start()
    await redis.start()
    try:
        yield Victim(database, redis, house, patience=1.0)
    finally:
        await redis.stop()
        await database.stop()


def a_round(shop: ledger.Shop, number: int, now: int) -> list[Event]:
    """Events of their own ids, user and bucket for each death, so that no death's state hides another's."""
    at = now - (number + 1) * QUARTER_MS
    banner = shop.banners[0]
    user = f"user{number}"
    first = Impression(shop.tenant, f"{number}-i", at, now, banner, user=user)
    views = [View(shop.tenant, f"{number}-v{n}", now - n, now, banner, user=user) for n in range(2)]
    return [first, Click(shop.tenant, f"{number}-c", at, now, banner, user=user, destination="/"), *views, first]


async def taken_over(house: Loop) -> None:
    """The dead one's lease has run out; a new worker counts what is left and hands the lanes back."""
    lanes = [lane for lane, _ in house.lanes.all()]
    async with house.database.worker() as tx:
        await tx.execute(EXPIRE, lanes)
        await tx.execute(GONE)
    consumer = await house.consumer(POLICY)
    await house.drained()
    await consumer.stop()
    house.consumers.remove(consumer)


async def ends(house: Loop) -> dict[str, str]:
    """The last entry of every lane that has one, as the cursor must stand in the end."""
    found = {}
    for lane, _ in house.lanes.all():
        if last := await house.redis.call("HGET", house.keys.tagged("journal", lane, "meta"), "last"):
            found[lane] = last.decode()
    return found


async def exact(house: Loop, shop: ledger.Shop, book: ledger.Ledger, number: int) -> None:
    await ledger.check(house.database, book, copies=False)
    value = await house.caps._store.raw(Subject(shop.tenant, f"user{number}"))
    scope = scope_of(house.catalogue.tenant(shop.tenant).banners[0])
    seen = Shelf(value).seen(scope)
    assert [each.state for each in seen] == [State.CONFIRMED] * 2, f"death {number}: {seen}"
    async with house.database.worker() as tx:
        rows = {row["lane"]: row for row in await tx.fetch(LANES)}
    for lane, end in (await ends(house)).items():
        assert rows[lane]["cursor"] == rows[lane]["projected"] == end


async def test_death_at_every_point_of_accepting(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    """The caller that got no answer sends the same again; the one that got an answer does not."""
    number = 0
    async with loop(database, redis, main=1) as house, a_victim(engines, house) as victim:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        book = ledger.Ledger()
        answered = False

        async def attempt() -> None:
            nonlocal answered, number
            answered, number = False, number + 1
            await victim.accept(a_round(shop, number, now))
            answered = True

        async def check(at: int, name: str) -> None:
            if not answered:
                await Victim(database, redis, house).accept(a_round(shop, number, now))
            book.note(a_round(shop, number, now))
            await taken_over(house)
            await exact(house, shop, book, number)

        assert await enumerate_points(attempt, check, what="accepting") >= 2


async def test_death_at_every_point_of_counting(
    engines: Engines, database: Database, redis: Redis, tenant: int
) -> None:
    number = 0
    lanes = own_lanes(1)
    async with loop(database, redis, lanes=lanes) as house, a_victim(engines, house) as victim:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        book = ledger.Ledger()
        own = Victim(database, redis, house)
        await own.accept(a_round(shop, 0, now))
        book.note(a_round(shop, 0, now))
        await taken_over(house)
        await_ends: dict[str, str] = {}

        async def attempt() -> None:
            await victim.consume(await_ends)

        async def check(at: int, name: str) -> None:
            await taken_over(house)
            await exact(house, shop, book, number)
            await prepared()

        async def prepared() -> None:
            nonlocal number, await_ends
            number += 1
            await own.accept(a_round(shop, number, now))
            book.note(a_round(shop, number, now))
            await_ends = await ends(house)

        await prepared()
        points = await enumerate_points(attempt, check, what="counting")
        assert points > 40
        async with database.worker() as tx:
            drops = {row["reason"]: row["n"] for row in await tx.fetch(DROPS, tenant)}
        assert drops == {"DUPLICATE": number}  # the last round was prepared and not counted


async def test_death_around_poison(engines: Engines, database: Database, redis: Redis, tenant: int) -> None:
    """Death at every commit while a batch is searched for its poison: that is parked once, and the rest counted."""
    number = 0
    async with loop(database, redis, main=1) as house, a_victim(engines, house) as victim:
        shop = await house.shop(tenant)
        now = house.clock.now_ms()
        book = ledger.Ledger()
        lane = house.lanes.all()[0][0]
        await_ends: dict[str, str] = {}

        async def prepared() -> None:
            nonlocal await_ends, number
            number += 1
            good = a_round(shop, number, now)
            book.note(good)
            bad = Impression(tenant, f"{number}-bad", now, now, shop.banners[0], page="a\0b")
            bodies = [encode(event) for event in (good[0], bad, *good[1:])]
            await house.journal.append(lane, [*bodies, b"no event"])
            await_ends = await ends(house)

        async def attempt() -> None:
            await victim.consume(await_ends)

        async def check(at: int, name: str) -> None:
            await taken_over(house)
            await exact(house, shop, book, number)
            async with database.worker() as tx:
                assert await tx.fetchval(PARKED, tenant, f"{number}-bad") == 1
            await prepared()

        await prepared()
        points = await enumerate_points(attempt, check, only="pg:commit", what="counting around poison")
        assert points >= 8
