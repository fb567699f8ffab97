"""The heartbeat file of an API process: withheld while its event loop stands still, one file for each process."""

from __future__ import annotations

from pathlib import Path

import pytest

from handbill.api import server
from handbill.kit import task_health
from handbill.kit.task_health import TaskHealth
from handbill.settings import load
from handbill.wiring.heartbeat_files import api_heartbeat_file
from tests.kit.clocks import FakeClock
from tests.kit.waiting import eventually


async def test_the_event_loop_of_an_api_process_has_a_health_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr(server, "TaskHealth", lambda name, *, limit_s: TaskHealth(name, limit_s=limit_s, clock=clock))
    file = tmp_path / "run" / "api.heartbeat"
    async with server._heartbeat(file):
        assert file.exists()
        clock.advance(seconds=32)  # nothing else runs in between: as if the loop were blocked
        assert "event-loop" in task_health.silent()
        await eventually(lambda: "event-loop" not in task_health.silent(), what="the loop moves again")
    assert not file.exists()
    assert "event-loop" not in [health.name for health in task_health.running()]


async def test_an_api_process_starts_without_a_place_for_its_file(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file where a directory should be")
    async with server._heartbeat(tmp_path / "run" / "api.heartbeat"):
        assert (tmp_path / "run").is_file()


def test_api_processes_have_files_of_their_own() -> None:
    plain, chosen = load({"HANDBILL_HOME": "/data"}), load({"HANDBILL_API__HEARTBEAT_FILE": "/run/hb/alive"})
    assert [str(api_heartbeat_file(plain, number)) for number in ("", "2")] == [
        "/data/run/api.heartbeat",
        "/data/run/api-2.heartbeat",
    ]
    assert [str(api_heartbeat_file(chosen, number)) for number in ("", "2")] == ["/run/hb/alive", "/run/hb/alive-2"]
