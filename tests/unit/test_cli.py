"""The command line: one line per expected error, exit codes, JSON where asked for."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from typer.main import get_command

from handbill import cli
from handbill.cli import app, tenants
from handbill.cli.frame import State
from handbill.tenants.model import Key, KeyKind, KeyMade


def call(monkeypatch: pytest.MonkeyPatch, *words: str, **environ: str) -> int:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["handbill", *words])
    monkeypatch.setattr(State, "debug", False)
    monkeypatch.setattr(State, "json_errors", False)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return int(caught.value.code or 0)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("HANDBILL_HOME", f"{tmp_path}/home")


def test_settings_are_printed_with_their_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "settings", "--json", DATABASE_URL="postgresql://u:hunter2@h/d") == 0
    out = capsys.readouterr().out
    rows = {row["variable"]: row for row in json.loads(out)}
    assert rows["HANDBILL_POSTGRES__URL"]["source"] == "DATABASE_URL"
    assert rows["HANDBILL_API__PORT"] == {
        "variable": "HANDBILL_API__PORT",
        "value": "8080",
        "default": "8080",
        "source": "default",
        "doc": "The port on which the API listens.",
        "aliases": [],
    }
    assert "hunter2" not in out
    assert call(monkeypatch, "settings") == 0
    assert "HANDBILL_API__PORT" in capsys.readouterr().out


def test_a_misspelt_setting_stops_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "tenant", "ls", HANDBILL_REDIS__ULR="redis://x") == 2
    err = capsys.readouterr().err
    assert err.splitlines() == [
        "handbill: HANDBILL_REDIS__ULR is no setting: did you mean HANDBILL_REDIS__URL? Nothing was started."
    ]
    assert "Traceback" not in err


def test_without_an_address_it_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert call(monkeypatch, "tenant", "ls", "--json") == 1
    problem = json.loads(capsys.readouterr().err)
    assert problem["error"]["code"] == "NO_ADDRESS"
    assert "HANDBILL_POSTGRES__URL" in problem["error"]["detail"]


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["handbill", "--debug", "tenant", "ls"])
    with pytest.raises(Exception, match="No address"):
        cli.main()
    State.debug = False


@pytest.mark.parametrize("words", [("nonsense",), ("tenant", "create"), ("worker", "--only", "everything")])
def test_wrong_usage_is_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert call(monkeypatch, *words) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_help_and_version_name_the_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("handbill ")
    assert call(monkeypatch, "--help") == 0
    text = capsys.readouterr().out
    for command in (
        "up",
        "api",
        "worker",
        "migrate",
        "doctor",
        "settings",
        "tenant",
        "backup",
        "restore",
        "state-hash",
    ):
        assert command in text


def test_every_command_has_json() -> None:
    def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from commands(inner, f"{path} {name}")
        if not hasattr(command, "commands"):
            yield path, command

    found = dict(commands(get_command(app), "handbill"))
    assert len(found) > 60
    assert [path for path, one in found.items() if not any("--json" in each.opts for each in one.params)] == []
    assert [path for path, one in found.items() if not one.help] == []


def test_only_a_secret_key_is_said_to_be_secret() -> None:
    def made(kind: KeyKind) -> KeyMade:
        return KeyMade(Key(UUID(int=1), kind, "shop", "", [], datetime.now(UTC)), f"{kind}-key")

    assert "not shown again" in tenants._advice(made("secret"))
    assert "secret" not in tenants._advice(made("write"))
    assert "public" in tenants._advice(made("write"))
