"""Redis goes away, freezes, and comes back: callers are told at once and truly, and the line mends itself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from handbill.infra.redis import Redis, RedisAway, dedicated
from handbill.infra.redis.client import opened
from tests.conftest import OwnEngine
from tests.kit.engines import Engines
from tests.kit.proxy import proxy
from tests.kit.waiting import eventually, soon

Unique = Callable[[str], str]


async def answers(redis: Redis) -> bool:
    try:
        return bool(await redis.call("PING") == b"PONG")
    except RedisAway:
        return False


async def test_away_says_so_and_back_is_back(engines: Engines) -> None:
    async with proxy(engines.redis_url) as (net, url), opened(url, timeout=30) as redis:
        for _ in range(3):
            assert await redis.call("PING") == b"PONG"
            net.down()
            with pytest.raises(RedisAway) as away:
                while True:  # the first call that notices
                    await redis.call("PING")
            assert away.value.code == "REDIS_AWAY"
            with pytest.raises(RedisAway) as later:
                await redis.call("SET", "x", "y")
            assert not later.value.maybe_done
            net.up()
            await eventually(lambda: answers(redis))


async def test_absent_at_the_start_and_there_later(engines: Engines) -> None:
    async with proxy(engines.redis_url) as (net, url):
        net.down()
        async with opened(url, timeout=30) as redis:
            with pytest.raises(RedisAway):
                await redis.health()
            net.up()
            await eventually(lambda: answers(redis))


async def test_a_lost_answer_may_have_been_done(engines: Engines, redis: Redis, unique: Unique) -> None:
    done, undone = unique("done"), unique("undone")
    async with proxy(engines.redis_url) as (net, url), opened(url, timeout=30) as through:
        net.cut_after = done.encode()
        with pytest.raises(RedisAway) as lost:
            await through.call("SET", done, 1)
        assert lost.value.maybe_done
        await eventually(lambda: redis.call("EXISTS", done))
        await eventually(lambda: answers(through))
        net.cut_on = undone.encode()
        with pytest.raises(RedisAway) as lost:
            await through.call("SET", undone, 1)
        assert lost.value.maybe_done  # nobody on this side can tell the two apart
        assert await redis.call("EXISTS", undone) == 0


async def test_everybody_in_flight_is_told(engines: Engines) -> None:
    async with proxy(engines.redis_url) as (net, url), opened(url, timeout=30) as redis:
        assert await answers(redis)
        net.freeze()
        calls = [asyncio.create_task(redis.call("ECHO", n)) for n in range(100)]
        await asyncio.sleep(0)
        net.cut()
        results = await soon(asyncio.gather(*calls, return_exceptions=True))
        assert all(isinstance(result, RedisAway) and result.maybe_done for result in results)
        net.thaw()
        await eventually(lambda: answers(redis))


async def test_a_frozen_redis_holds_nobody_for_ever(engines: Engines) -> None:
    async with proxy(engines.redis_url) as (net, url), opened(url, timeout=0.5) as redis:
        await eventually(lambda: answers(redis))
        net.freeze()
        with pytest.raises(RedisAway, match="did not answer") as frozen:
            await soon(redis.call("PING"))
        assert frozen.value.maybe_done
        net.thaw()
        await eventually(lambda: answers(redis))


async def test_a_frozen_redis_holds_no_connection_of_ones_own(engines: Engines) -> None:
    async with (
        proxy(engines.redis_url) as (net, url),
        opened(url, timeout=30) as redis,
        redis.connection() as mine,
    ):
        net.freeze()
        with pytest.raises(RedisAway, match="did not answer"):
            await soon(mine.call("PING", timeout=0.2))


async def test_a_subscriber_is_told_of_the_gap(engines: Engines, redis: Redis, unique: Unique) -> None:
    channel = unique("gap")
    async with (
        proxy(engines.redis_url) as (net, url),
        opened(url, timeout=30) as through,
        through.subscribe(channel) as messages,
    ):
        await redis.call("PUBLISH", channel, "one")
        assert await soon(anext(messages)) == (channel, b"one")
        net.cut()
        assert await soon(anext(messages)) == ("", b"")
        await redis.call("PUBLISH", channel, "two")
        assert await soon(anext(messages)) == (channel, b"two")


async def test_a_silent_subscription_is_made_anew(
    engines: Engines, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedicated, "HEARTBEAT_S", 0.2)
    async with (
        proxy(engines.redis_url) as (net, url),
        opened(url, timeout=30) as through,
        through.subscribe(unique("silent")) as messages,
    ):
        net.freeze()
        waiting = asyncio.ensure_future(anext(messages))
        before = net.accepted
        await eventually(lambda: net.accepted > before)
        net.thaw()
        assert await soon(waiting) == ("", b"")


async def test_a_reader_that_falls_behind_gets_a_gap_and_not_a_pile(
    redis: Redis, unique: Unique, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dedicated, "INBOX", 10)
    channel = unique("flood")
    async with redis.subscribe(channel) as messages:
        await redis.many([("PUBLISH", channel, n) for n in range(95)])
        seen: list[bytes] = []
        while not seen or seen[-1] != b"94":
            seen.append((await soon(anext(messages)))[1])
        assert len(seen) < 95
        assert b"" in seen


async def test_kill_dash_nine_and_a_new_start(own_redis: OwnEngine, short_tmp: Path) -> None:
    home = short_tmp / "killed"
    engine = await own_redis(at=home)
    async with proxy(engine.url) as (net, url), opened(url, timeout=30) as redis:
        await redis.call("SET", "kept", "yes")
        os.kill(engine.pid, signal.SIGKILL)
        await engine.wait()
        with pytest.raises(RedisAway):
            while True:
                await redis.call("PING")
        net.aim((await own_redis(at=home)).url)
        await eventually(lambda: answers(redis))
        assert await redis.call("GET", "kept") == b"yes"
