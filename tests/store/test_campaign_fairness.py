"""Who goes when: the poller's choice, a small tenant beside a large one, the pace in Redis against its rule."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from handbill.fake_graph.model import FIRST_NUMBER, Config, Number
from handbill.infra.postgres import Database
from handbill.infra.redis import Keys, Redis
from handbill.infra.sqlfiles import Sql
from handbill.jobs.model import Job
from handbill.kit.clock import SystemClock
from handbill.kit.telemetry import metrics
from handbill.messaging.dispatch import TurnPolicy
from handbill.messaging.fairness import jain
from handbill.messaging.limits import Pace, take
from handbill.messaging.pacer import Gate, Pacer, gate_pace
from handbill.messaging.service import MessagingPolicy
from tests.kit.engines import Engines
from tests.kit.graph import graph, many_numbers
from tests.kit.reach import Book, people, room
from tests.kit.waiting import eventually

LANES = 2
MakeTenant = Callable[..., Awaitable[int]]
WAITED = Sql(
    "update messaging.messages set state = 'accepted', created_at = now() - interval '1 hour',"
    " due_at = now() + make_interval(secs => $3), attempted_at = now() + make_interval(secs => $4)"
    " where tenant_id = $1 and message_id = $2",
    "set_waited",
)


async def test_distinct_tenants_first_then_two_each_then_filled_up(
    database: Database, redis: Redis, engines: Engines, make_tenant: MakeTenant
) -> None:
    async with (
        graph(Config(numbers=many_numbers(3))) as fake,
        room(database, redis, engines.postgres_url, fake.url) as at,
    ):
        owners: dict[uuid.UUID, int] = {}
        for count in (9, 3, 1):  # the largest is the oldest
            tenant = await make_tenant()
            connection = await at.connect(tenant, [str(FIRST_NUMBER + len(set(owners.values())))])
            for _ in range(count):
                owners[(await at.started(tenant, connection)).campaign_id] = tenant
        large, middle, small = dict.fromkeys(owners.values())
        first = [owners[campaign] for _, campaign in await at.service.keeper.poll() if campaign in owners]
        assert set(first[:3]) == {large, middle, small}, "everybody once before anybody twice"
        assert sorted(first[3:5]) == [large, middle], "then a second one each"
        assert len(first) == 10, "and the rest of the ten to whoever has some left"
        second = [owners[campaign] for _, campaign in await at.service.keeper.poll() if campaign in owners]
        assert len(second) == 3


async def test_a_small_tenant_beside_a_large_one(
    database: Database, redis: Redis, engines: Engines, make_tenant: MakeTenant
) -> None:
    """Law 6 by order: once the small one's turn is asked for, no number of the other has more than two before it: the
    one that stood in the queue, and one that was handed over together with it."""
    large, small = await make_tenant(), await make_tenant()
    numbers = [number.id for number in many_numbers(6)]
    other = Number("199000000000001")
    book = Book()
    book.people = {large: people(3_000), small: people(20, first=50_000_000)}
    policy = MessagingPolicy(turn=TurnPolicy(turn_s=0.15, lease_s=3_600))  # a slow machine begins no second chain
    config = Config(numbers=(*many_numbers(6), other))
    async with graph(config) as fake, room(database, redis, engines.postgres_url, fake.url, book, policy) as at:
        began: list[Job] = []
        asked: list[int] = []
        tasks = at.tasks.handlers()["message_dispatch"]

        def watched(name: str) -> Any:
            async def run(job: Job, ctx: Any) -> Any:
                began.append(job)
                done = await tasks[name](job, ctx)
                if job.name == "launch" and job.tenant_id == small:
                    asked.append(len(began))
                return done

            return run

        at.tasks.handlers = lambda: {  # type: ignore[method-assign]
            "message_dispatch": {"launch": watched("launch"), "turn": watched("turn")}, "message_retry": {},
        }  # fmt: skip
        wide = await at.connect(large, numbers)
        narrow = await at.connect(small, [other.id])
        async with at.running(concurrency=LANES):
            await at.started(large, wide)
            await eventually(lambda: len(began) > 8)
            campaign = await at.started(small, narrow)

            async def over() -> bool:
                return await at.state(small, campaign.campaign_id) == "completed"

            await eventually(over)
        assert await at.states(small, campaign.campaign_id) == {"accepted": 20}
        first = next(place for place, job in enumerate(began) if job.name == "turn" and job.tenant_id == small)
        between = Counter(str(job.data["number_id"]) for job in began[asked[0] : first] if job.name == "turn")
        assert max(between.values(), default=0) <= 2, (first, between)
        shares = await at.service.fairness.own(small, 3_600)
        assert [one.messages for one in shares.tenants] == [20]
        assert (shares.jain, shares.tenants[0].share) == (None, None), "they would tell what others send"
        index = (await at.service.fairness.shares(3_600)).jain
        assert index is not None
        assert 0 < index <= 1


def test_jain() -> None:
    assert jain([]) == jain([0.0]) == jain([3.0, 3.0]) == 1.0
    assert jain([1.0, 0.0, 0.0, 0.0]) == 0.25


@given(st.integers(1, 2_000), st.lists(st.integers(0, 200_000), min_size=1, max_size=60))
def test_the_gate_never_bunches(per_second: int, gaps: list[int]) -> None:
    gate, now, passed = Gate(gate_pace(per_second)), 1_000_000, []
    for gap in gaps:
        now += gap
        passed.append(now + gate.wait_us(now))
    assert passed == sorted(passed)
    pace = gate.pace
    spans = zip(passed, passed[pace.burst :], strict=False)
    assert all(later - earlier >= pace.interval_us for earlier, later in spans)
    assert per_second < 3 or pace.most_within(1_000_000 - 1) <= per_second


@settings(max_examples=15)
@given(data=st.data())
async def test_tokens_in_redis_follow_the_rule(engines: Engines, data: st.DataObject) -> None:
    """The script keeps what `take` keeps: its states are read back and compared after every call."""
    redis = Redis(engines.redis_url, timeout=30)
    await redis.start()
    try:
        keys = Keys(f"p{uuid.uuid4().hex[:10]}")
        pair = Pace(interval_us=data.draw(st.sampled_from([1_000, 6_000_000])), burst=data.draw(st.integers(1, 3)))
        pacer = Pacer(redis, keys, SystemClock(), pair=pair)
        per_second, tenant_rate = data.draw(st.integers(1, 200)), data.draw(st.sampled_from([0, 5, 50]))
        pairs: dict[str, int] = {}
        taken = 0
        for _ in range(4):
            wanted = data.draw(st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=6))
            before = await redis.time_ms() * 1000
            tokens = await pacer.take(7, "1", wanted, per_second=per_second, tenant_per_second=tenant_rate)
            after = (await redis.time_ms() + 1) * 1000
            assert len(tokens.each) == len(wanted)
            refused = False
            for address, answer in zip(wanted, tokens.each, strict=True):
                refused = refused or answer < 0
                assert (answer < 0) == refused, "once the number has no token, nobody after it has one"
                if answer == 0:
                    taken += 1
                    assert take(pairs.get(address, 0), after, pair).admitted
                    found = await redis.call("GET", keys.tagged("msg", 7, "p", "1", address))
                    pairs[address] = int(found) if found else 0
                elif answer > 0:
                    assert not take(pairs[address], before, pair).admitted
            assert (tokens.wait_us > 0) == refused
        assert taken >= 1, "the first of a new number goes at once"
    finally:
        await redis.stop()


async def test_a_forgotten_number_does_not_go_faster(redis: Redis) -> None:
    keys = Keys(f"p{uuid.uuid4().hex[:10]}")
    pacer = Pacer(redis, keys, SystemClock())
    people_of = [f"+4917{place}" for place in range(8)]
    taken = []
    for _ in range(3):
        tokens = await pacer.take(7, "1", people_of, per_second=4, tenant_per_second=0)
        taken.append(tokens.each.count(0))
        await redis.call("DEL", keys.tagged("msg", 7, "n", "1"))
    assert taken == [1, 1, 1], "no burst after a wipe"
    assert timedelta(microseconds=tokens.wait_us) <= timedelta(seconds=1)


async def test_the_mean_wait_counts_from_the_due_time_and_is_never_negative(
    database: Database, redis: Redis, engines: Engines, make_tenant: MakeTenant
) -> None:
    """A message that was refused until tomorrow has a due time behind its attempt: it says nothing about waiting."""
    tenant = await make_tenant()
    book = Book(people(4))
    async with (
        graph(Config(numbers=many_numbers(1))) as fake,
        room(database, redis, engines.postgres_url, fake.url, book) as at,
    ):
        connection = await at.connect(tenant, [str(FIRST_NUMBER)])
        campaign = (await at.started(tenant, connection)).campaign_id
        await at.service.keeper.begin()
        await at.service.launcher.write(tenant, campaign)
        async with database.worker() as tx:
            rows = await tx.fetch(Sql("select message_id from messaging.messages where tenant_id = $1", "ids"), tenant)
            for row, (due, tried) in zip(rows, ((-30, -28), (-30, -26), (-30, -24), (86_400, -20)), strict=True):
                await tx.execute(WAITED, tenant, row["message_id"], due, tried)
        (own,) = (await at.service.fairness.own(tenant, 60)).tenants
        assert (own.messages, round(own.wait_s, 3), round(own.wait_p95_s, 3)) == (4, 4.0, 6.0)
        await at.service.fairness.measure()
        gauge = metrics.MESSAGING_WAIT.labels(str(tenant))
        assert round(gauge._value.get(), 3) == 4.0
        async with database.worker() as tx:
            for row in rows:
                await tx.execute(WAITED, tenant, row["message_id"], 86_400, -20)
        (own,) = (await at.service.fairness.own(tenant, 60)).tenants
        assert (own.wait_s, own.wait_p95_s) == (0.0, 0.0)
