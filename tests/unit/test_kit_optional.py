"""Optional programs: missing ones skip in print; promised ones that are missing fail."""

from __future__ import annotations

import pytest

from tests.kit.optional import find, need

NOWHERE = "a-program-that-nobody-has"


def test_a_missing_program_skips_with_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HANDBILL_CI_HAS", raising=False)
    with pytest.raises(pytest.skip.Exception):
        need(NOWHERE)
    assert NOWHERE in capsys.readouterr().err


def test_a_broken_promise_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("HANDBILL_CI_HAS", f"node, {NOWHERE}")
    with pytest.raises(pytest.fail.Exception):
        need(NOWHERE)


def test_a_present_program_is_found() -> None:
    assert need("sh") == find("sh")
