"""Seconds from `handbill up` to ready: on an empty home, on a full one, and on a full one after kill -9."""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import psutil

from benches._bench import ROUNDS, Options, Result, main, require, rounded, say
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.redis import Redis
from handbill.settings import load
from handbill.wiring import addresses
from tests.kit.processes import Process, free_port, process

BAR = "empty < 15 s; full < 8 s (detail.full_s); idle < 1.5 GB (detail.idle_mb)"
EMPTY_LIMIT, FULL_LIMIT, IDLE_LIMIT_MB = 15.0, 8.0, 1_536


async def body(options: Options) -> Result:
    rows = options.scaled(1_000_000, 50_000)
    empty: list[float] = []
    full: list[float] = []
    crashed: list[float] = []
    idle = 0.0
    for number in range(ROUNDS):
        home = Path(tempfile.mkdtemp(prefix="hbb-"))
        home.chmod(0o755)
        try:
            async with boot(home) as (up, seconds):
                empty.append(seconds)
                idle = max(idle, await memory(up))
                await fill(home, rows)
            async with boot(home, kill=True) as (_, seconds):
                full.append(seconds)
            async with boot(home) as (_, seconds):
                crashed.append(seconds)
        finally:
            shutil.rmtree(home, ignore_errors=True)
        say(f"round {number + 1}: empty {empty[-1]:.1f} s, full {full[-1]:.1f} s, after kill -9 {crashed[-1]:.1f} s")
    value = statistics.median(empty)
    detail = {
        "rounds": [rounded(seconds) for seconds in empty],
        "full_s": rounded(statistics.median(full)),
        "after_kill_s": rounded(statistics.median(crashed)),
        "idle_mb": round(idle),
        "full_limit_s": FULL_LIMIT,
        "idle_limit_mb": IDLE_LIMIT_MB,
        "preloaded": {"postgres_rows": rows, "clickhouse_rows": rows, "redis_keys": rows // 10},
    }
    return Result(value, "s", EMPTY_LIMIT, detail)


@asynccontextmanager
async def boot(home: Path, *, kill: bool = False) -> AsyncIterator[tuple[Process, float]]:
    """Start it, give the seconds until it printed where to look, and end it: in order, or with kill -9."""
    ports = {name: str(free_port()) for name in ("HANDBILL_API__PORT", "HANDBILL_WORKER__PORT")}
    off = {"HANDBILL_API__METRICS_PORT": "0", "HANDBILL_WORKER__METRICS_PORT": "0"}
    began = time.perf_counter()
    async with process("up", "--json", "--json-logs", env={"HANDBILL_HOME": str(home), **ports, **off}) as up:
        facts = json.loads(await up.says('"demo":', timeout=120))
        seconds = time.perf_counter() - began
        require(facts["demo"] is not None, "there is no demo tenant")
        yield up, seconds
        if kill:
            up.kill()
            await up.exit()
        else:
            require(await up.stop() == 0, "it did not stop in order")


async def memory(up: Process) -> float:
    """MB of everything that `up` started, shared pages counted once, after a moment of rest."""
    await asyncio.sleep(5)
    family = [psutil.Process(up.pid), *psutil.Process(up.pid).children(recursive=True)]
    return sum(one.memory_full_info().pss for one in family) / 1024**2


async def fill(home: Path, rows: int) -> None:
    """Rows and keys of no meaning, so that every engine has something to load."""
    known = addresses.resolve(load({"HANDBILL_HOME": str(home)}))
    owner = await asyncpg.connect(known.postgres.url)
    await owner.execute(
        "insert into tenants.audit_log (tenant_id, audit_id, at, actor, action, object)"
        f" select 1, gen_random_uuid(), now(), 'bench', 'fill', 'row ' || n from generate_series(1, {rows:d}) n"
    )
    await owner.close()
    store = ClickHouse(known.clickhouse.url or "")
    await store.start()
    await store.command("create table filling (id UInt64, words String) engine = MergeTree order by id")
    await store.command(f"insert into filling select number, toString(number) from numbers({rows:d})")
    await store.stop()
    redis = Redis(known.redis.url or "", timeout=60)
    await redis.start()
    for start in range(0, rows // 10, 1_000):
        await redis.many([("SET", f"fill:{number}", "x" * 100) for number in range(start, start + 1_000)])
    await redis.stop()


if __name__ == "__main__":
    main("boot", body)
