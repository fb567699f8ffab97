"""The supervisor's look at heartbeat files: who is killed, and who is not."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from handbill.ops.heartbeats import LIMIT_S, HeartbeatCheck
from handbill.ops.teller import Teller
from tests.kit.clocks import FakeClock


@dataclass
class FakeUnit:
    """A supervised process that counts how often it is killed."""

    name: str = "worker"
    pid: int | None = 1
    killed: list[int | None] = field(default_factory=list)

    def kill(self) -> None:
        self.killed.append(self.pid)
        self.pid = None


class Scene:
    """One child, its file, and a clock that moves by a second from check to check."""

    def __init__(self, home: Path) -> None:
        self.clock = FakeClock()
        self.unit = FakeUnit()
        self.file = home / "worker.heartbeat"
        self.heartbeats = HeartbeatCheck(Teller(as_json=False), self.clock)
        self.heartbeats.watch(self.unit, self.file)

    def touch(self) -> None:
        self.file.touch()
        os.utime(self.file, (self.clock.now().timestamp(),) * 2)

    async def check_for(self, seconds: float, *, touching: bool = False) -> None:
        for _ in range(int(seconds)):
            self.clock.advance(seconds=1)
            if touching:
                self.touch()
            await self.heartbeats.check()


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


async def test_a_child_that_stops_touching_its_file_is_killed_once(scene: Scene) -> None:
    await scene.check_for(100, touching=True)
    assert scene.unit.killed == []
    await scene.check_for(LIMIT_S - 1)
    assert scene.unit.killed == []
    await scene.check_for(1)
    assert scene.unit.killed == [1]
    await scene.check_for(100)
    assert scene.unit.killed == [1], "not ready, so not checked"


async def test_a_child_without_a_file_is_left_alone(scene: Scene) -> None:
    await scene.check_for(100)
    assert scene.unit.killed == []


async def test_a_file_that_is_removed_while_the_child_hangs_does_not_save_it(scene: Scene) -> None:
    await scene.check_for(5, touching=True)
    scene.file.unlink()
    await scene.check_for(LIMIT_S)
    assert scene.unit.killed == [1]


async def test_a_file_of_a_former_run_does_not_count(scene: Scene) -> None:
    scene.touch()
    scene.unit.pid = None
    scene.heartbeats.prepare_start("worker")
    assert not scene.file.exists()
    await scene.check_for(200)
    scene.unit.pid = 2
    await scene.check_for(200, touching=True)
    assert scene.unit.killed == []


async def test_a_file_of_a_former_run_that_cannot_be_removed_does_not_count(scene: Scene) -> None:
    scene.file.mkdir()
    scene.heartbeats.prepare_start("worker")
    await scene.check_for(100)
    assert scene.unit.killed == []


async def test_a_long_start_is_not_cut_short(scene: Scene) -> None:
    scene.unit.pid = None
    scene.touch()
    await scene.check_for(300)
    scene.touch()
    scene.unit.pid = 2
    await scene.check_for(LIMIT_S - 1)
    assert scene.unit.killed == []


async def test_after_the_supervisor_stood_still_children_get_one_more_period(scene: Scene) -> None:
    await scene.check_for(5, touching=True)
    scene.clock.advance(seconds=3_600)
    await scene.check_for(LIMIT_S - 1)
    assert scene.unit.killed == []
    await scene.check_for(5)
    assert scene.unit.killed == [1], "it really hangs"


async def test_a_machine_that_slept_shows_in_wall_time_alone(scene: Scene) -> None:
    await scene.check_for(5, touching=True)
    scene.clock.set(scene.clock.now() + timedelta(hours=8))
    await scene.check_for(20)
    assert scene.unit.killed == []
    await scene.check_for(100, touching=True)
    assert scene.unit.killed == []


async def test_a_child_that_hangs_after_the_clock_was_set_back_is_killed(scene: Scene) -> None:
    await scene.check_for(5, touching=True)
    scene.clock.set(scene.clock.now() - timedelta(hours=8))
    await scene.check_for(LIMIT_S)
    assert scene.unit.killed == [1]


async def test_where_no_file_can_be_touched_nobody_is_killed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a disk that was mounted again as read-only: root could still touch a file without its permissions."""
    scene.heartbeats.prepare_start("worker")
    await scene.check_for(5, touching=True)
    real = os.utime

    def refuse(path: Path, *given: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(os, "utime", refuse)
    await scene.check_for(300)
    assert scene.unit.killed == []
    assert "Read-only file system" in capsys.readouterr().err
    monkeypatch.setattr(os, "utime", real)
    await scene.check_for(LIMIT_S - 1)
    assert scene.unit.killed == [], "the child has time to touch its file again"
    await scene.check_for(200, touching=True)
    assert scene.unit.killed == []
    await scene.check_for(LIMIT_S)
    assert scene.unit.killed == [1], "it hangs, and files can be touched"


async def test_a_full_disk_on_which_the_file_can_be_touched_saves_nobody_who_hangs(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.heartbeats.prepare_start("worker")
    await scene.check_for(5, touching=True)
    real = Path.touch

    def touch(path: Path, *given: Any, **named: Any) -> None:
        if not path.exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        real(path, *given, **named)

    monkeypatch.setattr(Path, "touch", touch)
    await scene.check_for(LIMIT_S)
    assert scene.unit.killed == [1]
