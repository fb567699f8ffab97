"""The head of an uploaded file is read in a process with limits: a file that exceeds one costs that process only."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from handbill.contacts import inspection
from handbill.contacts.inspection import FileInspector, InspectionLimits
from handbill.contacts.model import Plan
from handbill.contacts.sources import Bounds
from handbill.kit.errors import Busy, Invalid, Throttled
from tests.kit.slow_files import ABORT, EAT, MARK, WAIT, HeadPool
from tests.kit.waiting import eventually

ONE, OTHER = 1, 2
Write = Callable[..., Path]


@pytest.fixture
async def heads() -> AsyncIterator[HeadPool]:
    made = HeadPool(2)
    yield made
    await made.pool.stop()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, mark: str = "") -> Path:
        path = tmp_path / name
        path.write_text(f"name,phone\nAna{mark},+5511987654321\n")
        return path

    return written


def inspector(heads: HeadPool, **limits: float) -> FileInspector:
    return FileInspector(heads.run, Bounds(), InspectionLimits(**{"cpu_s": 600.0, **limits}))  # type: ignore[arg-type]


async def propose(reader: FileInspector, tenant_id: int, path: Path) -> Plan:
    return await reader.propose(tenant_id, path, path.name, "BR", None)


def process_of(path: Path) -> int:
    return int(Path(f"{path}.process").read_text())


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


async def started(path: Path) -> None:
    await eventually(lambda: Path(f"{path}.process").exists())


async def cancelled(*tasks: asyncio.Task[Plan]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_file_is_never_read_in_this_process(heads: HeadPool, write: Write) -> None:
    reader, file = inspector(heads), write("good.csv")
    plan = await propose(reader, ONE, file)
    assert [column.target for column in plan.columns] == ["name", "phone"]
    assert process_of(file) != os.getpid()
    head, fields = await reader.read_head(ONE, file, plan, 5)
    assert head == [["Ana", "+5511987654321"]]
    assert [one and one.phone for one in fields] == ["+5511987654321"]
    changed = await reader.change_header(ONE, file, plan, False, 0)
    assert [column.name for column in changed.columns] == ["column 1", "column 2"]
    with pytest.raises(FileNotFoundError):
        await reader.read_head(ONE, file.with_name("gone.csv"), plan, 5)


async def test_a_file_that_burns_cpu_is_refused_and_its_process_replaced(heads: HeadPool, write: Write) -> None:
    reader, bad, good = inspector(heads, cpu_s=1.0), write("bad.csv", MARK), write("good.csv")
    with pytest.raises(Invalid) as caught:
        await propose(reader, ONE, bad)
    assert caught.value.code == "IMPORT_LIMIT"
    assert "1 s" in caught.value.detail
    assert (await propose(reader, ONE, good)).columns
    assert process_of(good) != process_of(bad)
    await eventually(lambda: not is_running(process_of(bad)))


async def test_a_neighbour_is_answered_while_all_files_of_a_tenant_hang(heads: HeadPool, write: Write) -> None:
    reader = inspector(heads)
    files = [write(f"bad-{number}.csv", MARK) for number in range(3)]
    hanging = [asyncio.create_task(propose(reader, ONE, file)) for file in files]
    await started(files[0])
    good = write("good.csv")
    assert (await propose(reader, OTHER, good)).columns
    assert not any(task.done() for task in hanging)
    assert not any(Path(f"{file}.process").exists() for file in files[1:]), "one process for one tenant"
    await cancelled(*hanging)
    assert (await propose(reader, ONE, good)).columns, "its places are free again"
    await eventually(lambda: not is_running(process_of(files[0])))


async def test_a_file_that_takes_memory_is_refused(heads: HeadPool, write: Write) -> None:
    reader = inspector(heads)
    with pytest.raises(Invalid) as caught:
        await propose(reader, ONE, write("bad.csv", EAT))
    assert caught.value.code == "IMPORT_LIMIT"
    assert (await propose(reader, ONE, write("good.csv"))).columns


async def test_a_file_that_crashes_its_reader_is_refused(heads: HeadPool, write: Write) -> None:
    reader = inspector(heads)
    with pytest.raises(Invalid) as caught:
        await propose(reader, ONE, write("bad.csv", ABORT))
    assert caught.value.code == "IMPORT_LIMIT"
    assert (await propose(reader, ONE, write("good.csv"))).columns


async def test_a_process_that_is_killed_from_outside_costs_the_file_nothing(heads: HeadPool, write: Write) -> None:
    reader, file = inspector(heads), write("good.csv", MARK)
    reading = asyncio.create_task(propose(reader, ONE, file))
    await eventually(lambda: Path(f"{file}.spinning").exists() and Path(f"{file}.spinning").read_text() != "")
    killed = int(Path(f"{file}.spinning").read_text())
    write("good.csv")
    os.kill(killed, 9)
    assert (await reading).columns


async def test_a_reader_that_waits_for_ever_is_ended_by_the_clock(
    heads: HeadPool, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = inspector(heads, cpu_s=1.0)
    assert (await propose(reader, ONE, write("first.csv"))).columns
    monkeypatch.setattr(inspection, "WALL_EXTRA_S", -1.0)
    with pytest.raises(Invalid) as caught:
        await propose(reader, ONE, write("bad.csv", WAIT))
    assert caught.value.code == "IMPORT_LIMIT"


async def test_who_waits_too_long_or_with_too_many_is_sent_away(heads: HeadPool, write: Write) -> None:
    reader = inspector(heads, waiting_per_tenant=1, wait_s=0.1)
    files = [write(f"bad-{tenant_id}.csv", MARK) for tenant_id in (ONE, OTHER)]
    first = asyncio.create_task(propose(reader, ONE, files[0]))
    await started(files[0])
    good = write("good.csv")
    waiting = asyncio.create_task(propose(reader, ONE, good))
    with pytest.raises(Throttled) as mine:
        await waiting
    second = asyncio.create_task(propose(reader, OTHER, files[1]))
    await started(files[1])
    with pytest.raises(Busy) as everybodys:
        await propose(reader, 3, good)
    for caught in (mine.value, everybodys.value):
        assert caught.code == "PREVIEW_BUSY"
        assert caught.retry_after
    await cancelled(first, second)
    assert not reader._requests
    assert not reader._tenants
