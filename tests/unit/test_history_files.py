"""Files of history: what a record is, which column is what, and that a record has one id in whatever form it comes."""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.events.csv_mapping import BadRow, csv_mapping, row_json
from handbill.events.dialects import times
from handbill.events.dialects.canon import Moment, Parsed, Refused, Terms
from handbill.events.dialects.files import FileFormat, read_file
from handbill.events.dialects.ids import canonical
from handbill.events.model import HISTORY_SEQUENCE, IMPORTED, Edge, EdgeKind, Reason, at_us
from handbill.kit import record_files
from handbill.kit.errors import Invalid
from handbill.kit.record_files import RecordFile
from handbill.kit.report_ids import SEQUENCE_STEP

NOW = 1_794_830_400_000
OLD = "2019-03-04T05:06:07.123456Z"
OLD_US = times.read_us(OLD)


def no_id() -> str:
    raise AssertionError("history has no ids that are made up")


def read(kind: str, *records: Any, first: int = 1, tenant: int = 7) -> Parsed:
    lines = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in records]
    numbers = range(first, first + len(lines))
    return read_file(FileFormat(kind), lines, numbers, Moment(NOW, no_id), Terms(tenant))


EXAMPLES: dict[str, dict[str, Any]] = {
    "handbill": {"event": "paid", "distinct_id": "ada", "timestamp": OLD, "properties": {"total": 1, "b": [1, "é"]}},
    "posthog": {"event": "paid", "distinct_id": "ada", "timestamp": OLD, "properties": {"total": 1, "b": [1, "é"]}},
    "segment": {
        "type": "track", "event": "paid", "userId": "ada", "timestamp": OLD, "properties": {"total": 1, "b": [1, "é"]},
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_record_keeps_its_time_and_has_the_sequence_of_its_line(kind: str) -> None:
    parsed = read(kind, b"{", EXAMPLES[kind], b"[1]", EXAMPLES[kind], first=40)
    assert [note.index for note in parsed.dropped] == [0, 2]
    assert [(at_us(each), each.sequence) for each in parsed.events] == [
        (OLD_US, HISTORY_SEQUENCE + 41), (OLD_US, HISTORY_SEQUENCE + 43),
    ]  # fmt: skip
    (event, _) = parsed.events
    assert (event.marks, event.ip, event.user_agent, event.distinct_id) == ((IMPORTED,), None, None, "ada")


@pytest.mark.parametrize("kind", EXAMPLES)
@given(seed=st.integers(0, 2**32))
def test_a_record_without_an_id_has_the_same_one_in_every_form(kind: str, seed: int) -> None:
    """Members in another order, spaces, escapes, `1.0` for `1`, another line and another run."""
    dice = random.Random(seed)
    record = EXAMPLES[kind]
    members = list(record.items())
    dice.shuffle(members)
    inside = list(record["properties"].items())
    dice.shuffle(inside)
    again = {**dict(members), "properties": dict(inside)}
    body = json.dumps(again, ensure_ascii=dice.random() < 0.5, indent=dice.choice((None, 1))).replace("\n", " ")
    if dice.random() < 0.5:
        body = body.replace('"total": 1', '"total": 1.0')
    one, other = read(kind, record).events[0], read(kind, body.encode(), first=dice.randrange(1, 10**9)).events[0]
    assert one.id == other.id
    assert one.id.startswith("record:")
    assert read(kind, record, tenant=8).events[0].id != one.id


@pytest.mark.parametrize("kind", EXAMPLES)
@given(data=st.data())
def test_two_records_that_differ_in_one_value_have_two_ids(kind: str, data: st.DataObject) -> None:
    values: st.SearchStrategy[Any] = st.sampled_from([None, True, False, -3, 0, 1, 2.5, "", "0", "1", "a", [], {}])
    one, other = data.draw(values), data.draw(values)
    first, second = ({**EXAMPLES[kind], "properties": {"value": each, "b": 1}} for each in (one, other))
    same = json.dumps(one) == json.dumps(other)
    assert (read(kind, first).events[0].id == read(kind, second).events[0].id) is same


def test_an_id_is_the_records_own_where_it_has_one() -> None:
    own = {"handbill": "event_id", "posthog": "uuid", "segment": "messageId"}
    for kind, name in own.items():
        assert read(kind, {**EXAMPLES[kind], name: "e-1"}).events[0].id == "e-1"


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.parametrize("stamp", [None, "", "yesterday", "1969-12-31T23:59:59Z", "2199-01-01T00:00:00Z"])
def test_history_says_when_it_was(kind: str, stamp: str | None) -> None:
    """Any other time would be another one with the next import."""
    parsed = read(kind, {**EXAMPLES[kind], "timestamp": stamp}, EXAMPLES[kind])
    assert [(note.index, note.reason) for note in parsed.dropped] == [(0, "INVALID_TIMESTAMP")]


def test_rows_of_posthogs_exports() -> None:
    batch_export = {
        "uuid": "0190163d-8694-739b-aea5-966c26f8ad91", "event": "paid", "distinct_id": "ada", "team_id": 3,
        "timestamp": "2019-03-04 05:06:07.123456 UTC", "created_at": OLD, "_inserted_at": OLD, "elements": "",
        "properties": json.dumps({"total": 5, "$set": {"plan": "pro"}, "$current_url": "https://x.example/"}),
        "person_properties": json.dumps({"plan": "free", "age": 7}), "set": None, "set_once": '{"from": "ad"}',
        "ip": "203.0.113.9",
    }  # fmt: skip
    api = {**EXAMPLES["posthog"], "id": "e-2", "person": {"properties": {"x": 1}}, "elements": []}
    first, second = read("posthog", batch_export, api).events
    assert (first.id, at_us(first), first.url, first.ip) == (
        batch_export["uuid"], OLD_US, "https://x.example/", "203.0.113.9",
    )  # fmt: skip
    assert json.loads(first.set or b"") == {"plan": "pro", "age": 7}
    assert json.loads(first.set_once or b"") == {"from": "ad"}
    assert json.loads(first.properties)["total"] == 5
    assert (second.id, json.loads(second.properties)) == ("e-2", EXAMPLES["posthog"]["properties"])
    (bad,) = read("posthog", {**api, "properties": "{"}).dropped
    assert bad.reason == "MALFORMED_PROPERTIES"


def test_segments_own_correction_of_the_clock_stands() -> None:
    message = {**EXAMPLES["segment"], "originalTimestamp": "2019-03-04T06:00:00Z", "sentAt": "2019-03-04T06:00:01Z"}
    assert at_us(read("segment", message).events[0]) == OLD_US


def test_identity_and_properties_of_people_are_read_from_files() -> None:
    merged = {**EXAMPLES["handbill"], "event": "$identify", "anonymous_id": "a1", "user_properties": {"$set": {"n": 1}}}
    (event,) = read("handbill", merged).events
    assert event.edge == Edge(EdgeKind.IDENTIFY, "a1")
    assert json.loads(event.set or b"") == {"n": 1}


def test_hostile_lines_cost_only_themselves() -> None:
    deep = b'{"properties":' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    wide = json.dumps({**EXAMPLES["handbill"], "properties": {"x": "y" * 300_000}}).encode()
    lines = [b"\xff\xfe", deep, wide, b'{"event":"\\ud800"}', b"null", json.dumps(EXAMPLES["handbill"]).encode()]
    parsed = read("handbill", *lines)
    assert (len(parsed.events), len(parsed.dropped)) == (1, 5)
    assert canonical(b'{"n":123456789012345678901234567890}') == b'{"n":123456789012345678901234567890}'


# --- CSV


def mapped(names: list[str], *cells: str, columns: dict[str, str] | None = None, **values: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(row_json(csv_mapping(names, columns or {}, values), cells))
    return found


def test_columns_become_the_parts_of_an_event() -> None:
    columns = {"Who": "distinct_id", "When": "timestamp", "Total": "properties.total", "Zip": "properties.zip:text"}
    columns |= {"Plan": "set.plan", "Page": "context.url", "Raw": "properties.raw:json", "Paid": "properties.paid"}
    row = mapped(
        [*columns, "id", "Notes"],
        "ada", "2019-03-04", "59.90", "0123", "pro", "https://x.example/", '{"a":[1]}', "true", "o-1", "left out",
        columns=columns, event="order placed",
    )  # fmt: skip
    assert row == {
        "event": "order placed", "distinct_id": "ada", "timestamp": "2019-03-04", "event_id": "o-1",
        "properties": {"total": 59.9, "zip": "0123", "raw": {"a": [1]}, "paid": True},
        "user_properties": {"$set": {"plan": "pro"}}, "context": {"url": "https://x.example/"},
    }  # fmt: skip
    assert csv_mapping([*columns, "event", "Notes"], columns, {}).left_out == ("Notes",)


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1", 1), ("-2.5", -2.5), ("1e3", 1000.0), ("007", "007"), ("+1", "+1"), ("1,5", "1,5"), ("NaN", "NaN"),
        ("12345678901234567890", "12345678901234567890"), ("true", True), ("True", "True"), (" 1", " 1"),
        ("1_0", "1_0"),
    ],
)  # fmt: skip
def test_a_cell_is_a_number_only_where_nothing_is_lost(cell: str, value: Any) -> None:
    names = ["event", "distinct_id", "timestamp", "properties.x"]
    assert mapped(names, "e", "1", "2019-01-01", cell) == {
        "event": "e", "distinct_id": "1", "timestamp": "2019-01-01", "properties": {"x": value},
    }  # fmt: skip


def test_a_mapping_names_everything_that_is_wrong_with_it() -> None:
    with pytest.raises(Invalid) as raised:
        csv_mapping(["a", "b", "b"], {"a": "banner", "z": "event", "b": "distinct_id"}, {"event": "x", "nonsense": "y"})
    assert [fault.field for fault in raised.value.faults] == ["z", "b", "a", "nonsense", "timestamp", "distinct_id"]
    with pytest.raises(BadRow):
        mapped(["event", "distinct_id", "timestamp"], "e", "d")
    with pytest.raises(BadRow):
        mapped(["event", "distinct_id", "timestamp", "properties.n:number"], "e", "d", "1", "x")


# --- lines


def test_records_of_a_file_have_their_lines_and_can_be_read_from_any_of_them(tmp_path: Path) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=";")
    writer.writerows([["event", "note"], ["a", "one\r\ntwo"], ["b", 'a "quoted" one'], ["c", ""]])
    text = out.getvalue().encode() + b"\r\n" + b'd;"never closed\r\ne;last'
    plain, packed = tmp_path / "f.csv", tmp_path / "f.csv.gz"
    plain.write_bytes(text)
    packed.write_bytes(gzip.compress(text))
    for file in (plain, packed):
        with RecordFile(file) as source:
            assert (source.names, source.is_csv) == (["event", "note"], True)
            records = list(source.records())
        assert [(each.line, each.last_line) for each in records] == [(2, 3), (4, 4), (5, 5), (7, 7), (8, 8)]
        for place, record in enumerate(records[:-1]):
            with RecordFile(file) as source:
                assert list(source.records(record.end, record.last_line)) == records[place + 1 :]
        assert [source.cells(each.raw or b"")[0] for each in (*records[:3], records[4])] == ["a", "b", "c", "e"]
        with pytest.raises(csv.Error):
            source.cells(records[3].raw or b"")


def test_a_line_that_is_too_long_is_passed_over_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_files, "RECORD_BYTES", 50)
    file = tmp_path / "f.jsonl"
    file.write_bytes(b'{"a":1}\n' + b"x" * 1_000 + b'\n\n{"b":2}\n' + b"y" * 70)
    with RecordFile(file) as source:
        found = [(each.line, each.raw) for each in source.records()]
    assert found == [(1, b'{"a":1}\n'), (2, None), (4, b'{"b":2}\n'), (5, None)]


def test_damaged_gzip_is_refused_by_line(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"a":1}\n' * 100_000)[:-200])
    with RecordFile(file) as source, pytest.raises(Invalid) as raised:
        list(source.records())
    assert raised.value.code == "FILE_DAMAGED"


@pytest.mark.parametrize("sent_at", [None, 0, NOW, 253_402_300_799_999])
def test_sequences_of_history_stand_above_those_of_live_events_and_fit(sent_at: int | None) -> None:
    past = times.request_time(sent_at, NOW, (), is_history=True)
    assert times.sequence(NOW + 10**11, 0) < HISTORY_SEQUENCE <= past.first_sequence
    assert past.first_sequence + SEQUENCE_STEP <= 2**62
    assert past.ahead == 0


def test_refused_lines_are_parts_like_others() -> None:
    parsed = read_file(FileFormat.HANDBILL, [Refused(Reason.EVENT_TOO_LARGE)], [3], Moment(NOW, no_id), Terms(7))
    assert [note.reason for note in parsed.dropped] == ["EVENT_TOO_LARGE"]
