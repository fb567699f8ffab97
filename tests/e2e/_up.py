"""What the tests of `handbill up` share: its settings on a home of its own, and what it prints when ready."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kit.hot import UNHURRIED_SETTINGS
from tests.kit.processes import Process, free_port


def settings_of(home: Path) -> dict[str, str]:
    ports = {name: str(free_port()) for name in ("HANDBILL_API__PORT", "HANDBILL_WORKER__PORT")}
    off = {"HANDBILL_API__METRICS_PORT": "0", "HANDBILL_WORKER__METRICS_PORT": "0"}
    return {"HANDBILL_HOME": str(home), "HANDBILL_API__SECURE_COOKIES": "no", **ports, **off, **UNHURRIED_SETTINGS}


async def ready(up: Process) -> dict[str, object]:
    """What `up --json` prints once everything runs."""
    line = await up.says('"demo":', timeout=150)
    return dict(json.loads(line))
