"""The worker's shell around made-up chores: order, isolation, errors in a row, heartbeat and health."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest

from handbill.kit import task_health
from handbill.kit.errors import Broken, Busy
from handbill.kit.heartbeat import Heartbeat
from handbill.kit.task_health import TaskHealth
from handbill.settings import Settings, load
from handbill.wiring.chores import PLANS, Plan, chosen
from handbill.wiring.house import House
from handbill.worker.shell import Shell
from tests.kit.clocks import FakeClock
from tests.kit.waiting import eventually


class FakeHouse:
    def __init__(self, said: list[str]) -> None:
        self.clock = FakeClock()
        self._said = said

    async def start(self, shell: str) -> None:
        assert shell == "worker"
        self._said.append("start house")

    async def stop(self) -> None:
        self._said.append("stop house")


class FakeChore:
    def __init__(self, name: str, said: list[str], *, bad: bool = False) -> None:
        self.name = name
        self.health = TaskHealth(name)
        self._said = said
        self._bad = bad

    async def start(self) -> None:
        self._said.append(f"start {self.name}")
        task_health.register(self.health)

    async def stop(self) -> None:
        self._said.append(f"stop {self.name}")
        task_health.unregister(self.health)
        if self._bad:
            raise RuntimeError("cannot stop")


def settings_in(home: Path, **more: str) -> Settings:
    off = {"HANDBILL_WORKER__PORT": "0", "HANDBILL_WORKER__METRICS_PORT": "0", "HANDBILL_HOME": str(home)}
    return load(off | more)


def make_shell(home: Path, said: list[str], **more: str) -> tuple[Shell, dict[str, FakeChore]]:
    made: dict[str, FakeChore] = {}

    def plan(name: str, *, bad: bool = False) -> Plan:
        def build(house: House) -> Any:
            made[name] = FakeChore(name, said, bad=bad)
            return made[name]

        return Plan("jobs", name, build)

    plans = [plan("one"), plan("two", bad=True), plan("three")]
    return Shell(cast(House, FakeHouse(said)), settings_in(home, **more), plans), made


async def test_chores_start_in_order_and_stop_in_reverse_whatever_one_of_them_does(tmp_path: Path) -> None:
    said: list[str] = []
    shell, made = make_shell(tmp_path, said)
    running = asyncio.create_task(shell.run())
    await eventually(lambda: len(made) == 3)
    shell.ask_to_stop()
    await running
    starts = ["start house", "start one", "start two", "start three"]
    assert said == [*starts, "stop three", "stop two", "stop one", "stop house"]
    assert not (tmp_path / "run" / "worker.heartbeat").exists()


async def test_too_many_errors_in_a_row_end_the_worker(tmp_path: Path) -> None:
    said: list[str] = []
    shell, made = make_shell(tmp_path, said, HANDBILL_WORKER__MAX_ERRORS="3")
    running = asyncio.create_task(shell.run())
    await eventually(
        lambda: any(each is made["three"].health for each in task_health.running()) if len(made) == 3 else False
    )
    for _ in range(3):
        made["two"].health.failed(ValueError("bad batch"))
    with pytest.raises(Broken, match=r"two failed 3 times in a row, last with ValueError: bad batch"):
        await running
    assert said[-1] == "stop house"


async def test_a_house_that_cannot_start_leaves_nothing_running(tmp_path: Path) -> None:
    said: list[str] = []
    shell, made = make_shell(tmp_path, said)

    async def refuse(shell: object = None) -> None:
        raise Busy("PostgreSQL is away")

    shell._house.start = refuse  # type: ignore[method-assign]
    with pytest.raises(Busy):
        await shell.run()
    assert not made
    assert said == ["stop house"]


def test_the_heartbeat_file_grows_old_while_a_task_hangs(tmp_path: Path) -> None:
    silent: list[str] = []
    heart = Heartbeat(tmp_path / "run" / "beat", lambda: silent, every=3600)
    heart.start()
    os.utime(heart.path, (1, 1))
    assert heart.touch()
    assert heart.path.stat().st_mtime > 1
    os.utime(heart.path, (1, 1))
    silent.append("lane-1")
    assert not heart.touch()
    assert heart.path.stat().st_mtime == 1
    silent.clear()
    assert heart.touch()
    heart.stop()
    assert not heart.path.exists()


def test_only_chooses_by_kind() -> None:
    assert chosen(()) == list(PLANS)
    assert {plan.kind for plan in chosen(("relay",))} == {"relay"}
    assert chosen(("consume",)) == [plan for plan in PLANS if plan.kind == "consume"]
