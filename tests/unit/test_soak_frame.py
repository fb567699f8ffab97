"""The soak frame: a seed repeats itself, evidence is written only for what held."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.soak.__main__ import soak
from tests.soak.context import Context


def plant(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    module = ModuleType("tests.soak.example")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tests.soak.example", module)


def test_the_same_seed_draws_the_same_and_leaves_evidence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def run(context: Context) -> dict[str, Any]:
        context.settings["size"] = 3
        return {"drawn": [context.random.randrange(1000) for _ in range(5)]}

    plant(monkeypatch, run)
    first = soak("example", seed=7, seconds=1, folder=tmp_path)
    assert soak("example", seed=7, seconds=1, folder=tmp_path)["counts"] == first["counts"]
    assert soak("example", seed=8, seconds=1, folder=tmp_path)["counts"] != first["counts"]
    written = json.loads((tmp_path / "example.json").read_text())
    assert {"name", "commit", "seed", "settings", "counts"} <= set(written)
    assert written["settings"] == {"seconds": 1, "size": 3}


def test_what_failed_leaves_no_evidence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def run(context: Context) -> dict[str, Any]:
        raise AssertionError("one event was lost")

    plant(monkeypatch, run)
    with pytest.raises(AssertionError, match="lost"):
        soak("example", seed=1, seconds=1, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
