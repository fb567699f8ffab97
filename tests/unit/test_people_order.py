"""The order of events (time, smallest sequence of all copies, event id): people and properties equal a plain model."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.events.model import CapturedEvent
from handbill.events.model import Edge as SaidEdge
from handbill.people.corrections import Corrections, correct_first_sighting
from handbill.people.gather import Gathered
from handbill.people.identity import History, fold
from handbill.people.model import Edge, EdgeKind, EdgeName, Order
from handbill.people.packed import Packed, pack, unpack
from handbill.people.properties import MAX_TIE_VALUE, MAX_TIES, MAX_VALUE, Book, as_json, merge, said, values

IDS = ("ann", "bob", "cat", "dot")
KEYS = ("plan", "city")


def write(at: int, sequence: int, event: str, verb: str, content: object) -> Book:
    return said(Order(at, sequence, event), **{verb: json.dumps(content).encode()})


def corrected(book: Book, *copies: CapturedEvent) -> Book:
    corrections = Corrections()
    for copy in copies:
        corrections.add(Order(copy.at * 1000 + copy.micros, copy.sequence, copy.id), copy.set_once)
    return corrections.apply(book)


def copy_of(at: int, sequence: int, event: str, **more: Any) -> CapturedEvent:
    return CapturedEvent(1, event, at // 1000, 0, "$set", "ann", "own", micros=at % 1000, sequence=sequence, **more)


# ------------------------------------------------------------------------------------------------- examples
def test_the_sequence_decides_between_words_of_one_microsecond() -> None:
    first, second = write(7, 5, "z", "set_", {"plan": "free"}), write(7, 6, "a", "set_", {"plan": "pro"})
    assert as_json(merge([first, second])) == as_json(merge([second, first])) == b'{"plan":"pro"}'


def test_a_smaller_sequence_of_the_latest_word_gives_the_word_before_it_back() -> None:
    a, b = write(7, 5, "a", "set_", {"plan": "a"}), write(7, 3, "b", "set_", {"plan": "b"})
    stored = unpack(pack(merge([a, b])))
    assert as_json(stored) == b'{"plan":"a"}'
    copy = write(7, 1, "a", "set_", {"plan": "a"})
    assert as_json(merge([stored, copy])) == b'{"plan":"b"}'
    assert corrected(stored, copy_of(7, 1, "a")) == merge([stored, copy]) == merge([copy, b])


def test_a_smaller_sequence_of_a_default_makes_it_the_earliest() -> None:
    a, b = write(7, 3, "a", "set_once", {"plan": "a"}), write(7, 5, "b", "set_once", {"plan": "b"})
    stored = unpack(pack(merge([a, b])))
    assert as_json(stored) == b'{"plan":"a"}'
    copy = copy_of(7, 1, "b", set_once=b'{"plan":"b"}')
    assert as_json(corrected(stored, copy)) == b'{"plan":"b"}'
    assert corrected(stored, copy) == merge([a, write(7, 1, "b", "set_once", {"plan": "b"})])


def test_a_smaller_sequence_of_an_unset_lets_a_default_of_its_time_stand() -> None:
    stored = merge([write(7, 5, "u", "unset", ["plan"]), write(7, 3, "d", "set_once", {"plan": "basic"})])
    assert as_json(stored) == b"{}"
    assert as_json(corrected(stored, copy_of(7, 1, "u"))) == b'{"plan":"basic"}'


def test_a_correction_adds_nothing_that_is_not_stored() -> None:
    stored = merge([write(7, 5, "a", "set_", {"plan": "a"}), write(7, 5, "d", "set_once", {"city": "d"})])
    others = (
        copy_of(7, 1, "x", set=b'{"plan":"x","new":1}', set_once=b'{"other":1}'),
        copy_of(6, 1, "y", set_once=b'{"city":"y"}'),
        copy_of(7, 5, "z", set_once=b'{"city":"z"}'),
        copy_of(8, 1, "v", set_once=b'{"city":"v"}'),
    )
    assert corrected(stored, *others) == stored
    assert corrected({}, *others) == {}


def test_a_correction_finds_its_event_whatever_the_stored_time() -> None:
    """Time and content are those of the first committed copy; of the others only the sequence counts."""
    stored = merge([write(7, 5, "a", "set_", {"plan": "a"}), write(7, 3, "b", "set_", {"plan": "b"})])
    assert as_json(corrected(stored, copy_of(900, 1, "a", set=b'{"plan":"other"}'))) == b'{"plan":"b"}'


@pytest.mark.parametrize("seed", range(4))
def test_without_copies_the_winner_is_right_whatever_the_number_of_ties(seed: int) -> None:
    chance = random.Random(seed)
    books = [
        write(
            7, sequence, f"e{sequence}", "set_", {"plan": "x" * chance.choice((1, 900, 1_100, 8_000)) + str(sequence)}
        )
        for sequence in chance.sample(range(10_000), 500)
    ]
    whole = merge(books)
    for size in (1, 7, 90):
        chance.shuffle(books)
        parts = [merge(books[start : start + size]) for start in range(0, len(books), size)]
        assert merge(unpack(pack(part)) for part in parts) == whole
    winner = max((cell.latest.sequence, cell.latest) for book in books for cell in book.values() if cell.latest)[1]
    cell = whole["plan"]
    assert cell.latest == winner
    assert len(cell.ties) == MAX_TIES
    assert all(len(word.value) <= MAX_TIE_VALUE for word in cell.ties)
    assert pack(whole).size < MAX_VALUE + MAX_TIES * MAX_TIE_VALUE + 1_000


def test_a_book_without_ties_is_as_small_as_before_and_rows_of_earlier_releases_are_read() -> None:
    encode = msgspec.msgpack.Encoder().encode
    words = encode([("city", None, b'"Rome"'), ("name", True, None), ("plan", b'"pro"', b'"free"')])
    old = Packed(words, encode(([(3, "e1"), (5, "e2")], [(-1, 0), (1, -1), (1, 0)])))
    book = merge([
        write(3_000, 0, "e1", "set_once", {"city": "Rome", "plan": "free"}),
        said(Order(5_000, 0, "e2"), set_=b'{"plan":"pro"}', unset=b'["name"]'),
    ])  # fmt: skip
    assert unpack(old) == book
    assert pack(book).words == words, "large values that say nothing new are not written again"
    assert msgspec.msgpack.decode(pack(book).moments)[0] == [[3_000, 0, "e1"], [5_000, 0, "e2"]]
    assert unpack(pack(book)) == book


# ------------------------------------------------------------------------------------------------- laws
@st.composite
def histories(draw: st.DrawFn) -> list[CapturedEvent]:
    """Events of a few ids at a few times, each with up to three copies of other sequences and the same content."""
    events = []
    for number in range(draw(st.integers(0, 12))):
        content: dict[str, Any] = {}
        for verb in draw(st.sets(st.sampled_from(("set", "set_once", "unset")), max_size=3)):
            keys = draw(st.lists(st.sampled_from(KEYS), max_size=2, unique=True))
            content[verb] = json.dumps(keys if verb == "unset" else dict.fromkeys(keys, f"{verb}-{number}")).encode()
        edge = draw(st.none() | st.builds(SaidEdge, st.sampled_from(EdgeKind), st.sampled_from(IDS)))
        at, who = draw(st.integers(1_998, 2_001)), draw(st.sampled_from(IDS))
        event = draw(st.sampled_from("abc")) + str(number)
        for sequence in draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)):
            events.append(CapturedEvent(
                1, event, at // 1000, 0, "see", who, "own", edge=edge, micros=at % 1000, sequence=sequence, **content,
            ))  # fmt: skip
    return events


def in_order(events: Iterable[CapturedEvent]) -> list[CapturedEvent]:
    """Each event once, with the smallest sequence of its copies, in the order of the fold."""
    first: dict[str, CapturedEvent] = {}
    for event in events:
        before = first.get(event.id, event)
        first[event.id] = min(before, event, key=lambda each: each.sequence)
    return sorted(first.values(), key=lambda each: (each.at, each.micros, each.sequence, each.id))


def plain_properties(events: Iterable[CapturedEvent], ids: Iterable[str]) -> dict[str, object]:
    """One event after the other: a set or an unset replaces what was, a default only fills an empty place."""
    current: dict[str, object] = {}
    defaults: dict[str, int] = {}
    chosen = set(ids)
    told = [event for event in in_order(events) if event.distinct_id in chosen]
    for place, event in enumerate(told):
        for key in json.loads(event.set_once or b"{}"):
            defaults.setdefault(key, place)
    for place, event in enumerate(told):
        for key, value in json.loads(event.set_once or b"{}").items():
            if defaults[key] == place and key not in current:
                current[key] = value
        for key, value in json.loads(event.set or b"{}").items():
            current[key] = value
        for key in json.loads(event.unset or b"[]"):
            current.pop(key, None)
    return current


def batches(events: list[CapturedEvent], chance: random.Random) -> list[list[CapturedEvent]]:
    parts = []
    while events:
        size = chance.randint(1, 5)
        parts.append(events[:size])
        events = events[size:]
    return parts


class Stored:
    """What a store keeps of one id's events, without a store: first copies are merged, the others correct."""

    def __init__(self) -> None:
        self.sequences: dict[str, int] = {}
        self.books: dict[str, Packed] = {}
        self.edges: dict[EdgeName, Order] = {}

    def commit(self, batch: Sequence[CapturedEvent]) -> None:
        fresh: dict[str, CapturedEvent] = {}
        lowered: list[CapturedEvent] = []
        for event in batch:
            if event.id in self.sequences:
                if event.sequence < self.sequences[event.id]:
                    self.sequences[event.id] = event.sequence
                    lowered.append(event)
            elif event.id not in fresh or event.sequence < fresh[event.id].sequence:
                fresh[event.id] = event
        self.sequences.update({each.id: each.sequence for each in fresh.values()})
        gathered = Gathered(fresh.values(), lowered)
        for owner in gathered.books.keys() | gathered.corrections.keys():
            before = unpack(self.books[owner[1]]) if owner[1] in self.books else {}
            if owner in gathered.corrections:
                before = gathered.corrections[owner].apply(before)
            self.books[owner[1]] = pack(merge((before, gathered.books.get(owner, {}))))
        for (_, name), copies in gathered.corrected_edges.items():
            if name in self.edges:
                self.edges[name] = correct_first_sighting(self.edges[name], copies)
        for (_, name), edge in gathered.edges.items():
            self.edges[name] = min(edge.order, self.edges.get(name, edge.order))

    def people(self, voided: Sequence[EdgeName]) -> dict[str, frozenset[str]]:
        edges = [Edge(name.kind, name.source, name.target, *order) for name, order in self.edges.items()]
        return fold(edges, voided).people()


@given(histories(), st.randoms(use_true_random=False), st.data())
def test_any_arrangement_of_copies_gives_the_people_and_properties_of_the_plain_model(
    events: list[CapturedEvent], chance: random.Random, data: st.DataObject
) -> None:
    whole = Gathered(in_order(events))
    voided = data.draw(st.lists(st.sampled_from(sorted(EdgeName(*name) for _, name in whole.edges)), max_size=2)
                       if whole.edges else st.just([]))  # fmt: skip
    in_time = [Edge(e.kind, e.source, e.target, *e.order) for e in whole.edges.values()]
    expected = fold(in_time, voided).people()
    shuffled = [*events, *events[::2]]
    chance.shuffle(shuffled)
    stored = Stored()
    for batch in batches(shuffled, chance):
        stored.commit(batch)
    assert stored.edges == {name: edge.order for (_, name), edge in whole.edges.items()}
    assert stored.people(voided) == expected
    assert {who: each for who, each in stored.books.items() if unpack(each)} == {
        who: pack(book) for (_, who), book in whole.books.items()
    }
    for ids in [*expected.values(), *({each} for each in IDS)]:
        properties = merge(unpack(stored.books[each]) for each in sorted(ids) if each in stored.books)
        found = {name: json.loads(value) for name, value in values(properties).items()}
        assert found == plain_properties(events, ids)


@pytest.mark.parametrize("seed", range(6))
def test_as_many_writes_of_one_microsecond_as_are_kept_with_copies_in_any_order(seed: int) -> None:
    """A winner and all its ties, each sent several times: first attempts come before and after their repetitions."""
    chance = random.Random(seed)
    writes = []
    for number in range(MAX_TIES + 1):
        value = json.dumps({"plan": number, "city": "x" * (MAX_TIE_VALUE - 2)}).encode()
        more: dict[str, bytes] = chance.choice(({"set": value}, {"unset": b'["plan"]'}, {"set_once": value}))
        for sequence in chance.sample(range(40), k=3):
            writes.append(copy_of(7, sequence, f"e{number}", **more))
    expected = Gathered(in_order(writes)).books[1, "ann"]
    for _ in range(20):
        chance.shuffle(writes)
        stored = Stored()
        for batch in batches(writes[:], chance):
            stored.commit(batch)
        assert stored.books["ann"] == pack(expected)
        found = {name: json.loads(value) for name, value in values(unpack(stored.books["ann"])).items()}
        assert found == plain_properties(writes, ["ann"])


@given(histories(), st.randoms(use_true_random=False))
def test_copies_of_one_batch_merge_in_any_order(events: list[CapturedEvent], chance: random.Random) -> None:
    whole = Gathered(in_order(events))
    shuffled = [*events, *events[::2]]
    chance.shuffle(shuffled)
    parts = [Gathered(part) for part in batches(shuffled, chance)]
    for owner, book in whole.books.items():
        mine = [part.books[owner] for part in parts if owner in part.books]
        assert merge(mine) == merge([merge(mine[::2]), merge(mine[1::2])]) == book
    edges = [edge for part in parts for edge in part.edges.values()]
    assert {edge.name: edge for edge in History(edges).edges} == {name: edge for (_, name), edge in whole.edges.items()}
