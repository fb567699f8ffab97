"""A start that is cancelled leaves nothing running behind it, however often it is cancelled."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from handbill.kit.cancellation import finish
from handbill.ops import child as children
from handbill.ops import up
from handbill.ops.child import Child
from handbill.ops.teller import Teller
from tests.kit.waiting import eventually, soon

SLOW_TO_STOP = """
import pathlib, signal, sys, time
here = pathlib.Path(sys.argv[1])
signal.signal(signal.SIGTERM, lambda *_: (here / "asked").touch())
(here / "runs").touch()
while not (here / "may-stop").exists():
    time.sleep(0.01)
"""


async def test_work_is_finished_before_the_cancellation_is_raised() -> None:
    may_end, ended = asyncio.Event(), False

    async def work() -> str:
        nonlocal ended
        await may_end.wait()
        ended = True
        return "result"

    caller = asyncio.create_task(finish(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0)
    assert not caller.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await soon(caller)
    assert ended
    assert await finish(work()) == "result"


async def test_an_error_of_the_work_is_raised() -> None:
    async def work() -> None:
        raise ValueError("odd")

    with pytest.raises(ValueError, match="odd"):
        await finish(work())


async def test_a_stop_during_the_start_waits_for_every_child(short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are stopped afterwards: a child that still runs then would lose what it needs to end in order."""
    spawned: list[subprocess.Popen[bytes]] = []

    def spawn(name: str, *_: Any) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", SLOW_TO_STOP, str(short_tmp)]
        spawned.append(subprocess.Popen(command, stderr=subprocess.PIPE))
        return spawned[0]

    monkeypatch.setattr(children, "_spawn", spawn)
    teller = Teller(as_json=False)

    async def start_slowly() -> None:
        await Child.start("api", [], {}, short_tmp, teller, grace=60)

    other_may_stop = asyncio.Event()

    async def start_another() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await other_may_stop.wait()

    start = asyncio.create_task(up._all(start_slowly(), start_another()))
    await eventually((short_tmp / "runs").exists, what="the child runs")
    start.cancel()
    await eventually((short_tmp / "asked").exists, what="the child is asked to stop")
    other_may_stop.set()  # the first that has stopped makes `_all` cancel the others once more
    for _ in range(50):
        await asyncio.sleep(0)
    assert not start.done(), "the child has not ended yet"
    (short_tmp / "may-stop").touch()
    with pytest.raises(asyncio.CancelledError):
        await soon(start)
    assert spawned[0].poll() == 0
