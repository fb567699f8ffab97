"""What holds for every request: nothing lost or changed, no order, and no bytes that break a parser."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from handbill.events.dialects import ids, replies, times
from handbill.events.dialects.canon import CapturedEvent, Dialect, Edge, EdgeKind, Parsed, Refused
from handbill.events.dialects.own_wire import ContextIn, EventIn
from handbill.events.dialects.reading import address, mended, spliced
from handbill.events.dialects.router import BODY_BYTES, READERS, ROUTES
from handbill.events.model import at_us
from handbill.events.reasons import DOCS, KEPT, Reason
from handbill.kit.distinct import ILLEGAL_IDS
from handbill.kit.errors import Busy, Invalid, Throttled, TooLarge, Unsupported
from handbill.kit.report_ids import SEQUENCE_STEP
from tests.kit.dialects import HEADERS, NOW, PACKERS, read, request

calm = settings(suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault of the parsers
scalars = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
leaves = scalars | words
values = leaves | st.lists(leaves, max_size=3) | st.dictionaries(words, leaves, max_size=3)
objects = st.dictionaries(words, values, max_size=4)
strangers = st.dictionaries(words.map(lambda word: word.replace("$", "S")), values, max_size=4)
"""Properties without a name that means something to us: those begin with a dollar."""
names = st.sampled_from(["seen", "$identify", "$create_alias", "$merge_dangerously", "$set", "", "x" * 250])
whose = st.sampled_from(["ada", " bob ", "guest", "", "c" * 300, "email", "d\u00e9j\u00e0"]) | words
stamps = st.sampled_from(["2026-11-16T11:00:00.000345Z", "2026-11-18", "never", "1950-01-01T00:00:00+05:30"])
BODIES = {"/v1/events": "events", "/batch/": "batch", "/i/v1/analytics/events": "batch", "/v1/batch": "batch"}


contents: st.SearchStrategy[Any] = st.sampled_from([
    {}, {"a": 1}, {"a": None, "b": [1, {"c": "\u00e9"}]}, {"$ip": "198.51.100.7"}, {"$set_once": []},
    {"$unset": ["x", 3]},
    {"$current_url": "https://a.example/", "$screen_width": -4, "$browser_version": 131}, {"": 0.5, "$extra": 1},
])  # fmt: skip
events = st.fixed_dictionaries(
    {},
    optional={
        "event": names, "distinct_id": whose, "userId": whose, "anonymousId": whose, "previousId": whose,
        "timestamp": stamps, "type": st.sampled_from(["track", "identify", "alias", "page", "group", "jump"]),
        "properties": contents, "traits": contents, "$set": contents, "context": contents, "options": contents,
        "user_properties": st.fixed_dictionaries({"$set": contents}), "alias": whose, "anonymous_id": whose,
    },
)  # fmt: skip
"""Events that speak every dialect at once, right or wrong."""


def numbered(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same events, each with an id of its own: of two with one id, the order says which one stands."""
    return [{**one, "event_id": f"e{n}", "uuid": f"e{n}", "messageId": f"e{n}"} for n, one in enumerate(batch)]


batches = st.lists(events, min_size=1, max_size=6).map(numbered)


def _own(event: dict[str, Any]) -> dict[str, Any]:
    """Of an event in every dialect, what our own knows."""
    known = {name: value for name, value in event.items() if name in EventIn.__struct_fields__}
    if isinstance(context := known.get("context"), dict):
        known["context"] = {name: value for name, value in context.items() if name in ContextIn.__struct_fields__}
    return known


def sent(path: str, batch: list[Any], *, packer: str | None = None) -> Any:
    whole: dict[str, Any] = {BODIES[path]: batch, "sent_at": "2026-11-16T12:00:30Z", "sentAt": "2026-11-16T12:00:30Z"}
    if path == "/v1/events":  # it refuses what it does not know; the others ignore it
        del whole["sentAt"]
        whole["events"] = [_own(each) if isinstance(each, dict) else each for each in batch]
    body = json.dumps(whole).encode()
    return request(path, PACKERS[packer](body) if packer else body, headers=HEADERS)


def first_in_request(parsed: Parsed) -> list[CapturedEvent]:
    """The events as each would be if it stood alone: only a missing time and the sequence depend on the others, and of
    the sequence not the time of sending."""
    return [_first(event, index) for event, index in zip(parsed.events, parsed.places, strict=True)]


def _first(event: CapturedEvent, index: int) -> CapturedEvent:
    us = NOW * 1000 if at_us(event) == NOW * 1000 + index else at_us(event)
    step = SEQUENCE_STEP
    sequence = (event.sequence + step // 2) // step * step
    return msgspec.structs.replace(event, at=us // 1000, micros=us % 1000, sequence=sequence)


@calm
@given(batches, st.sampled_from(sorted(BODIES)), st.randoms(use_true_random=False))
def test_a_shuffled_batch_is_the_same_events_shuffled(batch: list[Any], path: str, random: Any) -> None:
    order = list(range(len(batch)))
    random.shuffle(order)
    straight, shuffled = read(sent(path, batch)), read(sent(path, [batch[place] for place in order], packer="gzip"))
    assert {
        order[place]: event for place, event in zip(shuffled.places, first_in_request(shuffled), strict=True)
    } == dict(zip(straight.places, first_in_request(straight), strict=True))
    for kind in ("dropped", "warned"):
        before, after = getattr(straight, kind), getattr(shuffled, kind)
        assert sorted((order[note.index], note.reason) for note in after) == sorted(
            (note.index, note.reason) for note in before
        )
    assert sorted([*straight.places, *(note.index for note in straight.dropped)]) == sorted(order)


@calm
@given(batches, st.sampled_from(sorted(BODIES)))
def test_each_event_alone_is_what_it_is_in_company(batch: list[Any], path: str) -> None:
    together = read(sent(path, [*batch, None, 7]))
    alone = [event for one in batch for event in read(sent(path, [one])).events]
    assert first_in_request(together) == alone


@calm
@given(strangers, objects, objects, st.lists(words, min_size=1, max_size=3))
def test_our_own_event_comes_back_as_it_was_sent(properties: Any, set_: Any, once: Any, unset: list[str]) -> None:
    person = {"$set": set_, "$set_once": once, "$unset": unset}
    body = {"event": "e", "distinct_id": "ada", "event_id": "i", "properties": properties, "user_properties": person}
    (event,) = read(sent("/v1/events", [body])).events
    assert json.loads(event.properties) == properties
    assert (json.loads(event.set or b"0"), json.loads(event.set_once or b"0")) == (set_, once)
    assert json.loads(event.unset or b"0") == list(dict.fromkeys(unset))
    assert (event.id, event.distinct_id, event.at, event.tenant) == ("i", "ada", NOW, 7)


@calm
@given(batches, st.sampled_from(sorted(BODIES)))
def test_every_event_fits_the_journal(batch: list[Any], path: str) -> None:
    for event in read(sent(path, batch)).events:
        again = msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=CapturedEvent)
        assert again == event
        assert 1 <= len(event.distinct_id) <= ids.ID_CHARACTERS
        assert event.distinct_id == event.distinct_id.strip()
        assert event.distinct_id.lower() not in ILLEGAL_IDS
        assert 0 <= event.at <= NOW + times.FUTURE_MS
        assert isinstance(json.loads(event.properties), dict)


fragments = st.sampled_from([
    b'{"batch":[', b'{"events":[', b"{", b"[", b"}", b"]", b",", b"null", b"NaN", b"\0", b"\xff", b"data=", b"eyJh",
    b'"event":"a",', b'"distinct_id":"u"', b'"distinct_id":1e999', b'"properties":{"$set":', b'"\\ud800"', b'"\\u0000"',
    b"\x1f\x8b\x08", b"x\x9c", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"[" * 3_000, b'{"a":' * 3_000, b"9" * 5_000,
    b'"type":"track",', b'"timestamp":-1e300', b'"offset":1e300', b'"uuid":"u"', b'"userId":[[]]',
    b'"context":{"ip":3,"screen":{"width":1e308}}',
])  # fmt: skip
garbage = st.lists(fragments | st.binary(max_size=20), max_size=10).map(b"".join)


@calm
@given(garbage, st.binary(max_size=30), st.sampled_from(sorted(ROUTES)), st.binary(max_size=12), st.booleans())
def test_garbage_is_refused_in_the_words_of_its_dialect(
    body: bytes, query: bytes, route: tuple[str, str], auth: bytes, form: bool
) -> None:
    method, path = route
    headers = {**HEADERS, b"authorization": b"Basic " + auth, b"content-encoding": auth, b"user-agent": auth}
    asked = request(path, body, method=method, query=b"data=" + body if form else query, headers=headers)
    try:
        parsed = read(asked, truncate_ip=True)
    except (Invalid, TooLarge, Unsupported) as error:
        reply = replies.refused(ROUTES[route], error)
        assert reply.status in (400, 413, 415)
        assert json.loads(reply.body)
    else:
        for event in parsed.events:
            assert "\0" not in event.distinct_id + event.name + event.id
            event.properties.decode()
            msgspec.msgpack.encode(event)
        assert replies.taken(parsed).status in (200, 202, 204, 400)


@calm
@given(st.text(max_size=30), st.text('\\u0d8cf"', max_size=30))
def test_mending_changes_only_what_no_store_can_keep(plain: str, odd: str) -> None:
    text = plain + odd + "\0"
    for ascii_only in (True, False):
        body = mended(json.dumps([text], ensure_ascii=ascii_only).encode())
        assert json.loads(body) == [text.replace("\0", "\ufffd")]
    pairs = mended(b'["\\ud83d\\ude00 \\ud800 \\\\u0000 \\udc00\\ud800"]')
    assert json.loads(pairs) == ["\U0001f600 \ufffd \\u0000 \ufffd\ufffd"]
    assert mended(b'\xef\xbb\xbf["\xc3\xa9\xff"]') == '["\u00e9\ufffd"]'.encode()


@calm
@given(objects, st.dictionaries(st.text("ab$_", max_size=2), values, max_size=4))
def test_splicing_adds_and_never_overwrites(first: Any, second: Any) -> None:
    added = {name: json.dumps(value).encode() for name, value in second.items()}
    assert json.loads(spliced(json.dumps(first).encode(), added)) == {**second, **first}


def test_words_that_are_no_ids() -> None:
    for word in (
        "anonymous",
        " NULL",
        "Undefined",
        "none",
        "nil",
        "[object Object]",
        "NaN",
        "true",
        "False",
        "0",
        "guest",
    ):
        with pytest.raises(Refused, match="ILLEGAL_DISTINCT_ID"):
            ids.distinct(word)
    for side in (
        "distinct_id",
        "distinctId",
        "id",
        "not_authenticated",
        "email",
        "",
        "'guest'",
        '"null"',
        "x" * 401,
        "a\0b",
    ):
        with pytest.raises(Refused, match="ILLEGAL_MERGE"):
            ids.edge(EdgeKind.MERGE, side, "ada")
    assert ids.edge(EdgeKind.ALIAS, " b ", "ada") == Edge(EdgeKind.ALIAS, "b")
    with pytest.raises(Refused, match="ILLEGAL_MERGE"):
        ids.edge(EdgeKind.MERGE, "ada", "email")
    assert ids.event_id("x" * 201) == ids.event_id("x" * 201) != ids.event_id("y" * 201)


def test_addresses_are_truncated_wherever_they_stand() -> None:
    assert address("203.0.113.77", True) == "203.0.113.0"
    assert address("2001:db8:1:2::3", True) == "2001:db8:1::"
    assert address("::ffff:203.0.113.77", True) == "203.0.113.0"
    assert address("fe80::1%eth0", False) == "fe80::1"
    assert address("no address", True) is None
    properties = {"$ip": "198.51.100.7", "a": 1}
    asked = sent("/batch/", [{"event": "e", "distinct_id": "u", "uuid": "i", "properties": properties}])
    (event,) = read(asked, truncate_ip=True).events
    assert (event.ip, json.loads(event.properties)) == ("198.51.100.0", {"$ip": "198.51.100.0", "a": 1})
    message = {"type": "track", "event": "e", "userId": "u", "context": {"ip": "198.51.100.7"}}
    (event,) = read(sent("/v1/batch", [message]), truncate_ip=True).events
    assert (event.ip, b"100.7" in event.properties) == ("198.51.100.0", False)
    browser = {"event": "e", "distinct_id": "u", "properties": {"$is_server": False}}
    (event,) = read(sent("/v1/events", [browser]), truncate_ip=True).events
    assert event.ip == "203.0.113.0"


def test_every_reason_has_its_line_and_every_dialect_its_limit() -> None:
    assert set(DOCS) == set(Reason) >= KEPT
    assert set(BODY_BYTES) == set(READERS) == set(Dialect) == set(ROUTES.values())


def test_later_and_never_are_told_apart() -> None:
    for dialect in Dialect:
        shed = replies.refused(dialect, Throttled("Full.", code="BACKPRESSURE", retry_after=1.2))
        # The newer PostHog clients give up on a 429; a 503 they honour.
        later = 503 if dialect is Dialect.POSTHOG_V1 else 429
        assert (shed.status, dict(shed.headers)) == (later, {b"retry-after": b"2"})
        assert replies.refused(dialect, Busy("Away.", retry_after=0)).status == 503
    event = {"event": "e", "distinct_id": "u", "uuid": "i", "userId": "u"}
    quota = {path: replies.over_quota(read(sent(path, [event]))) for path in BODIES}
    assert {reply.status for reply in quota.values()} == {200}
    assert json.loads(quota["/v1/events"].body)["quota_limited"] is True
    assert json.loads(quota["/batch/"].body) == {"status": 1, "quota_limited": ["events"]}
    assert json.loads(quota["/i/v1/analytics/events"].body)["results"]["i"]["result"] == "drop"


def test_times_in_every_form() -> None:
    assert times.read_ms("2026-11-16T12:00:00.123456789Z") == NOW + 123
    assert times.read_ms(" 2026-11-16 12:00:00 ") == NOW
    assert times.read_ms(NOW / 1000) == times.read_ms(NOW) == NOW
    unreadable: list[Any] = ["", "x", True, None, [], 1e300, -math.inf, math.nan, 10**30, -(10**30)]
    for odd in unreadable:
        assert times.read_ms(odd) is times.read_us(odd) is None
    assert times.read_ms("0001-01-01T00:00:00+14:00") is not None


def test_our_own_dialect_refuses_what_it_does_not_know_by_name() -> None:
    good = {"event": "a", "distinct_id": "u", "properties": {"anything": 1}}
    odd = {**good, "distinctid": "u", "context": {"sesion_id": "s"}, "user_properties": {"set": {}}}
    parsed = read(sent_own({"events": [good, odd, {**good, "context": {"browser": 7}}, {**good, "context": {"o": 1}}]}))
    assert parsed.places == [0, 2]
    assert [(note.index, note.reason) for note in parsed.dropped] == [
        (1, Reason.UNKNOWN_FIELD), (3, Reason.UNKNOWN_FIELD),
    ]  # fmt: skip
    assert {fault.field: fault.reason for fault in parsed.dropped[0].faults} == {
        "distinctid": "is not a known field; did you mean `distinct_id`?",
        "context.sesion_id": "is not a known field; did you mean `session_id`?",
        "user_properties.set": "is not a known field; did you mean `$set`?",
    }
    reply = json.loads(replies.taken(parsed).body)
    assert (reply["accepted"], reply["dropped"][1]["faults"][0]["field"]) == (2, "context.o")
    with pytest.raises(Invalid) as refused:
        read(sent_own({"events": [good], "sentat": "now"}))
    assert [(fault.field, fault.reason) for fault in refused.value.faults] == [
        ("sentat", "is not a known field; did you mean `sent_at`?")
    ]


def sent_own(body: dict[str, Any]) -> Any:
    return request("/v1/events", json.dumps(body).encode())
