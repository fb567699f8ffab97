"""A batch of what trackers send: a fault of one event is no fault of its neighbours."""

from __future__ import annotations

import json

import pytest

from handbill.banners.wire import ViewIn, many, one
from handbill.kit.errors import Invalid

GOOD = {
    "banner_id": "0190163d-8694-739b-aea5-966c26f8ad91", "user_id": "u", "event_id": "e", "view_duration_ms": 3000,
}  # fmt: skip


def changed(**fields: object) -> str:
    return json.dumps({**GOOD, **fields})


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ('"text"', "BAD_JSON"),
        ("null", "BAD_JSON"),
        ("[]", "BAD_JSON"),
        ("1e400", "BAD_JSON"),
        ("{}", "INVALID"),
        (changed(user_id=""), "INVALID"),
        (changed(odd=1), "INVALID"),
        (changed(user_id="a\0"), "BAD_TEXT"),
        (changed(user_id="\ud83d"), "BAD_TEXT"),
        (changed(user_id="\ude00\ud83d"), "BAD_TEXT"),
        ('"\\ud83d"', "BAD_TEXT"),
    ],
)
def test_one_event_at_fault_is_refused_alone(bad: str, code: str) -> None:
    good = json.dumps(GOOD)
    found = many(ViewIn, f'{{"events": [{good}, {bad}, {good}]}}'.encode())
    assert [place for place, _ in found] == [0, 1, 2]
    assert isinstance(found[0][1], ViewIn)
    assert isinstance(found[2][1], ViewIn)
    assert isinstance(found[1][1], Invalid)
    assert found[1][1].code == code


@pytest.mark.parametrize("user", ["\U0001f600", "\\u0000", "\\ud83d"])
def test_whole_characters_are_taken(user: str) -> None:
    ((_, found),) = many(ViewIn, f'{{"events": [{changed(user_id=user)}]}}'.encode())
    assert isinstance(found, ViewIn)
    assert found.user_id == one(ViewIn, changed(user_id=user).encode()).user_id == user
