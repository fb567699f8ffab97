"""Redis bytes for each (user, banner): a million users with ten banners each, every window full.

Values are written as the script writes them: a sample goes through the script itself and must come out byte for byte
the same; the rest is set directly, with the same expiry, which costs Redis the same memory. What is measured is all
that Redis uses more than before: keys, values, expiry and the tables that hold them.
"""

from __future__ import annotations

import random
from typing import Any

from benches._bench import Options, Result, main, require, rounded, say
from handbill.caps.model import Change, Limits, Seen, State, Subject, Verb, Window
from handbill.caps.packed import Kept, Shelf, pack
from handbill.caps.store import CapsStore
from handbill.infra.redis import Keys, Redis
from tests.kit.stack import stack

BAR = "X=2 <= 50, X=5 <= 70"
BARS = {2: 50.0, 5: 70.0}
BANNERS = 10
DAY_MS = 86_400_000
SAMPLE = 100
CHUNK = 1_000


def views(user: int, x: int, now_ms: int) -> dict[int, list[Seen]]:
    """Ten banners, each seen x times in the last day; ids of banners as a busy installation has them."""
    chance = random.Random(user)
    return {
        100_000 + banner: [
            Seen(now_ms - chance.randrange(DAY_MS), chance.getrandbits(32), State.CONFIRMED) for _ in range(x)
        ]
        for banner in range(BANNERS)
    }


async def used(redis: Redis) -> int:
    info = dict(line.split(b":", 1) for line in (await redis.call("INFO", "memory")).splitlines() if b":" in line)
    return int(info[b"used_memory"]) - int(info.get(b"mem_aof_buffer", b"0"))


async def fill(redis: Redis, store: CapsStore, users: int, x: int, now_ms: int) -> None:
    batch: list[Any] = []
    for user in range(users):
        value = pack({scope: Kept(tuple(seen)) for scope, seen in views(user, x, now_ms).items()})
        batch.append(("SET", store.key(Subject(1, str(user))), value, "PX", DAY_MS))
        if len(batch) == CHUNK:
            await redis.many(batch)
            batch = []
    await redis.many(batch)


async def check(store: CapsStore, users: int, x: int, now_ms: int) -> None:
    """The script writes the same bytes, and a reader finds every window full."""
    chance = random.Random(x)
    limits = Limits((Window(x, DAY_MS),))
    for user in chance.sample(range(users), SAMPLE):
        changes = [
            Change(Verb.CONFIRM, scope, seen.at_ms, seen.fingerprint, x, DAY_MS)
            for scope, some in views(user, x, now_ms).items()
            for seen in some
        ]
        twin = Subject(1, f"twin-{user}")
        await store.run([store.command(twin, changes, now_ms, DAY_MS)])
        value = await store.raw(Subject(1, str(user)))
        require(await store.raw(twin) == value, f"the script writes user {user} otherwise")
        await store.drop([twin])
        shelf = Shelf(value)
        require(
            not any(shelf.eligible(scope, limits, now_ms) for scope in shelf.scopes()), f"user {user} has room left"
        )


async def measure(redis: Redis, users: int, x: int) -> tuple[float, int]:
    await redis.call("FLUSHALL")
    store = CapsStore(redis, Keys())
    now_ms = await redis.time_ms()
    before = await used(redis)
    await fill(redis, store, users, x, now_ms)
    each = (await used(redis) - before) / (users * BANNERS)
    await check(store, users, x, now_ms)
    say(f"X={x}: {each:.1f} bytes for each (user, banner); the bar is {BARS[x]:g}")
    return each, len(await store.raw(Subject(1, "0")))


async def body(options: Options) -> Result:
    users = options.scaled(1_000_000, 50_000)
    async with stack(postgres=False) as built:
        redis = Redis(built.redis_url, timeout=60)
        await redis.start()
        try:
            version = (await redis.call("INFO", "server")).split(b"redis_version:")[1].split()[0].decode()
            two, two_bytes = await measure(redis, users, 2)
            five, five_bytes = await measure(redis, users, 5)
        finally:
            await redis.stop()
    detail = {
        "users": users,
        "banners_each": BANNERS,
        "x5": rounded(five),
        "x5_limit": BARS[5],
        "value_bytes": {"x2": two_bytes, "x5": five_bytes},
        "redis": version,
        "window": "24 h, every one full",
    }
    return Result(two, "bytes", BARS[2], detail)


if __name__ == "__main__":
    main("caps-memory", body)
