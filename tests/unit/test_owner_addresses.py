"""`handbill settings --urls`: the engines' addresses with their passwords, for the owner of the installation only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from handbill.kit.errors import Broken
from handbill.settings import load
from handbill.wiring import addresses

URLS = {
    "HANDBILL_POSTGRES__URL": "postgresql://a:secret@db.example/x",
    "HANDBILL_REDIS__URL": "redis://:secret@q.example",
}


def test_the_owner_of_the_data_directory_reads_the_addresses(tmp_path: Path) -> None:
    found = addresses.resolve_for_owner(load({**URLS, "HANDBILL_HOME": str(tmp_path)}))
    assert (found.postgres.url, found.redis.url) == tuple(URLS.values())


def test_nobody_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load({**URLS, "HANDBILL_HOME": str(tmp_path)})
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(Broken) as error:
        addresses.resolve_for_owner(settings)
    assert error.value.code == "HOME_NOT_OURS"
    assert "secret" not in error.value.detail


def test_without_addresses_the_settings_to_set_are_named(tmp_path: Path) -> None:
    with pytest.raises(Broken, match="HANDBILL_POSTGRES__URL and HANDBILL_REDIS__URL"):
        addresses.resolve_for_owner(load({"HANDBILL_HOME": str(tmp_path)}))
