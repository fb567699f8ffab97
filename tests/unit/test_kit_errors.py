"""The error tree and the crash points."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from handbill.kit import crashpoints, errors
from handbill.kit.codes import CODES
from handbill.kit.errors import Busy, Fault, HandbillError, Invalid


def classes(root: type[HandbillError]) -> Iterator[type[HandbillError]]:
    yield root
    for child in root.__subclasses__():
        yield from classes(child)


def test_every_class_has_a_status_a_title_and_a_documented_code() -> None:
    for kind in classes(HandbillError):
        if kind.__module__ != errors.__name__:
            continue
        assert 400 <= kind.status < 600
        assert kind.title
        assert kind.code in CODES, kind


def test_a_place_may_name_its_own_code_without_changing_its_class() -> None:
    plain, named = Invalid("no"), Invalid("no", code="SPECIAL", faults=[Fault("name", "too long")])
    assert (plain.code, named.code, Invalid.code) == ("INVALID", "SPECIAL", "INVALID")
    assert named.faults == (Fault("name", "too long"),)
    assert str(named) == named.detail == "no"
    assert Busy("full", retry_after=2).retry_after == 2


def test_codes_are_words_with_one_line_each() -> None:
    for code, line in CODES.items():
        assert code.replace("_", "").isalnum()
        assert code.isupper()
        assert line.strip().endswith(".")


def test_a_crash_point_is_silent_until_somebody_listens() -> None:
    seen: list[str] = []
    crashpoints.reached("before:anything")
    crashpoints.install(seen.append)
    try:
        crashpoints.reached("before:pg:commit")
    finally:
        crashpoints.install(None)
    crashpoints.reached("after:pg:commit")
    assert seen == ["before:pg:commit"]


def test_busy_is_told_apart_from_broken() -> None:
    with pytest.raises(HandbillError) as raised:
        raise Busy("away")
    assert raised.value.status == 503
    assert not isinstance(raised.value, errors.Broken)
