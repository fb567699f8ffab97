"""`handbill up` from an empty home to a clean stop, with deaths of every kind in between."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.e2e._up import ready, settings_of
from tests.kit.processes import free_port, handbill, process
from tests.kit.waiting import eventually


async def status(url: str, **headers: str) -> int:
    try:
        async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as reply:
            return reply.status
    except aiohttp.ClientError:
        return 0


def on_home(home: Path) -> list[psutil.Process]:
    """Every live process that runs on this home: engines by their arguments, children by their settings."""
    found = []
    for candidate in psutil.process_iter():
        try:
            words = " ".join(candidate.cmdline())
            ours = str(home) in words or candidate.environ().get("HANDBILL_HOME") == str(home)
            if ours and candidate.pid != os.getpid() and candidate.status() != psutil.STATUS_ZOMBIE:
                found.append(candidate)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found


def child(home: Path, kind: str) -> psutil.Process:
    return next(one for one in on_home(home) if one.cmdline()[-2:] == ["handbill.cli", kind])


def engine(home: Path, name: str) -> psutil.Process:
    return next(one for one in on_home(home) if f"{home}/{name}" in " ".join(one.cmdline()))


@pytest.mark.timeout(600)
async def test_the_life_of_up(short_tmp: Path) -> None:
    home = short_tmp / "home"
    env = settings_of(home)
    async with process("up", "--json", "--json-logs", env=env) as up:
        facts = await ready(up)
        api, demo = str(facts["api"]), dict(facts["demo"])  # type: ignore[call-overload]
        key = {"Authorization": f"Bearer {demo['secret_key']}"}
        assert await status(f"{api}/health") == 200
        assert await status(f"{api}/admin/tenant", **key) == 200
        assert await status(f"http://127.0.0.1:{env['HANDBILL_WORKER__PORT']}/health") == 200

        code, said = await handbill("up", env={**env, "HANDBILL_API__PORT": str(free_port())})
        assert code == 2, said
        assert f"already running on {home} as pid {up.pid}" in said

        code, said = await handbill("state-hash", "--json", env={"HANDBILL_HOME": str(home)})
        assert code == 0, said
        before = json.loads(said)["tables"]["tenants.api_keys"]

        child(home, "api").kill()
        await up.log(event="unit-restarted", name="api")
        assert await status(f"{api}/admin/tenant", **key) == 200
        engine(home, "postgres").kill()
        await up.log(event="unit-restarted", name="postgres")
        await eventually(lambda: _is(status(f"{api}/admin/tenant", **key), 200))
        assert len(up.seen(event="unit-died", name="postgres")) == 1

        up.kill()
        await up.exit()
        await eventually(lambda: not on_home(home), what="no orphan is left after kill -9 of the supervisor")

    async with process("up", "--json", "--json-logs", env=env) as up:
        facts = await ready(up)
        assert facts["demo"] == demo, "the demo tenant is made once"
        code, said = await handbill("state-hash", "--json", env={"HANDBILL_HOME": str(home)})
        assert json.loads(said)["tables"]["tenants.api_keys"] == before
        assert await up.stop() == 0, up.tail()
        stops = [line["event"] for line in up.logs if line.get("event", "").endswith(("-stopping", "-stopped"))]
        assert stops.index("up-stopping") < stops.index("worker-stopped") < stops.index("up-stopped")
    assert not on_home(home)
    assert not (home / "run" / "engines.json").exists()

    quiet = {**env, "HANDBILL_LOG__LEVEL": "warning"}  # whether a child is ready does not depend on what it logs
    async with process("up", "--json", "--json-logs", env=quiet) as up:
        await ready(up)
        assert await up.stop() == 0, up.tail()


async def _is(answer: Awaitable[int], wanted: int) -> bool:
    return await answer == wanted


async def test_a_stop_during_the_start_leaves_nothing_behind(short_tmp: Path) -> None:
    home = short_tmp / "home"
    async with process("up", "--json-logs", env=settings_of(home)) as up:
        await up.log(event="unit-ready", name="redis")
        up.signal(signal.SIGINT)
        assert await up.exit() == 0, up.tail()
    assert not on_home(home)


async def test_a_taken_port_stops_the_start_before_anything_runs(short_tmp: Path) -> None:
    home = short_tmp / "home"
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        code, said = await handbill("up", env={**settings_of(home), "HANDBILL_API__PORT": str(port)})
    finally:
        server.close()
        await server.wait_closed()
    assert code == 1, said
    assert f"Port {port} on 127.0.0.1 cannot be used" in said
    assert "HANDBILL_API__PORT" in said
    assert not (home / "postgres").exists()
