"""The worker's shell around made-up chores: order, isolation, errors in a row, heartbeat and health."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast

import pytest

from handbill.kit.errors import Broken, Busy
from handbill.kit.pulse import Pulse
from handbill.settings import Settings, load
from handbill.wiring.chores import PLANS, Plan, chosen
from handbill.wiring.house import House
from handbill.worker.heartbeat import Heartbeat, stuck
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
    def __init__(self, name: str, said: list[str], pulse: Pulse, *, bad: bool = False) -> None:
        self.name = name
        self.pulse = pulse
        self._said = said
        self._bad = bad

    async def start(self) -> None:
        self._said.append(f"start {self.name}")

    async def stop(self) -> None:
        self._said.append(f"stop {self.name}")
        if self._bad:
            raise RuntimeError("cannot stop")


def settings_in(home: Path, **more: str) -> Settings:
    off = {"HANDBILL_WORKER__PORT": "0", "HANDBILL_WORKER__METRICS_PORT": "0", "HANDBILL_HOME": str(home)}
    return load(off | more)


def make_shell(home: Path, said: list[str], **more: str) -> tuple[Shell, dict[str, FakeChore]]:
    made: dict[str, FakeChore] = {}

    def plan(name: str, *, bad: bool = False) -> Plan:
        def build(house: House, pulse: Pulse) -> Any:
            made[name] = FakeChore(name, said, pulse, bad=bad)
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
    await eventually(lambda: len(made) == 3)
    for _ in range(3):
        made["two"].pulse.failed(ValueError("bad batch"))
    with pytest.raises(Broken, match=r"two failed 3 times in a row, last with ValueError: bad batch"):
        await running
    assert said[-1] == "stop house"


async def test_a_house_that_cannot_start_leaves_nothing_running(tmp_path: Path) -> None:
    said: list[str] = []
    shell, made = make_shell(tmp_path, said)

    async def refuse(shell: str) -> None:
        raise Busy("PostgreSQL is away")

    shell._house.start = refuse  # type: ignore[method-assign]
    with pytest.raises(Busy):
        await shell.run()
    assert not made
    assert said == ["stop house"]


def test_errors_are_forgotten_only_by_finished_work_and_busy_is_no_error() -> None:
    pulse = Pulse("x", FakeClock())
    pulse.failed(Busy("away"))
    assert pulse.errors == 0
    pulse.failed(ValueError("x"))
    pulse.beat()
    assert pulse.errors == 1
    pulse.processed(3)
    assert (pulse.errors, pulse.done) == (0, 3)


def test_a_loop_that_beat_once_must_keep_beating() -> None:
    clock = FakeClock()
    never, beats = Pulse("never", clock), Pulse("beats", clock)
    clock.advance(seconds=100)
    assert stuck([never, beats]) == []
    beats.beat()
    clock.advance(seconds=29.9)
    assert stuck([never, beats]) == []
    clock.advance(seconds=0.2)
    assert stuck([never, beats]) == ["beats"]
    beats.failed(Busy("away"))
    assert stuck([never, beats]) == []


def test_the_heartbeat_file_grows_old_while_a_loop_is_stuck(tmp_path: Path) -> None:
    clock = FakeClock()
    pulse = Pulse("loop", clock)
    heart = Heartbeat(tmp_path / "run" / "beat", lambda: [pulse], every=3600)
    pulse.beat()
    heart.start()
    os.utime(heart.path, (1, 1))
    assert heart.touch()
    assert heart.path.stat().st_mtime > 1
    os.utime(heart.path, (1, 1))
    clock.advance(seconds=31)
    assert not heart.touch()
    assert heart.path.stat().st_mtime == 1
    pulse.beat()
    assert heart.touch()
    heart.stop()
    assert not heart.path.exists()


def test_only_chooses_by_kind() -> None:
    assert chosen(()) == list(PLANS)
    assert {plan.kind for plan in chosen(("relay",))} == {"relay"}
    assert chosen(("consume",)) == [plan for plan in PLANS if plan.kind == "consume"]
