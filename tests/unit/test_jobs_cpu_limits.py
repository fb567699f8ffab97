"""A call in a process of its own has limits; what exceeds one costs its own process only."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from handbill.jobs.model import CpuDied, CpuLimitExceeded
from handbill.jobs.worker import CpuPool
from handbill.kit.errors import Busy
from tests.kit import slow_files
from tests.kit.waiting import eventually


@pytest.fixture
async def pool() -> AsyncIterator[CpuPool]:
    made = CpuPool(2, memory_bytes=1 << 30)
    yield made
    await made.stop()


async def test_a_call_that_never_ends_is_stopped_and_its_neighbour_is_not(pool: CpuPool, tmp_path: Path) -> None:
    mark = Path(f"{tmp_path}/file.spinning")
    slow = asyncio.create_task(pool.run(slow_files.spin, str(tmp_path / "file"), cpu_s=1.0))
    neighbour = await pool.run(slow_files.process_id)
    with pytest.raises(CpuLimitExceeded):
        await slow
    killed = int(mark.read_text())
    assert killed not in (os.getpid(), neighbour)
    again = await asyncio.gather(*(pool.run(slow_files.process_id) for _ in range(4)))
    assert neighbour in again
    assert killed not in again
    with pytest.raises(ProcessLookupError):
        os.kill(killed, 0)


async def test_the_limit_is_of_one_call_and_not_of_the_process(pool: CpuPool) -> None:
    first = await pool.run(slow_files.process_id, cpu_s=0.5)
    for _ in range(20):
        await pool.run(sum, range(1_000_000), cpu_s=5.0)
    assert await pool.run(slow_files.process_id) == first


async def test_a_call_that_takes_too_much_memory_is_stopped(pool: CpuPool) -> None:
    with pytest.raises(CpuLimitExceeded):
        await pool.run(slow_files.allocate, 2 << 30, cpu_s=30.0)
    assert await pool.run(slow_files.allocate, 1 << 20) == 1 << 20


async def test_a_kill_from_outside_is_no_exceeded_limit(pool: CpuPool, tmp_path: Path) -> None:
    mark = Path(f"{tmp_path}/file.spinning")
    slow = asyncio.create_task(pool.run(slow_files.spin, str(tmp_path / "file"), cpu_s=600.0))
    await eventually(lambda: mark.exists() and mark.read_text() != "")
    os.kill(int(mark.read_text()), 9)
    with pytest.raises(CpuDied):
        await slow


async def test_a_machine_without_a_process_left_is_busy_and_recovers(
    pool: CpuPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def launch(executor: ProcessPoolExecutor) -> None:
        raise OSError(errno.EAGAIN, "no process is left")

    with monkeypatch.context() as broken:
        broken.setattr(ProcessPoolExecutor, "_spawn_process", launch)
        with pytest.raises(Busy):
            await pool.run(slow_files.process_id)
    assert await pool.run(slow_files.process_id) != os.getpid()
