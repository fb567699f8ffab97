"""`handbill reset` and `make clean`: what they remove, what they refuse, and what they never touch."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from handbill.infra.embedded.home import MARKER, REMOVED, Home, prepare
from handbill.kit.errors import Broken, Busy, NotFound
from handbill.ops.reset import opened, remove
from handbill.settings import Settings, load
from tests.kit.processes import ROOT


def settings_of(home: Path, **more: str) -> Settings:
    return load({"HANDBILL_HOME": str(home), **more})


def filled(home: Path) -> Path:
    """A home as an installation leaves it."""
    Home.open(home).close()
    for name in ("postgres", "redis", "clickhouse", "uploads"):
        (home / name).mkdir()
        (home / name / "data").write_bytes(b"x" * 10_000)
    (home / "secrets" / "seal.key").write_text("k")
    return home


def contents(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_make_clean_names_no_data() -> None:
    shown = subprocess.run(("make", "-n", "clean"), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert ".venv" in shown
    assert ".handbill" not in shown


def test_a_whole_home_is_removed(tmp_path: Path) -> None:
    home = filled(tmp_path / "home")
    with opened(settings_of(home)) as plan:
        assert set(plan.removed) == {"postgres", "redis", "clickhouse", "uploads", "logs", "run", "secrets"}
        assert plan.removed["postgres"] >= 10_000
        assert str(home) in plan.description()
        remove(plan)
    assert not home.exists()
    with pytest.raises(NotFound) as refused, opened(settings_of(home)):
        pass
    assert refused.value.code == "NOTHING_TO_RESET"


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    home = filled(tmp_path / "home")
    (home / "thesis.txt").write_text("mine")
    with opened(settings_of(home)) as plan:
        assert plan.left == ["thesis.txt"]
        remove(plan)
    assert contents(home) == {MARKER, "lock", "thesis.txt"}


@pytest.mark.parametrize("entries", [["thesis.txt"], ["logs"], ["postgres", "notes"]])
def test_a_directory_that_is_not_an_installations_is_refused(tmp_path: Path, entries: list[str]) -> None:
    for name in entries:
        (tmp_path / name).mkdir()
    prepare(tmp_path)  # as `up` would, were HANDBILL_HOME set to it by mistake
    before = contents(tmp_path)
    with pytest.raises(Broken) as refused, opened(settings_of(tmp_path)):
        pass
    assert refused.value.code == "HOME_UNMARKED"
    assert contents(tmp_path) == before


def test_a_home_of_an_older_release_is_marked_by_its_next_start(tmp_path: Path) -> None:
    home = filled(tmp_path / "home")
    (home / MARKER).unlink()
    with pytest.raises(Broken), opened(settings_of(home)):
        pass
    Home.open(home).close()
    with opened(settings_of(home)) as plan:
        assert "postgres" in plan.removed


def test_links_are_never_followed(tmp_path: Path) -> None:
    elsewhere = filled(tmp_path / "elsewhere")
    before = contents(elsewhere)
    (tmp_path / "link").symlink_to(elsewhere)
    home = filled(tmp_path / "home")
    (home / "postgres" / "tablespace").symlink_to(elsewhere)
    (home / "redis" / "data").unlink()
    (home / "redis").rmdir()
    (home / "redis").symlink_to(elsewhere / "redis")
    for path in (tmp_path / "link", home):
        with pytest.raises(Broken) as refused, opened(settings_of(path)):
            pass
        assert refused.value.code == "HOME_LINKED"
    (home / "redis").unlink()
    with opened(settings_of(home)) as plan:
        remove(plan)
    assert not home.exists()
    assert contents(elsewhere) == before


def test_nothing_is_removed_while_it_runs(tmp_path: Path) -> None:
    home = filled(tmp_path / "home")
    with Home.open(home), pytest.raises(Busy) as refused, opened(settings_of(home)):
        pass
    assert refused.value.code == "HOME_LOCKED"
    handle = os.open(home / "redis" / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with pytest.raises(Busy) as refused, opened(settings_of(home)):
            pass
    finally:
        os.close(handle)
    assert refused.value.code == "ENGINE_LOCKED"
    with opened(settings_of(home)), pytest.raises(Busy):
        Home.open(home)  # nothing starts while the question is open


def test_engines_with_a_url_are_left_alone(tmp_path: Path) -> None:
    home = filled(tmp_path / "home")
    urls = {
        "HANDBILL_POSTGRES__URL": "postgresql://o:p@db.example/handbill",
        "HANDBILL_REDIS__URL": "redis://cache.example",
        "HANDBILL_CLICKHOUSE__URL": "http://ch.example:8123",
    }
    with pytest.raises(NotFound) as refused, opened(settings_of(home, **urls)):
        pass
    assert refused.value.code == "NOTHING_TO_RESET"
    del urls["HANDBILL_CLICKHOUSE__URL"]
    with opened(settings_of(home, **urls)) as plan:
        assert plan.external == ["postgres", "redis"]
        assert "postgres, redis" in plan.description()
        remove(plan)
    assert {entry.name for entry in home.iterdir()} == {MARKER, "lock", "postgres", "redis", "secrets", "uploads"}
    assert (home / "secrets" / "seal.key").exists(), "the rows of that PostgreSQL are sealed with it"


def test_a_reset_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    home = filled(tmp_path / "home")
    (home / REMOVED / "redis").mkdir(parents=True)
    (home / REMOVED / "redis" / "old").write_text("x")
    with opened(settings_of(home)) as plan:
        remove(plan)
    assert not home.exists()
