"""Starting any program on the leash: ready, late, locked, dead, orphaned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from handbill.infra.embedded import process
from handbill.infra.embedded.process import EngineProcess, Launch
from handbill.kit.errors import Broken, Busy, HandbillError
from tests.kit.waiting import eventually, soon

SLEEPER = ("/bin/sh", "-c", "echo awake; exec sleep 600")


def plan(room: Path, *command: str, patience: float = 30.0) -> Launch:
    return Launch(
        name="sleeper",
        command=command or SLEEPER,
        lock=room / "lock",
        log=room / "logs" / "sleeper.log",
        stop_signal=process.STOP,
        orphan_signal=process.KILL,
        environ=process.plain_environ(),
        patience=patience,
    )


def explain(code: int, tail: str) -> HandbillError:
    return Broken(f"ended with {code}: {tail}")


async def awake(engine: EngineProcess) -> None:
    await eventually(lambda: "awake" in engine.log_tail())


async def never() -> bool:
    return False


async def test_it_stops_politely_and_twice(tmp_path: Path) -> None:
    engine = process.launch(plan(tmp_path), "x://")
    await awake(engine)
    await engine.stop()
    await engine.stop()
    assert await engine.wait() == -signal.SIGTERM


async def test_one_that_will_not_go_is_killed(tmp_path: Path) -> None:
    stubborn = ("/bin/sh", "-c", "trap '' TERM; echo awake; while :; do sleep 1; done")
    engine = process.launch(plan(tmp_path, *stubborn), "x://")
    await awake(engine)
    await engine.stop(grace=0.05)
    assert await engine.wait() == -signal.SIGKILL


async def test_wait_tells_of_a_death_that_nobody_ordered(tmp_path: Path) -> None:
    engine = process.launch(plan(tmp_path), "x://")
    await awake(engine)
    os.kill(engine.pid, signal.SIGKILL)
    assert await soon(engine.wait()) == -signal.SIGKILL


async def test_one_that_never_gets_ready_is_stopped_and_its_last_lines_shown(tmp_path: Path) -> None:
    engine = process.launch(plan(tmp_path), "x://")
    await awake(engine)
    with pytest.raises(Busy, match="awake") as caught:
        await engine.until_ready(never, explain, timeout=0.0)
    assert caught.value.code == "ENGINE_NOT_READY"
    assert engine.returncode is not None


async def test_one_that_ends_while_starting_is_explained(tmp_path: Path) -> None:
    engine = process.launch(plan(tmp_path, "/bin/sh", "-c", "echo too bad; exit 3"), "x://")
    with pytest.raises(Broken, match="ended with 3: too bad"):
        await engine.until_ready(never, explain, timeout=60)


async def test_the_lock_lives_exactly_as_long_as_the_program(tmp_path: Path) -> None:
    first = process.launch(plan(tmp_path), "x://")
    await awake(first)
    second = process.launch(plan(tmp_path, patience=0.0), "x://")
    with pytest.raises(Busy, match="still holds") as caught:
        await second.until_ready(never, explain, timeout=60)
    assert caught.value.code == "ENGINE_LOCKED"
    third = process.launch(plan(tmp_path, patience=60.0), "x://")
    os.kill(first.pid, signal.SIGKILL)
    await first.wait()
    await awake(third)
    await third.stop()


async def test_kill_9_of_the_starter_takes_the_program_along(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from handbill.infra.embedded import process;"
        "from handbill.infra.embedded.process import Launch;"
        "room = Path(sys.argv[1]);"
        "plan = Launch(name='s', command=('/bin/sleep', '600'), lock=room / 'lock', log=room / 'log',"
        " stop_signal=15, orphan_signal=9);"
        "print(process.launch(plan, '').pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        await eventually(lambda: _command(pid).startswith(b"/bin/sleep"))
        starter.kill()
        starter.wait()
    await eventually(lambda: not _command(pid))


def test_a_tool_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(Broken, match=r"sh failed with code 4\..*\noh dear"):
        process.run(["/bin/sh", "-c", "echo oh dear; exit 4"], user=None, cwd=tmp_path)


@pytest.mark.parametrize("said", ["could not write: No space left on device", "HINT:  Check free disk space."])
def test_a_tool_that_finds_the_disk_full(tmp_path: Path, said: str) -> None:
    with pytest.raises(Broken, match="is full") as caught:
        process.run(["/bin/sh", "-c", f"echo '{said}'; exit 1"], user=None, cwd=tmp_path)
    assert caught.value.code == "DISK_FULL"


def _command(pid: int) -> bytes:
    """The command line; empty once the process is gone (a zombie has none either)."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
