"""`handbill reset` on a real installation: refused while it runs, asked first, gone after, and new again."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e._up import ready, settings_of
from tests.kit.processes import HANDBILL, environment, free_port, process


async def reset(home: Path, *words: str, answer: str = "") -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        (*HANDBILL, "reset", *words),
        env=environment({"HANDBILL_HOME": str(home)}),
        input=answer,
        capture_output=True,
        text=True,
        check=False,
    )


def contents(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.timeout(300)
async def test_the_end_of_an_installation(short_tmp: Path) -> None:
    home = short_tmp / "home"
    env = {**settings_of(home), "HANDBILL_CLICKHOUSE__URL": f"http://127.0.0.1:{free_port()}"}
    async with process("up", "--json", "--json-logs", env=env) as up:
        first = (await ready(up))["demo"]
        refused = await reset(home, "--yes")
        assert refused.returncode == 2, refused
        assert f"already running on {home} as pid {up.pid}" in refused.stderr
        assert await up.stop() == 0, up.tail()

    before = contents(home)
    for answer in ("", "n\n", "y\n", "yes\n", f"{home}\n"):
        declined = await reset(home, answer=answer)
        assert declined.returncode == 1, declined
        assert "postgres" in declined.stderr
        assert str(home) in declined.stderr
        assert contents(home) == before

    done = await reset(home, "--json", answer="home\n")
    assert done.returncode == 0, done
    facts = json.loads(done.stdout)
    assert facts["home"] == str(home)
    assert facts["removed"]["postgres"] > 1_000_000
    assert not home.exists()

    async with process("up", "--json", "--json-logs", env=env) as up:
        assert (await ready(up))["demo"] != first
        assert await up.stop() == 0, up.tail()
    assert (await reset(home, "--yes")).returncode == 0
    assert not home.exists()
