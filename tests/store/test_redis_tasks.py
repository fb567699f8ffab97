"""The loops behind Redis: no error ends them, a cancelled one leaves nothing behind, and quiet is no hanging."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from handbill.infra.redis import Redis, RedisAway, SubscriptionTask, dedicated, shared_clock
from handbill.infra.redis import line as wire
from handbill.infra.redis.client import opened
from handbill.infra.redis.errors import from_reply
from handbill.infra.redis.shared_clock import SharedClock
from handbill.kit import task_health
from handbill.kit.task_health import LIMIT_S, TaskHealth
from tests.kit.clocks import FakeClock
from tests.kit.engines import Engines
from tests.kit.proxy import proxy
from tests.kit.waiting import eventually, soon

Unique = Callable[[str], str]


def health_of(name: str) -> TaskHealth:
    [health] = [each for each in task_health.running() if each.name == name]
    return health


class RefusingRedis:
    """Answers TIME, then refuses it for a while, then answers again."""

    def __init__(self, error: Exception) -> None:
        self.calls = 0
        self.recovered = asyncio.Event()
        self._error = error

    async def call(self, *_: Any) -> tuple[bytes, bytes]:
        self.calls += 1
        if 4 <= self.calls < 7:
            raise self._error
        if self.calls >= 12:
            self.recovered.set()
        return b"1", b"1"


@pytest.mark.parametrize(
    "error",
    [
        from_reply("NOAUTH Authentication required."),
        from_reply("ERR unknown command 'TIME'"),
        RedisAway("Redis is away."),
        ValueError("not a number"),
    ],
)
async def test_no_error_ends_the_shared_clock(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_clock, "_EVERY_S", 0.001)
    redis = RefusingRedis(error)
    clock = SharedClock(redis)  # type: ignore[arg-type]
    await clock.start()
    health = health_of("shared-clock")
    await soon(redis.recovered.wait())
    assert health.last_error.startswith(type(error).__name__)
    await clock.stop()
    assert health not in task_health.running()


async def answers(redis: Redis) -> bool:
    try:
        return bool(await redis.call("PING") == b"PONG")
    except RedisAway:
        return False


async def test_no_error_ends_the_attempts_to_connect(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    connect, is_repaired = wire.connect, False

    async def broken_connect(*args: Any, **options: Any) -> wire.Line:
        if not is_repaired:
            raise UnicodeError("label empty or too long")
        return await connect(*args, **options)

    monkeypatch.setattr(wire, "connect", broken_connect)
    async with opened(engines.redis_url, timeout=30) as redis:
        health = health_of("redis-connection")
        assert health.last_error == "UnicodeError: label empty or too long"
        with pytest.raises(RedisAway, match="UnicodeError"):
            await redis.call("PING")
        is_repaired = True
        await eventually(lambda: answers(redis))
        await eventually(lambda: health.errors == 0)
    assert health not in task_health.running()


async def test_a_quiet_connection_gives_signs_of_life(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("handbill.infra.redis.client.HEARTBEAT_S", 0.001)
    async with opened(engines.redis_url, timeout=30):
        health = health_of("redis-connection")
        await eventually(lambda: health.done > 3)


async def test_a_login_that_is_refused_is_a_fault_and_an_outage_is_not(engines: Engines) -> None:
    async with proxy(engines.redis_url) as (net, url):
        net.down()
        async with opened(url, timeout=30):
            away = health_of("redis-connection")
            assert (away.errors, away.last_error != "") == (0, True)
        net.up()
        async with opened(url.replace("redis://", "redis://nobody:wrong@", 1), timeout=30):
            refused = health_of("redis-connection")
            assert refused.errors >= 1


async def test_a_cancelled_subscriber_leaves_no_task_behind(engines: Engines) -> None:
    async with proxy(engines.redis_url) as (net, url):
        net.freeze()
        redis = Redis(url, timeout=30)

        async def subscribe() -> None:
            async with redis.subscribe("x"):
                pass

        before = asyncio.all_tasks()
        subscriber = asyncio.create_task(subscribe())
        await eventually(lambda: any(task.get_name() == "redis-subscription" for task in asyncio.all_tasks() - before))
        subscriber.cancel()
        await asyncio.gather(subscriber, return_exceptions=True)
        left = [task for task in asyncio.all_tasks() - before if task.get_name() == "redis-subscription"]
        for task in left:
            task.cancel()
        assert not left


async def test_no_error_ends_a_subscription(
    redis: Redis, unique: Unique, engines: Engines, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, attempts = wire.connect, 0

    async def broken_connect(*args: Any, **options: Any) -> wire.Line:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise UnicodeError("label empty or too long")
        return await connect(*args, **options)

    monkeypatch.setattr(wire, "connect", broken_connect)
    channel = unique("news")
    async with redis.subscribe(channel) as messages:
        assert await soon(anext(messages)) == ("", b""), "subscribed later, and something may have been missed"
        await redis.call("PUBLISH", channel, b"x")
        assert await soon(anext(messages)) == (channel, b"x")


async def test_a_subscription_without_messages_gives_signs_of_life(
    redis: Redis, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedicated, "HEARTBEAT_S", 0.2)
    clock = FakeClock()
    health = TaskHealth("quiet", clock=clock)
    task = SubscriptionTask("quiet", redis, (unique("news"),), lambda *_: None, health=health)
    await task.start()
    await soon(task.subscribed.wait())
    for _ in range(3):
        clock.advance(seconds=LIMIT_S - 1)
        await eventually(lambda: health.silent_seconds() == 0)
    assert health.errors == 0
    await task.stop()


async def test_a_subscription_without_messages_is_well_after_an_outage(redis: Redis, unique: Unique) -> None:
    clock = FakeClock()
    health = TaskHealth("quiet", clock=clock)
    health.failed(RedisAway("Redis is away."))
    clock.advance(seconds=LIMIT_S)
    assert health.is_stuck()
    task = SubscriptionTask("quiet", redis, (unique("news"),), lambda *_: None, health=health)
    await task.start()
    await eventually(lambda: not health.is_stuck())
    await task.stop()


async def test_a_subscription_to_a_redis_that_is_frozen_or_absent_gives_signs_of_life(
    engines: Engines, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedicated, "CONNECT_TIMEOUT_S", 0.01)
    clock = FakeClock()
    health = TaskHealth("waiting", clock=clock)
    async with proxy(engines.redis_url) as (net, url):
        task = SubscriptionTask("waiting", Redis(url, timeout=0.01), (unique("news"),), lambda *_: None, health=health)
        for stop_it in (net.freeze, net.down):
            stop_it()
            await task.start()
            for _ in range(3):
                clock.advance(seconds=LIMIT_S - 1)
                await eventually(lambda: health.silent_seconds() == 0)
        assert health.errors == 0
        await task.stop()


async def test_a_reader_that_hangs_is_not_kept_alive_by_its_subscription(
    redis: Redis, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only while the reader waits for a message does the connection speak for it."""
    pings = 0
    pack = wire.pack

    def counting_pack(command: wire.Command) -> bytes:
        nonlocal pings
        pings += command[0] == "PING"
        return pack(command)

    monkeypatch.setattr(dedicated, "HEARTBEAT_S", 0.001)
    monkeypatch.setattr(wire, "pack", counting_pack)
    clock = FakeClock()
    health = TaskHealth("hangs", clock=clock)
    task_health.enter(health)
    channel = unique("news")
    async with redis.subscribe(channel) as messages:
        await redis.call("PUBLISH", channel, b"x")
        assert await soon(anext(messages)) == (channel, b"x")
        clock.advance(seconds=LIMIT_S)
        seen = pings
        await eventually(lambda: pings > seen + 3)
        assert health.is_silent()


def test_the_longest_wait_inside_a_subscription_is_below_the_limit_of_a_task() -> None:
    assert dedicated.connect_timeout(3_600) < LIMIT_S
    assert dedicated.HEARTBEAT_S < LIMIT_S / 2
