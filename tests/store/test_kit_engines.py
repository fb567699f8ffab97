"""The test kit itself: engines are real and ours alone, processes are heard and die when told, crash points count."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg
import psutil
import pytest

from handbill.kit import crashpoints
from tests.conftest import MakeTenant, OwnEngine
from tests.kit import run, slow_fsync
from tests.kit.clocks import FakeClock
from tests.kit.crashes import Died, dying_at, enumerate_points
from tests.kit.engines import Engines
from tests.kit.processes import ROOT, program
from tests.kit.waiting import eventually

if TYPE_CHECKING:
    from handbill.infra.clickhouse import ClickHouse
    from handbill.infra.redis import Redis

TALKER = """
import signal, sys
print('{"event": "hello", "n": 1}', flush=True)
print("plain words", flush=True)
print('{"event": "hello", "n": 2}', file=sys.stderr, flush=True)
signal.pause()
"""


async def test_each_worker_has_a_migrated_database_of_its_own(engines: Engines, make_tenant: MakeTenant) -> None:
    first, second = await make_tenant(), await make_tenant(tier="enterprise")
    assert first != second
    connection = await asyncpg.connect(engines.postgres_url)
    try:
        assert await connection.fetchval("select current_database()") == engines.worker
        tiers = await connection.fetch("select tier from tenants.tenants where tenant_id in ($1, $2)", first, second)
        assert sorted(row["tier"] for row in tiers) == ["enterprise", "standard"]
    finally:
        await connection.close()


async def test_redis_is_durable_as_shipped(redis: Redis) -> None:
    assert await redis.call("CONFIG", "GET", "appendfsync") == [b"appendfsync", b"always"]


async def test_an_engine_of_ones_own_can_be_killed_and_started_again(own_redis: OwnEngine, short_tmp: Path) -> None:
    from handbill.infra.redis import Redis

    for expected in (None, b"kept"):
        engine = await own_redis(at=short_tmp / "r")
        adapter = Redis(engine.url, timeout=30)
        await adapter.start()
        assert await adapter.call("GET", "word") == expected
        await adapter.call("SET", "word", "kept")
        await adapter.stop()
        os.kill(engine.pid, signal.SIGKILL)
        assert await engine.wait() == -signal.SIGKILL


async def test_a_process_is_heard_and_killed() -> None:
    async with program(sys.executable, "-c", TALKER) as talker:
        assert (await talker.log(event="hello", n=2))["n"] == 2
        assert await talker.says("plain") == "plain words"
        assert (await talker.log(event="hello", count=2))["event"] == "hello"
        talker.kill()
        assert await talker.exit() == -signal.SIGKILL


async def test_waiting_for_a_line_ends_with_the_process_and_shows_its_output() -> None:
    async with program(sys.executable, "-c", "print('last words')") as talker:
        with pytest.raises(AssertionError, match="last words"):
            await talker.log(event="never")


async def test_no_process_outlives_its_block() -> None:
    async with program(sys.executable, "-c", TALKER) as talker:
        await talker.log(event="hello")
    with pytest.raises(ProcessLookupError):
        os.kill(talker.pid, 0)


async def test_every_crash_point_of_a_coroutine_is_visited_once() -> None:
    done: list[str] = []
    deaths: list[tuple[int, str]] = []

    async def attempt() -> None:
        done.clear()
        for name in ("one", "two", "three"):
            crashpoints.reached(f"before:{name}")
            done.append(name)
            crashpoints.reached(f"after:{name}")

    async def check(number: int, name: str) -> None:
        deaths.append((len(done), name))

    assert await enumerate_points(attempt, check, what="the example") == 6
    assert deaths[0] == (0, "before:one")
    assert deaths[3] == (2, "after:two")
    assert deaths[-1] == (3, "after:three")  # the last attempt got through
    assert crashpoints.hook is None


async def test_a_dead_coroutine_stays_dead() -> None:
    with dying_at(1):
        with pytest.raises(Died):
            crashpoints.reached("first")
        with pytest.raises(Died):  # clean-up code cannot reach an engine either
            crashpoints.reached("second")


async def test_a_fake_clock_moves_only_when_told() -> None:
    clock = FakeClock()
    before, counter = clock.now_ms(), clock.monotonic()
    clock.advance(ms=1, seconds=2)
    assert clock.now_ms() - before == 2_001
    assert clock.monotonic() - counter == pytest.approx(2.001)


async def test_eventually_shows_the_last_complaint() -> None:
    def never() -> bool:
        raise AssertionError("still three left")

    with pytest.raises(AssertionError, match="not true") as caught:
        await eventually(never, timeout=0.01)
    assert "three left" in str(caught.value.__cause__)


async def test_slow_fsync_slows_fsync_and_nothing_else(tmp_path: Path) -> None:
    script = (
        "import os, sys, time\n"
        "f = open(sys.argv[1], 'wb')\n"
        "start = time.monotonic()\n"
        "os.fsync(f)\n"
        "print(time.monotonic() - start)\n"
    )
    async with program(sys.executable, "-c", script, str(tmp_path / "f"), env=slow_fsync.environment(ms=50)) as slow:
        assert float((await slow.succeeds()).strip()) >= 0.045


async def test_a_killed_run_leaves_no_engine_behind(tmp_path: Path) -> None:
    """A second run beside this one: its own directory, its own engine; both gone after a SIGKILL of its head."""
    test = tmp_path / "test_inner.py"
    test.write_text(
        "import os, signal\n"
        "def test_it(engines):\n"
        "    print('inner', os.environ['HBTEST_RUN'], engines.redis_url, flush=True)\n"
        "    signal.pause()\n"
    )
    command = [sys.executable, "-m", "pytest", "-s", "-q", "-p", "no:cacheprovider", "--confcutdir", "/"]
    command += ["-p", "tests.conftest", "--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml"), str(test)]
    async with program(*command, env={run.VARIABLE: ""}) as inner:
        _, home, _url = (await inner.says("inner ")).rsplit(" ", 2)
        assert Path(home).is_dir()
        assert Path(home) != run.here()
        inner.kill()
        await inner.exit()
    await eventually(lambda: not Path(home).exists(), what="the dead run's directory is gone")
    await eventually(lambda: not _processes_of(home), what="the dead run's keeper and engines are gone")


def _processes_of(home: str) -> list[psutil.Process]:
    return [p for p in psutil.process_iter(["cmdline"]) if home in " ".join(p.info["cmdline"] or ())]


async def test_each_worker_has_a_clickhouse_database_of_its_own(clickhouse: ClickHouse, engines: Engines) -> None:
    assert await clickhouse.query("select currentDatabase(), 1 + 1") == [(engines.worker, 2)]
