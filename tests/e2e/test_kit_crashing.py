"""A real process is killed at a generated crash point: the points are counted first, none is picked by hand."""

from __future__ import annotations

import signal
from pathlib import Path

from tests.kit.crashes import crashing


async def test_a_real_process_dies_at_its_nth_point(handbill_env: dict[str, str], tmp_path: Path) -> None:
    command = ("tenant", "ls", "--json")
    names = tmp_path / "points"
    async with crashing(*command, points=names, env=handbill_env) as alive:
        await alive.succeeds()
    points = names.read_text().splitlines()
    print(f"crash points of `handbill tenant ls`: {len(points)}")
    assert sum("pg:" in point for point in points) >= 2

    names.unlink()
    async with crashing(*command, at=2, only="pg:", points=names, env=handbill_env) as dying:
        assert await dying.exit() == -signal.SIGKILL, dying.tail()
    assert len(names.read_text().splitlines()) == 2
