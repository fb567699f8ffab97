"""A disk that fills up under load: what was accepted is in both stores, once, when there is space again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.kit.processes import program
from tests.kit.small_disk import inside

HOME_MEGABYTES, CLICKHOUSE_MEGABYTES = 420, 150


@pytest.mark.timeout(600)
async def test_a_full_disk_loses_nothing_in_either_store(short_tmp: Path) -> None:
    home = short_tmp / "home"
    scenario = (sys.executable, "-m", "tests.e2e.full_disk_scenario", str(home))
    command, env = inside(scenario, {home: HOME_MEGABYTES, home / "clickhouse": CLICKHOUSE_MEGABYTES})
    async with program(*command, env=env) as running:
        result = json.loads((await running.succeeds(540)).splitlines()[-1])
    assert result["refused_inserts"] > 0, "ClickHouse said that its disk was full"
    assert min(result["accepted"].values()) >= 1_000
    nothing = {"lost": 0, "doubled": 0}
    assert result["postgres"] == {"impression": nothing}, result
    assert result["clickhouse"] == {"capture": nothing, "impression": nothing}, result
