"""The steps that need no engine, under any order, split and repetition of the journal's bytes."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from datetime import date

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.events.batch import Batch, Owned
from handbill.events.model import (
    HORIZON_DAYS,
    CapturedEvent,
    Click,
    Dropped,
    Event,
    Impression,
    View,
    decode,
    encode,
    key,
    sender,
    tenant_of,
)
from handbill.events.pipeline.steps import STEPS, drop_copies, order, read, refuse_old
from handbill.events.reasons import DOCS, Reason
from tests.kit.ledger import Ledger, Shop, events

NOW = 1_790_000_000_000
DAY_MS = 86_400_000


def batch(bodies: list[bytes]) -> Batch:
    return Batch(Owned("0", 0, 1), "0-0", "1-0", bodies, "0-0")


def through(bodies: list[bytes]) -> Batch:
    made = batch(bodies)
    for step in STEPS:
        made = step(made)
    return made


def made_events(seed: int, number: int = 60) -> list[Event]:
    shops = [Shop(1, (11, 12), (None, 5)), Shop(2, (21,))]
    return list(events(random.Random(seed), shops, number, NOW))


@given(seed=st.integers(0, 10_000), shuffle=st.randoms(use_true_random=False), copies=st.integers(0, 40))
def test_any_order_and_repetition_keeps_the_same_rows(seed: int, shuffle: random.Random, copies: int) -> None:
    sent = made_events(seed)
    sent += [shuffle.choice(sent) for _ in range(copies)]
    ledger = Ledger()
    ledger.note(sent)
    mixed = sent[:]
    shuffle.shuffle(mixed)
    left, right = (through([encode(event) for event in each]) for each in (sent, mixed))
    assert [(row.event.tenant, row.key, row.event) for row in left.rows] == [
        (row.event.tenant, row.key, row.event) for row in right.rows
    ]
    assert left.drops == right.drops
    by_tenant: Counter[int] = Counter()
    for (tenant, _, _, reason), number in left.drops.items():
        assert reason is Reason.DUPLICATE
        by_tenant[tenant] += number
    assert by_tenant == ledger.copies
    assert Counter((row.event.tenant, row.event.kind) for row in left.rows) == ledger.rows
    assert len(left.rows) + len(left.refused) == len(sent)


@given(
    copies=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), max_size=30),
    shuffle=st.randoms(use_true_random=False),
)
def test_any_order_of_copies_keeps_the_smallest_sequence(copies: list[tuple[int, int]], shuffle: random.Random) -> None:
    """Copies of five events with sequences of their own: as many as wanted, in any order."""
    sent = [Impression(1, f"e{event}", NOW, NOW, 1, sequence=sequence) for event, sequence in copies]
    shuffle.shuffle(sent)
    rows = {row.event.id: row for row in through([encode(event) for event in sent]).rows}
    for event_id, row in rows.items():
        mine = [event for event in sent if event.id == event_id]
        assert row.event.sequence == min(event.sequence for event in mine)
        assert decode(row.body) == mine[0], "the bytes stay those of the first"
        assert row.lowered == (row.event.sequence < mine[0].sequence)
    assert rows.keys() == {event.id for event in sent}


@given(seed=st.integers(0, 10_000), cuts=st.lists(st.integers(0, 60), max_size=5))
def test_any_split_sees_every_event_once(seed: int, cuts: list[int]) -> None:
    bodies = [encode(event) for event in made_events(seed)]
    edges = [0, *sorted(cuts), len(bodies)]
    parts = [through(bodies[start:end]) for start, end in itertools.pairwise(edges)]
    whole = through(bodies)
    pieces = [(row.event.tenant, row.key) for part in parts for row in part.rows]
    assert sorted(pieces) == [(row.event.tenant, row.key) for row in whole.rows]


@given(st.lists(st.binary(max_size=60), max_size=20), st.integers(0, 10_000))
def test_no_bytes_stop_the_pipeline(noise: list[bytes], seed: int) -> None:
    good = [encode(event) for event in made_events(seed, 20)]
    mixed = noise + good
    random.Random(seed).shuffle(mixed)
    done = through(mixed)
    assert len(done.rows) + len(done.refused) + len(done.parked) + sum(
        number for (_, _, _, reason), number in done.drops.items() if reason is Reason.DO_NOT_TRACK
    ) == len(mixed)
    assert {item.body for item in done.parked} <= set(noise)
    assert len(done.rows) >= 20


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        encode(Impression(1, "x", NOW, NOW, 1))[:-1],
        msgspec.msgpack.encode(["i", 1, "x", NOW, NOW]),
        msgspec.msgpack.encode(["z", 1, "x", NOW, NOW, 1]),
        msgspec.msgpack.encode(["i", 0, "x", NOW, NOW, 1]),
        msgspec.msgpack.encode(["i", 2**31, "x", NOW, NOW, 1]),
        msgspec.msgpack.encode(["i", 1, "x", -1, NOW, 1]),
        msgspec.msgpack.encode(["i", 1, "x", NOW, 2**60, 1]),
        msgspec.msgpack.encode(["v", 1, "x", NOW, NOW, 2**30]),
        msgspec.msgpack.encode(["i", 1, "@@", NOW, NOW, 1]).replace(b"@@", b"\xff\xfe"),
        msgspec.msgpack.encode(["d", 1, "x", NOW, NOW, "view", "BECAUSE"]),
        msgspec.msgpack.encode(["d", 1, "x", NOW, NOW, "dance", "TOO_OLD"]),
    ],
)
def test_unreadable_bytes_are_parked_with_their_reason(body: bytes) -> None:
    good = encode(Impression(1, "good", NOW, NOW, 1))
    done = through([good, body])
    assert [row.event.id for row in done.rows] == ["good"]
    assert [(item.reason, item.body, item.tenant) for item in done.parked] == [(Reason.UNREADABLE, body, None)]


def test_an_entry_of_an_older_release_is_read() -> None:
    """Fields are only ever added at the end, with a default."""
    old = msgspec.msgpack.encode(["v", 7, "id", NOW, NOW, 3])
    assert decode(old) == View(7, "id", NOW, NOW, 3)


def test_the_horizon_is_exact() -> None:
    edge = NOW - HORIZON_DAYS * DAY_MS
    done = through([encode(Impression(1, "in", edge, NOW, 1)), encode(Click(1, "out", edge - 1, NOW, 1))])
    assert [row.event.id for row in done.rows] == ["in"]
    assert [row.event.id for row in done.refused] == ["out"]
    assert done.drops == {(1, date(2026, 8, 17), "click", Reason.TOO_OLD): 1}


def test_of_differing_copies_the_first_stands_and_the_difference_is_told() -> None:
    first = Impression(1, "a", NOW - 5, NOW, 1)
    again = Impression(1, "a", NOW - 5, NOW + 900, 1)  # a retry: only our own stamp differs
    untimed, later = Impression(1, "b", NOW, NOW, 1), Impression(1, "b", NOW + 7, NOW + 7, 1)  # nobody said when
    other = Impression(1, "a", NOW - 5, NOW, 2)
    done = drop_copies(read(batch([encode(event) for event in (first, again, untimed, later, other)])))
    assert [row.event for row in done.rows] == [first, untimed]
    reasons = Counter(reason for (_, _, _, reason), number in done.drops.items() for _ in range(number))
    assert reasons == {Reason.DUPLICATE: 2, Reason.DUPLICATE_DIFFERENT: 1}


def test_one_id_of_two_kinds_or_two_tenants_is_two_events() -> None:
    sent: list[Event] = [Impression(1, "a", NOW, NOW, 1), Click(1, "a", NOW, NOW, 1), Impression(2, "a", NOW, NOW, 9)]
    assert len(through([encode(event) for event in sent]).rows) == 3
    assert key("click", "a") != key("impression", "a")


def test_what_the_edge_dropped_is_counted_and_never_stored() -> None:
    done = read(batch([encode(Dropped(3, "x", NOW, NOW, "view", "DO_NOT_TRACK"))] * 2))
    assert not done.rows
    assert list(done.drops.values()) == [2]


def test_rows_are_sorted_by_tenant_and_key() -> None:
    done = order(refuse_old(read(batch([encode(event) for event in made_events(3)]))))
    keys = [(row.event.tenant, row.key) for row in done.rows]
    assert keys == sorted(keys)


def test_the_sender_decides_the_lane() -> None:
    assert sender(Impression(1, "e", NOW, NOW, 1, user="u", session="s")) == "u"
    assert sender(Impression(1, "e", NOW, NOW, 1, session="s")) == "s"
    assert sender(Impression(1, "e", NOW, NOW, 1)) == "e"


def test_every_reason_has_its_line() -> None:
    assert set(DOCS) == set(Reason)


@given(st.integers(1, 2**31 - 1), st.sampled_from(["captured", "impression", "click", "view", "dropped"]), st.text())
def test_the_tenant_is_read_without_decoding(tenant_id: int, kind: str, text: str) -> None:
    events: dict[str, Event] = {
        "captured": CapturedEvent(tenant_id, text, 1, 1, text, text, "own"),
        "impression": Impression(tenant_id, text, 1, 1, 1),
        "click": Click(tenant_id, text, 1, 1, 1),
        "view": View(tenant_id, text, 1, 1, 1),
        "dropped": Dropped(tenant_id, text, 1, 1, "view", "TOO_OLD"),
    }
    assert tenant_of(encode(events[kind])) == tenant_id


@given(st.binary(max_size=12))
def test_any_bytes_have_a_tenant_or_none(body: bytes) -> None:
    assert 0 <= (tenant_of(body) or 0) < 2**32
