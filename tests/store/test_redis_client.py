"""The shared line: every caller gets its own reply, whatever shares the write; scripts, transactions, errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

from handbill.infra.redis import Connection, Keys, Redis, RedisAway, RedisBusy, RedisError, line
from handbill.infra.redis.client import opened
from handbill.infra.redis.url import Address, parse
from handbill.kit.errors import Broken
from tests.kit.crashes import Died, dying_at
from tests.kit.engines import Engines
from tests.kit.waiting import eventually, soon

Unique = Callable[[str], str]


async def test_replies_come_raw(redis: Redis, unique: Unique) -> None:
    key = unique("raw")
    assert await redis.call("SET", key, b"\x00\xff") == b"OK"
    assert await redis.call("GET", key) == b"\x00\xff"
    assert await redis.call("STRLEN", key) == 2
    assert await redis.call("GET", unique("absent")) is None
    assert await redis.call("INCRBYFLOAT", unique("float"), 0.5) == b"0.5"
    assert await redis.call("MGET", key, key) == [b"\x00\xff", b"\x00\xff"]
    assert await redis.time_ms() > 1_700_000_000_000


async def test_everybody_gets_their_own_reply(redis: Redis) -> None:
    """Singles, batches and cancelled callers, mixed on one line: no reply ever shifts to a neighbour."""
    draw = random.Random(11)

    async def single(n: int) -> None:
        assert await redis.call("ECHO", n) == b"%d" % n

    async def batch(n: int, atomic: bool) -> None:
        replies = await redis.many([("ECHO", f"{n}-{i}") for i in range(n % 7)], atomic=atomic)
        assert replies == [f"{n}-{i}".encode() for i in range(n % 7)]

    async def wrong(n: int) -> None:
        with pytest.raises(RedisError, match="unknown command"):
            await redis.call(f"NOSUCH{n}")

    async def cancelled(n: int) -> None:
        task = asyncio.create_task(single(n))
        for _ in range(n % 4):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    work = []
    kinds: list[Callable[[int], Awaitable[None]]] = [
        single, partial(batch, atomic=False), partial(batch, atomic=True), wrong, cancelled,
    ]  # fmt: skip
    for n in range(2_000):
        make = draw.choice(kinds)
        work.append(make(n))
    await asyncio.gather(*work)


async def test_many_raises_the_first_error_or_hands_it_over(redis: Redis, unique: Unique) -> None:
    key = unique("text")
    commands = [("SET", key, "x"), ("INCR", key), ("GET", key)]
    with pytest.raises(RedisError) as bad:
        await redis.many(commands)
    assert bad.value.code == "ERR"
    for atomic in (False, True):
        replies = await redis.many(commands, errors=True, atomic=atomic)
        assert replies[0] == b"OK"
        assert isinstance(replies[1], RedisError)
        assert replies[2] == b"x"
    assert await redis.many([]) == []
    assert await redis.many([("GET", key)]) == [b"x"]
    with pytest.raises(RedisError):
        await redis.many([("INCR", key)])


async def test_atomic_does_all_or_nothing(redis: Redis, unique: Unique) -> None:
    key = unique("atomic")
    with pytest.raises(RedisError, match="unknown command"):
        await redis.many([("SET", key, "1"), ("NOSUCH",)], atomic=True)
    assert await redis.call("EXISTS", key) == 0
    assert await redis.many([("SET", key, "1"), ("INCR", key)], atomic=True) == [b"OK", 2]


async def test_a_script_survives_being_forgotten(redis: Redis, unique: Unique) -> None:
    add = redis.script("return redis.call('INCRBY', KEYS[1], ARGV[1])")
    key = unique("script")
    assert await add(keys=[key], args=[5]) == 5
    await redis.call("SCRIPT", "FLUSH")
    assert await add(keys=[key], args=[5]) == 10
    assert await redis.many([add.command([key], [1]), add.command([key], [1])]) == [11, 12]
    await redis.call("SCRIPT", "FLUSH")
    assert await redis.many([add.command([key], [1]), ("GET", key), add.command([key], [1])]) == [13, b"12", 14]
    await redis.call("SCRIPT", "FLUSH")
    with pytest.raises(RedisError, match="NOSCRIPT"):
        await redis.many([add.command([key], [1])], atomic=True)
    assert await redis.many([add.command([key], [1])], atomic=True) == [15]
    await redis.call("SCRIPT", "FLUSH")
    assert await redis.many([add.command([key], [1])]) == [16]


async def test_a_new_connection_is_taught_its_scripts_in_the_same_write(engines: Engines, unique: Unique) -> None:
    body = f"return ARGV[1] .. '{unique('x')}'"  # a text that this server has never seen
    async with opened(engines.redis_url, timeout=30) as fresh:
        script = fresh.script(body)
        replies = await fresh.many([("ECHO", "a"), script.command(args=["b"]), ("ECHO", "c")], atomic=True)
        assert replies[0] == b"a"
        assert replies[1].startswith(b"b")
        assert replies[2] == b"c"
        assert (await script(args=["d"])).startswith(b"d")


async def test_a_full_queue_says_busy_at_once(engines: Engines) -> None:
    async with opened(engines.redis_url, timeout=30, limit=10) as small:
        results = await asyncio.gather(*[small.call("ECHO", n) for n in range(50)], return_exceptions=True)
        assert results[:10] == [b"%d" % n for n in range(10)]
        assert all(isinstance(result, RedisBusy) for result in results[10:])
        assert await small.call("PING") == b"PONG"


async def test_a_wrong_password_is_broken_not_busy(engines: Engines) -> None:
    address = parse(engines.redis_url)
    async with opened(f"redis://:wrong@{address.host}:{address.port}/0") as stranger:
        with pytest.raises(Broken) as refused:
            await stranger.health()
        assert refused.value.code == "REDIS_LOGIN"
        with pytest.raises(Broken):
            async with stranger.connection():
                raise AssertionError("let in with a wrong password")
    async with opened(f"redis://:{address.password}@{address.host}:{address.port}/9999") as nowhere:
        with pytest.raises(Broken, match="out of range"):
            await nowhere.health()


async def test_bytes_in_flight_are_bounded_too(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "BYTES", 1_000)
    async with opened(engines.redis_url, timeout=30) as small:
        results = await asyncio.gather(*[small.call("ECHO", "x" * 400) for _ in range(9)], return_exceptions=True)
        assert [type(result) for result in results] == [bytes] * 2 + [RedisBusy] * 7
        assert await small.call("ECHO", "x" * 5_000) == b"x" * 5_000  # alone, it may be larger than all


async def test_a_connection_of_ones_own_may_block(redis: Redis, unique: Unique) -> None:
    queue = unique("queue")

    async def wait_for_one(connection: Connection) -> object:
        return await connection.call("BZPOPMIN", queue, 30, timeout=60)

    async with redis.connection() as mine:
        assert await mine.call("BZPOPMIN", queue, 0.01, timeout=60) is None
        task = asyncio.create_task(wait_for_one(mine))
        await redis.call("ZADD", queue, 1, "job")
        assert await soon(task) == [queue.encode(), b"job", b"1"]
        assert await mine.many([("ECHO", "a"), ("ECHO", "b")]) == [b"a", b"b"]
        assert await mine.many([("ECHO", "a")]) == [b"a"]
    assert not mine.open
    with pytest.raises(RedisAway):
        await mine.call("PING")


async def test_a_cancelled_blocking_call_closes_its_connection(redis: Redis, unique: Unique) -> None:
    async with redis.connection() as mine:
        task = asyncio.create_task(mine.call("BZPOPMIN", unique("never"), 100, timeout=100))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: not mine.open)


async def test_a_subscriber_hears_what_is_published_after_it_entered(redis: Redis, unique: Unique) -> None:
    one, two = unique("news"), unique("other")
    async with redis.subscribe(one, two) as messages:
        await redis.call("PUBLISH", one, b"\x01")
        await redis.call("PUBLISH", two, "zwei")
        assert await soon(anext(messages)) == (one, b"\x01")
        assert await soon(anext(messages)) == (two, b"zwei")


async def test_every_call_is_a_crash_point(redis: Redis, unique: Unique) -> None:
    key = unique("crash")

    async def work() -> None:
        await redis.call("INCR", key)
        await redis.many([("INCR", key), ("INCR", key)])

    with dying_at(0) as points:
        await work()
    assert points == ["before:redis:INCR", "after:redis:INCR", "before:redis:INCR+INCR", "after:redis:INCR+INCR"]
    for number, value in [(1, 3), (2, 4), (3, 5), (4, 8)]:
        with dying_at(number), pytest.raises(Died):
            await work()
        assert int(await redis.call("GET", key)) == value


def test_urls_are_read_and_never_shown_with_their_password() -> None:
    assert parse("redis://:pw@h:1/2") == Address(host="h", port=1, password="pw", db=2)
    assert parse("rediss://me:p%40w@h") == Address(host="h", user="me", password="p@w", tls=True)
    assert parse("unix://:pw@/run/redis.sock?db=3") == Address(path="/run/redis.sock", password="pw", db=3)
    assert "pw" not in repr(parse("redis://:pw@h:1/2")) + str(parse("unix://:pw@/run/redis.sock"))
    for wrong in ("http://h", "redis://h:port", "redis://h/x"):
        with pytest.raises(Broken):
            parse(wrong)


def test_keys_of_one_tag_share_a_slot() -> None:
    keys = Keys("hb")
    assert keys.tagged("caps", "7:42", "x", 1) == "hb:caps:{7:42}:x:1"
    assert keys.plain("lanes", 3) == "hb:lanes:3"
    assert keys.channel("tenants") == "handbill:tenants"
    for wrong in ("", "a{b", "a}b"):
        with pytest.raises(ValueError, match="hash tag"):
            keys.tagged("caps", wrong)
    with pytest.raises(ValueError, match="prefix"):
        Keys("{hb}")
