"""Whatever is cut or left out of an event has a reason, which its sender reads and its tenant counts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from handbill.events.dialects import replies
from handbill.events.dialects.canon import Dialect, Parsed
from handbill.events.dialects.losses import warn_of_losses
from handbill.events.model import PERSON_VALUE_BYTES
from handbill.events.reasons import KEPT, Reason
from handbill.people.model import Order
from handbill.people.properties import NOISY, merge, said
from tests.kit.dialects import BATCHES, HEADERS, event, post, read, request

LONG = "x" * 201
DEEP = "[" * 70 + "]" * 70
PATHS = tuple(BATCHES)


def reasons(parsed: Parsed) -> tuple[list[str], list[str]]:
    return [note.reason.value for note in parsed.dropped], [note.reason.value for note in parsed.warned]


@pytest.mark.parametrize("path", PATHS)
def test_two_long_ids_are_never_one_person(path: str) -> None:
    name = "userId" if path == "/v1/batch" else "distinct_id"
    long = [event(n, 1_794_830_000_000_000) | {name: "L" * 200 + tail} for n, tail in enumerate("XY")]
    whole = event(2, 1_794_830_000_000_000) | {name: "L" * 200}
    parsed = post(path, [*long, whole])
    assert reasons(parsed) == (["DISTINCT_ID_TOO_LARGE"] * 2, [])
    assert [each.distinct_id for each in parsed.events] == ["L" * 200]


@pytest.mark.parametrize("path", PATHS)
def test_a_long_id_is_linked_to_nobody(path: str) -> None:
    other = "L" * 201
    one = event(0, 1_794_830_000_000_000) | {"event": "$identify", "properties": {"$anon_distinct_id": other}}
    one |= {"type": "identify", "anonymousId": other} if path == "/v1/batch" else {}
    parsed = post(path, [one])
    assert reasons(parsed) == ([], ["ILLEGAL_MERGE"])
    assert parsed.events[0].edge is None


def test_a_long_name_is_cut_with_a_warning_or_refused() -> None:
    for path in PATHS:
        parsed = post(path, [event(0, 1_794_830_000_000_000) | {"event": LONG}])
        if path in ("/batch/", "/v1/batch"):
            assert reasons(parsed) == ([], ["EVENT_NAME_CUT"])
            assert parsed.events[0].name == "x" * 200
        else:
            assert reasons(parsed) == (["EVENT_NAME_TOO_LONG"], [])


def test_what_is_cut_of_the_context_is_told_once() -> None:
    wide = "https://shop.example/" + "x" * 2_000
    bodies: dict[str, Any] = {
        "/batch/": {"properties": {"$current_url": wide, "$referrer": wide, "$session_id": LONG}},
        "/i/v1/analytics/events": {"properties": {"$current_url": wide, "$browser": LONG}},
        "/v1/events": {"context": {"url": wide, "browser": LONG}},
        "/v1/batch": {"context": {"page": {"url": wide}, "locale": LONG}},
    }
    for path, more in bodies.items():
        parsed = post(path, [event(0, 1_794_830_000_000_000) | more])
        assert reasons(parsed) == ([], ["CONTEXT_CUT"]), path
        assert parsed.events[0].url == wide[:2_000]
    assert reasons(post("/v1/events", [event(0) | {"context": {"browser": 7}}])) == ([], ["CONTEXT_CUT"])
    assert reasons(post("/v1/events", [event(0) | {"context": {"url": "", "screen_width": 70_000}}])) == ([], [])


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"bio": "x" * PERSON_VALUE_BYTES}, "PROPERTY_TOO_LARGE"),
        ({LONG: 1}, "PROPERTY_NAME_UNUSABLE"),
        ({"": 1}, "PROPERTY_NAME_UNUSABLE"),
        ({"a": json.loads(DEEP)}, "PROPERTIES_TOO_DEEP"),
        ({f"k{n}": n for n in range(2_001)}, "TOO_MANY_PROPERTIES"),
    ],
)
def test_what_a_person_does_not_get_is_told(path: str, changes: dict[str, Any], reason: str) -> None:
    one = event(0, 1_794_830_000_000_000) | {"event": "$set", "properties": {"$set": {"plan": "pro", **changes}}}
    if path == "/v1/batch":
        one |= {"type": "identify", "traits": {"plan": "pro", **changes}, "properties": {}}
    parsed = post(path, [one])
    dropped, warned = reasons(parsed)
    assert (dropped, set(warned)) == ([], {reason})
    assert len(warned) == 1


@pytest.mark.parametrize("path", PATHS)
def test_names_that_are_not_listed_are_told(path: str) -> None:
    assert reasons(post(path, [event(0, 1_794_830_000_000_000, **{LONG: 1})])) == ([], ["PROPERTY_NAME_UNUSABLE"])
    many = {f"k{n}": n for n in range(3_000)}
    assert reasons(post(path, [event(0, 1_794_830_000_000_000, **many)]))[1] == []


def test_each_client_reads_it_where_its_format_allows() -> None:
    good, cut = event(0, 1_794_830_000_000_000), event(1, 1_794_830_000_000_000, **{LONG: 1})
    own = post("/v1/events", [good, cut])
    assert json.loads(replies.taken(own).body) == {
        "accepted": 2, "dropped": [], "warnings": [{"index": 1, "reason": "PROPERTY_NAME_UNUSABLE"}],
    }  # fmt: skip
    assert json.loads(replies.taken(post("/v1/events", [good])).body) == {"accepted": 1, "dropped": []}
    newer = json.loads(replies.taken(post("/i/v1/analytics/events", [good, cut])).body)
    assert newer == {"results": {"e1": {"result": "warning", "details": "property_name_unusable"}}}
    assert own.dialect is Dialect.OWN


def test_a_warning_about_an_event_that_was_dropped_is_none() -> None:
    body = {"events": [{"event": "e", "distinct_id": "x" * 201, "context": {"browser": LONG}}, event(1)]}
    body["events"][1].pop("type")
    body["events"][1]["distinct_id"] = "ada"
    body["events"][1]["event_id"] = body["events"][1].pop("id")
    parsed = read(request("/v1/events", json.dumps(body).encode(), headers=HEADERS))
    assert json.loads(replies.taken(parsed).body) == {
        "accepted": 1, "dropped": [{"index": 0, "reason": "DISTINCT_ID_TOO_LARGE"}],
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------- laws
NAMES = st.sampled_from(["plan", "", "y" * 200, "y" * 201, "ü" * 200, '"' * 150, "\\" * 201, "$os"])
VALUES = st.sampled_from([
    "1", '"pro"', '""', "1e999", "1e1000", '"1e1000"', "[1e-2000]", f'"{"v" * (PERSON_VALUE_BYTES - 2)}"',
    f'"{"v" * (PERSON_VALUE_BYTES - 1)}"', f"[{' ' * PERSON_VALUE_BYTES}]", "[" * 63 + "]" * 63, "[" * 64 + "]" * 64,
])  # fmt: skip


@given(st.dictionaries(NAMES, VALUES))
@example({f"k{n}": "1" for n in range(2_001)})
def test_nothing_of_a_persons_properties_is_left_out_without_a_reason(sent: dict[str, str]) -> None:
    part = ("{" + ",".join(f"{json.dumps(name)}:{value}" for name, value in sent.items()) + "}").encode()
    kept = merge([said(Order(1, 0, "e"), set_=part)]).keys()
    warned: list[Reason] = []
    warn_of_losses(b"{}", (part, None, None), warned)
    assert bool(sent.keys() - kept - NOISY) == bool(warned)
    assert set(warned) <= KEPT
    assert len(set(warned)) == len(warned)
