"""In which order events of one time stand: by when they were sent and by their position, in every dialect."""

from __future__ import annotations

import uuid
from typing import Any, Union, get_args

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from handbill.events.dialects import own_wire, posthog, posthog_v1, segment, times
from handbill.events.dialects.canon import CapturedEvent, Moment, Terms
from handbill.events.dialects.flat import flat_event
from handbill.events.model import (
    Click,
    Counted,
    Edge,
    EdgeKind,
    Impression,
    SequenceNumber,
    View,
    at_us,
    decode,
    encode,
)
from handbill.kit.clock import from_ms
from handbill.kit.report_ids import SEQUENCE_STEP
from tests.kit.dialects import BATCHES, NOW, event, only, post, uuid7

NOW_US = NOW * 1000
DAY_MS = 86_400_000
paths = st.sampled_from(sorted(BATCHES))


@given(paths, st.integers(1, 30), st.integers(NOW - DAY_MS, NOW + DAY_MS), st.sets(st.integers(0, 29)))
def test_positions_order_the_events_of_a_request(path: str, count: int, sent_at: int, bad: set[int]) -> None:
    """An event that is refused takes its position with it."""
    batch: list[Any] = [event(n, NOW_US) for n in range(count)]
    for n in bad & set(range(count)):
        batch[n] = {**batch[n], "event": None}
    parsed = post(path, batch, sent_at=sent_at)
    assert [each.sequence for each in parsed.events] == [sent_at * 16_384 + place for place in parsed.places]


@given(
    paths,
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.lists(st.integers(1, 4), min_size=1, max_size=8),
    st.integers(0, 5_000),
    st.randoms(use_true_random=False),
)
def test_events_that_are_sent_again_in_other_batches_keep_their_order(
    path: str, sizes: list[int], again: list[int], pause: int, random: Any
) -> None:
    """All of one microsecond. Each request is sent after the one before it; of copies the smaller sequence counts."""
    batch = [event(n, NOW_US) for n in range(sum(sizes))]
    requests, start, sent_at = [], 0, NOW
    for size in sizes:
        requests.append((sent_at, batch[start : start + size]))
        start, sent_at = start + size, sent_at + 1
    for size in again:
        first = random.randrange(len(batch))
        requests.append((sent_at + pause, batch[first : first + size]))
        sent_at += 1
    random.shuffle(requests)  # arrival decides nothing
    smallest: dict[str, int] = {}
    for sent, some in requests:
        for each in post(path, some, sent_at=sent, received=NOW + random.randrange(30_000)).events:
            smallest[each.id] = min(smallest.get(each.id, each.sequence), each.sequence)
    assert sorted(smallest, key=smallest.__getitem__) == [f"e{n}" for n in range(len(batch))]


@given(paths, st.lists(st.none() | st.integers(0, NOW + times.FUTURE_MS), min_size=1, max_size=6))
def test_without_a_time_of_sending_the_newest_uuid7_stands_for_it(path: str, made: list[int | None]) -> None:
    batch = [event(n, NOW_US, None if ms is None else uuid7(ms, n)) for n, ms in enumerate(made)]
    newest = max((ms for ms in made if ms is not None), default=0)
    for received in (NOW, NOW + 1_000):
        parsed = post(path, batch, received=received)
        assert [each.sequence for each in parsed.events] == [newest * 16_384 + n for n in range(len(made))]
    sent = post(path, batch, sent_at=NOW)
    assert [each.sequence for each in sent.events] == [NOW * 16_384 + n for n in range(len(made))]
    assert [at_us(each) for each in parsed.events] == [NOW_US] * len(made)  # it corrects no clock


def test_only_a_true_uuid7_tells_a_time() -> None:
    good = uuid7(NOW, 0xABCDEF)
    assert times.newest_uuid7([good], NOW) == times.newest_uuid7([f" {good.upper()} "], NOW) == NOW
    v4 = good[:14] + "4" + good[15:]
    other_variant = good[:19] + "c" + good[20:]
    far = uuid7(NOW + times.FUTURE_MS + 1)
    shapes = [good.replace("-", ""), "{" + good + "}", good + "0", good[:-1], "_" + good[1:], good[:8] + "_" + good[9:]]
    assert times.newest_uuid7([None, "", "e1", "x" * 10_000, v4, other_variant, far, *shapes], NOW) is None
    assert times.newest_uuid7([uuid7(5), far, uuid7(9), uuid7(7)], NOW) == 9
    assert times.newest_uuid7([str(uuid.uuid4()), str(uuid.uuid1())], NOW) is None


@given(st.none() | st.integers() | st.integers(-(10**30), 10**30), st.integers(0, 10**6))
def test_a_sequence_fits_its_column_whatever_a_client_sends(sent_at: int | None, index: int) -> None:
    value = times.sequence(sent_at, index)
    (bound,) = get_args(SequenceNumber)[1:]
    assert 0 <= value < bound.lt
    assert value == min(max(sent_at or 0, 0), 253_402_300_799_999) * 16_384 + min(index, 16_383)


def test_every_dialect_takes_fewer_events_than_a_request_has_positions() -> None:
    assert max(module.BATCH_MAX for module in (own_wire, posthog, posthog_v1, segment)) <= 10_000 < SEQUENCE_STEP


@given(
    st.lists(st.integers(1, 19), min_size=1, max_size=20),
    st.integers(10, 20),
    st.integers(NOW - 20_000, NOW + 2_000),
    st.randoms(use_true_random=False),
)
def test_batches_of_one_millisecond_keep_the_order_of_calls(
    bursts: list[int], size: int, sent_at: int, random: Any
) -> None:
    """Several calls in each of some milliseconds, cut into batches that are all sent in one."""
    milliseconds = [ms for ms, count in enumerate(bursts) for _ in range(count)]
    calls = [event(n, NOW_US - (20 - ms) * 1000) for n, ms in enumerate(milliseconds)]
    cuts = range(0, len(calls), size)
    whole = [milliseconds[cut] for cut in cuts if len(set(milliseconds[cut : cut + size])) == 1]
    assume(len(whole) == len(set(whole)))  # nothing orders two batches whose calls are all of one millisecond
    batches = [calls[cut : cut + size] for cut in cuts]
    random.shuffle(batches)  # arrival decides nothing
    events = [each for batch in batches for each in post("/v1/batch", batch, sent_at=sent_at).events]
    ordered = sorted(events, key=lambda each: (at_us(each), each.sequence, each.id))
    assert [each.id for each in ordered] == [each["id"] for each in calls]


def test_segment_has_one_time_of_sending_for_all_messages() -> None:
    times_sent = ["2026-11-16T11:59:58Z", None, "2026-11-16T11:59:59.250Z", "never", "2026-11-16T11:59:57Z"]
    batch = [{**event(n, NOW_US), "sentAt": sent_at} for n, sent_at in enumerate(times_sent)]
    parsed = post("/v1/batch", batch)
    assert [each.sequence for each in parsed.events] == [(NOW - 750) * 16_384 + n for n in range(5)]
    parsed = post("/v1/batch", batch, sent_at=NOW - 100)
    assert [each.sequence for each in parsed.events] == [(NOW - 100) * 16_384 + n for n in range(5)]


def test_a_messages_own_time_of_sending_corrects_its_clock_and_no_other_messages() -> None:
    wrong = {**event(0, NOW_US + 3_600_000_000), "sentAt": from_ms(NOW + 3_600_000).isoformat()}
    parsed = post("/v1/batch", [wrong, event(1, NOW_US - 1)])
    assert [at_us(each) for each in parsed.events] == [NOW_US, NOW_US - 1]


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from((0, 0, 0, 1))), min_size=2, max_size=20),
    st.integers(0, 3_000),
    st.randoms(use_true_random=False),
)
def test_posthog_js_queues_some_events_and_sends_others_at_once(
    captured: list[tuple[bool, int]], wait: int, random: Any
) -> None:
    """Those with options leave at once, the others together later; ids rise with every call, and break all ties."""
    calls, now = [], NOW
    for n, (_, gap) in enumerate(captured):
        now += gap
        calls.append(event(n, now * 1000, uuid7(now, n), **{"$lib": "web"}))
    requests = [(now, [calls[n]]) for n, (at_once, _) in enumerate(captured) if at_once]
    if queued := [calls[n] for n, (at_once, _) in enumerate(captured) if not at_once]:
        requests.append((now + wait, queued))
    random.shuffle(requests)  # arrival decides nothing
    events = [each for sent_at, batch in requests for each in post("/batch/", batch, sent_at=sent_at).events]
    ordered = sorted(events, key=lambda each: (at_us(each), each.sequence, each.id))
    assert [each.id for each in ordered] == [each["id"] for each in calls]


def test_only_posthog_js_is_known_to_number_the_ids_of_a_millisecond() -> None:
    batch = [event(n, NOW_US, uuid7(NOW, 9 - n), **{"$lib": lib}) for n, lib in enumerate(("web", "ios", "posthog-go"))]
    parsed = post("/batch/", [*batch, event(3, NOW_US, "own", **{"$lib": "web"})], sent_at=NOW + 1)
    later = (NOW + 1) * 16_384
    assert [each.sequence for each in parsed.events] == [NOW * 16_384, later + 1, later + 2, later + 3]


def test_posthogs_newer_format_falls_back_to_when_the_batch_was_made() -> None:
    created_at = from_ms(NOW - 70_000).isoformat()
    found = only(post("/i/v1/analytics/events", [event(0, NOW_US)], created_at=created_at))
    assert (found.sequence, at_us(found)) == ((NOW - 70_000) * 16_384, NOW_US + 70_000_000)


# --- entries of the compatibility stream, and of the journal


def test_a_flat_entry_has_its_time_and_its_sequence() -> None:
    def made(**fields: str) -> CapturedEvent:
        return flat_event({"event": "e", "distinct_id": "ada", **fields}, "1-2", Moment(NOW, str), Terms(7), [])

    found = made(timestamp="2026-11-16T11:59:59.123456Z", sent_at="2026-11-16T12:00:01Z")
    assert (at_us(found), found.sequence) == (NOW_US - 876_544, (NOW + 1000) * 16_384)
    assert made(timestamp="1794830399.5").micros == 0
    assert made(timestamp=f"{NOW - 1}.25").micros == 250
    assert (at_us(made()), made().sequence) == (NOW_US, 0)
    assert made(event_id=uuid7(NOW - 5)).sequence == (NOW - 5) * 16_384


OLD_ENTRIES: dict[str, Counted] = {
    "dc0010a16907a3692d31cf000001a0c4506c7bcf000001a0c4506dc80304c0a3616e6ec0c0c0c090c0a162": Impression(
        7, "i-1", 1_790_000_000_123, 1_790_000_000_456, 3, 4, None, "ann", variant="b"
    ),
    "dc0010a16307a3632d31cf000001a0c4506c7bcf000001a0c4506dc803c0c0c0c0c0c0c090b268747470733a2f2f612e6578616d706c652fc0":
    Click(7, "c-1", 1_790_000_000_123, 1_790_000_000_456, 3, destination="https://a.example/"),
    "dc0015a17607a3762d31cf000001a0c4506c7bcf000001a0c4506dc803c0c0a3616e6ec0c0c0c090c000c2c3c0c0cd07d0": View(
        7, "v-1", 1_790_000_000_123, 1_790_000_000_456, 3, user="ann", required_ms=2000
    ),
    "dc001da16507a3652d31cf000001a0c4506c7bcf000001a0c4506dc8a470616964a3616e6ea36f776ec4077b2261223a317dc0c0c092a5616c69"
    "6173a3626f62c0c0c0c0c0c0c0c0c0c0c0c0c0c0c091aa686973746f726963616c": CapturedEvent(
        7, "e-1", 1_790_000_000_123, 1_790_000_000_456, "paid", "ann", "own", b'{"a":1}',
        edge=Edge(EdgeKind.ALIAS, "bob"), marks=("historical",),
    ),
}  # fmt: skip
"""Entries as the release before packed them, without the microseconds and the sequence."""


@pytest.mark.parametrize("packed", OLD_ENTRIES)
def test_an_entry_of_the_release_before_is_read(packed: str) -> None:
    found = decode(bytes.fromhex(packed))
    assert found == OLD_ENTRIES[packed]
    assert isinstance(found, Impression | Click | View | CapturedEvent)
    assert (found.micros, found.sequence) == (0, 0)


_NEW_MEMBERS = ("micros", "sequence")


def of_the_release_before(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The struct without what this release added at its end."""
    fields = msgspec.structs.fields(kind)
    assert tuple(field.name for field in fields[-2:]) == _NEW_MEMBERS
    before = [
        (field.name, field.type) if field.required else (field.name, field.type, field.default) for field in fields[:-2]
    ]
    tag = kind.__struct_config__.tag
    return msgspec.defstruct(kind.__name__, before, array_like=True, frozen=True, tag=tag)


@pytest.mark.parametrize("packed", OLD_ENTRIES)
def test_an_entry_of_this_release_is_read_by_a_process_of_the_release_before(packed: str) -> None:
    """During an upgrade: what is added at the end of an entry is passed over, and parks nothing."""
    kinds = tuple(of_the_release_before(kind) for kind in (Impression, Click, View, CapturedEvent))
    entry = msgspec.structs.replace(OLD_ENTRIES[packed], micros=999, sequence=2**62 - 1)
    found = msgspec.msgpack.Decoder(Union[kinds]).decode(encode(entry))  # noqa: UP007 - of a tuple
    stored = msgspec.structs.asdict(entry)
    assert msgspec.structs.asdict(found) == {name: stored[name] for name in stored if name not in _NEW_MEMBERS}
