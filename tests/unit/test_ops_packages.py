"""What doctor says of packages that only take room."""

from __future__ import annotations

import os
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from handbill.ops import doctor, packages


def distribution(place: Path, name: str, *requires: str, size: int = 10) -> Distribution:
    info = place / f"{name}-1.0.dist-info"
    info.mkdir()
    lines = [f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {each}" for each in requires)]
    (info / "METADATA").write_text(os.linesep.join(["Metadata-Version: 2.1", *lines, ""]))
    (place / f"{name}.py").write_bytes(b"x" * size)
    (info / "RECORD").write_text(f"{name}.py,,\n{name}-missing.py,,\n")
    return PathDistribution(info)


def test_what_only_the_event_store_names_can_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = [
        distribution(tmp_path, "chdb_core", "pandas>=2", "pyarrow", "numpy"),
        distribution(tmp_path, "pandas", "numpy", size=3_000_000),
        distribution(tmp_path, "PyArrow", size=2_000_000),
        distribution(tmp_path, "numpy"),
        distribution(tmp_path, "clickhouse-connect", "pandas; extra == 'pandas'"),
    ]
    monkeypatch.setattr(doctor, "distributions", lambda: here)
    (finding,) = doctor.unused_packages()
    assert (finding.status, finding.detail) == ("ok", "PyArrow, pandas: 5 MB that nothing here uses")
    assert finding.advice.endswith("-m pip uninstall PyArrow pandas")
    here.append(distribution(tmp_path, "notebook", "Pandas[excel] (>=1)"))
    assert doctor.unused_packages() == [], "something else of yours needs one"
    assert packages.unused(here[3:5]) == []


def test_a_clone_has_none_of_them() -> None:
    assert doctor.unused_packages() == []
