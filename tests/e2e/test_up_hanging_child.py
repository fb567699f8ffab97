"""`handbill up` restarts a child that is alive and hangs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.e2e._up import ready, settings_of
from tests.kit.processes import process
from tests.kit.waiting import eventually


async def is_healthy(url: str) -> bool:
    try:
        async with aiohttp.ClientSession() as http, http.get(url) as reply:
            return reply.status == 200
    except aiohttp.ClientError:
        return False


def pid_of_child(up: int, kind: str) -> int | None:
    """The running child of this kind, None while there is none."""
    for child in psutil.Process(up).children():
        try:
            if child.cmdline()[-2:] == ["handbill.cli", kind]:
                return child.pid
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    return None


def make_old(file: Path) -> None:
    """As if it had not been touched for a minute."""
    then = file.stat().st_mtime - 60
    os.utime(file, (then, then))


@pytest.mark.timeout(600)
async def test_a_child_that_stands_still_is_killed_and_started_again(short_tmp: Path) -> None:
    home = short_tmp / "home"
    env = settings_of(home)
    async with process("up", "--json", "--json-logs", env=env) as up:
        urls = {
            "api": f"{(await ready(up))['api']}/health",
            "worker": f"http://127.0.0.1:{env['HANDBILL_WORKER__PORT']}/health",
        }
        for kind, url in urls.items():
            file = home / "run" / f"{kind}.heartbeat"
            pid = pid_of_child(up.pid, kind)
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            await eventually(lambda pid=pid: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
            make_old(file)
            await up.log(event="heartbeat.too_old", name=kind)
            await up.log(event="unit-restarted", name=kind)
            assert pid_of_child(up.pid, kind) not in (None, pid)
            await eventually(lambda url=url: is_healthy(url))
            assert file.exists()
        assert await up.stop() == 0
    assert not list((home / "run").glob("*.heartbeat")), "an orderly stop removes them"
