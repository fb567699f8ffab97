"""The outbox's pure parts: how a cycle is shared out, how a dead letter's options come back."""

from __future__ import annotations

import json
import uuid
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from handbill.jobs.dead import letters
from handbill.jobs.model import read_job
from handbill.jobs.options import check
from handbill.jobs.outbox import shares
from handbill.jobs.records import read_options, stored_options

wants = st.lists(st.integers(0, 200), max_size=60)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
OPTIONS = (
    "attempts",
    "backoff",
    "priority",
    "timeout",
    "removeOnComplete",
    "removeOnFail",
    "tenant",
    "outbox",
    "delay",
)


@given(wants=wants, room=st.integers(0, 2_000))
def test_the_room_is_used_up_and_split_evenly(wants: list[int], room: int) -> None:
    got = shares.fill(wants, room)
    assert sum(got) == min(room, sum(wants))
    assert all(0 <= part <= want for part, want in zip(got, wants, strict=True))
    most = max(got, default=0)
    assert all(part >= most - 1 for part, want in zip(got, wants, strict=True) if part < want), "nobody lags by two"


@given(lanes=st.lists(st.lists(st.integers(), max_size=6), max_size=6))
def test_lanes_take_turns_and_keep_their_order(lanes: list[list[int]]) -> None:
    tagged = [[(lane, place) for place in range(len(items))] for lane, items in enumerate(lanes)]
    mixed = shares.interleave(tagged)
    assert sorted(mixed) == sorted(item for lane in tagged for item in lane)
    assert [place for _, place in mixed] == sorted(place for _, place in mixed), "nobody's second before a first"


@given(slots=st.integers(1, 100), active=st.integers(0, 100), last=st.integers(0, 1_000), starved=st.booleans())
def test_the_window_is_twice_the_slots_and_grows_only_when_workers_starve(
    slots: int, active: int, last: int, starved: bool
) -> None:
    usual = 2 * max(slots, active)
    window = shares.window(slots, active, last, starved=starved, most=500)
    assert window >= usual
    assert window <= max(usual, 500)
    if not starved:
        assert window <= max(usual, last // 2)


def strings(value: Any) -> list[str]:
    """Every text inside a JSON value, keys included."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    if isinstance(value, dict):
        return [text for pair in value.items() for item in pair for text in strings(item)]
    return []


@given(opts=st.dictionaries(st.sampled_from(OPTIONS), anything), data=anything)
def test_whatever_another_program_wrote_becomes_a_letter_that_can_be_redriven(opts: dict[str, Any], data: Any) -> None:
    fields = {
        b"name": b"work",
        b"opts": json.dumps(opts).encode(),
        b"data": json.dumps(data).encode(),
        b"timestamp": b"1e400",
        b"failedReason": b"\x00\xff broken",
    }
    letter = letters.from_job(uuid.uuid4(), read_job("q", "1", fields), 10**30, "event")
    again = letters.options_again(json.loads(letter.opts))
    check("work", again)
    assert read_options(stored_options(again).decode()) == again
    assert not any("\x00" in text for text in strings(msgspec.json.decode(letter.data))), "jsonb refuses NUL"
    assert "\x00" not in letter.reason
    assert letter.tenant_id is None or 0 < letter.tenant_id < 2**31
