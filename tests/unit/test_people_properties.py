"""Properties: the rule in a few examples, then order, splits, repetition and undo over random books."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.people.identity import fold
from handbill.people.model import Edge, EdgeKind, Order
from handbill.people.packed import Malformed, Packed, pack, unpack
from handbill.people.properties import MAX_KEYS, NOISY, Book, as_json, merge, said, values

Saying = tuple[int, str, str, object]


def say(at: int, verb: str, key: str, value: object = None, event: str = "") -> dict[str, object]:
    return {"at": at, "event": event or f"e{at}", "verb": verb, "key": key, "value": value}


def book_of(*sayings: dict[str, object]) -> dict[str, object]:
    return {name: json.loads(value) for name, value in values(merge(_book(each) for each in sayings)).items()}


def _book(saying: dict[str, object]) -> Book:
    order = Order(int(str(saying["at"])), 0, str(saying["event"]))
    verb, key = saying["verb"], str(saying["key"])
    if verb == "unset":
        return said(order, unset=json.dumps([key]).encode())
    told = json.dumps({key: saying["value"]}).encode()
    return said(order, set_=told) if verb == "set" else said(order, set_once=told)


def test_the_latest_word_holds_whatever_arrives_last() -> None:
    assert book_of(say(5, "set", "plan", "pro"), say(3, "set", "plan", "free")) == {"plan": "pro"}


def test_the_earliest_default_holds_until_something_is_set() -> None:
    first = [say(5, "once", "source", "ad"), say(3, "once", "source", "mail")]
    assert book_of(*first) == {"source": "mail"}
    assert book_of(*first, say(1, "set", "source", "sales")) == {"source": "sales"}


@pytest.mark.parametrize(("default_at", "left"), [(3, {}), (4, {}), (5, {"plan": "basic"})])
def test_a_default_outlives_an_unset_only_if_it_is_later(default_at: int, left: dict[str, str]) -> None:
    gone = say(4, "unset", "plan", event="e4")
    assert book_of(say(1, "set", "plan", "pro"), gone, say(default_at, "once", "plan", "basic")) == left


def test_within_one_event_an_unset_follows_its_sets() -> None:
    book = said(Order(1, 0, "e"), b'{"a": 1, "b": 2}', b'{"a": 0, "c": 3}', b'["b"]')
    assert as_json(book) == b'{"a":1,"c":3}'
    assert as_json(said(Order(1, 0, "e"), b'{"b": 2}', None, b'{"b": ""}')) == b"{}"


def test_null_is_a_value_to_set_and_none_to_default_to() -> None:
    assert as_json(said(Order(1, 0, "e"), b'{"a":null}', b'{"b":null}')) == b'{"a":null}'


def test_what_changes_with_every_page_never_reaches_the_person() -> None:
    noisy = json.dumps(dict.fromkeys(NOISY, 1) | {"plan": "pro"}).encode()
    assert as_json(said(Order(1, 0, "e"), noisy, noisy, json.dumps(sorted(NOISY)).encode())) == b'{"plan":"pro"}'


@pytest.mark.parametrize("nonsense", [b"", b"[]", b"7", b"{", b'{"a":NaN}', b"\xff", b'"\xff"', b"[" * 9_000, b"[1]"])
def test_what_cannot_be_read_says_nothing(nonsense: bytes) -> None:
    assert said(Order(1, 0, "e"), nonsense, nonsense, nonsense) == {}


def test_values_that_no_database_takes_are_mended_or_left_out() -> None:
    sent = (
        rb'{"nul": "a\u0000b", "half": "\ud83d", "whole": "\ud83e\udd89", "plain": "\\u0000", "big": [1e99999],'
        rb' "id": "3e45678", "spaced": { "a" : [ 1, 2 ] }, "": 1, "long": "' + b"x" * 9_000 + b'"}'
    )
    book = said(Order(1, 0, "e"), sent)
    assert {name: json.loads(value) for name, value in values(book).items()} == {
        "nul": "a\ufffdb", "half": "\ufffd", "whole": "🦉", "plain": "\\u0000", "id": "3e45678",
        "spaced": {"a": [1, 2]},
    }  # fmt: skip
    assert values(book)["spaced"] == b'{"a":[1,2]}'


def test_an_id_keeps_a_bounded_number_of_keys_and_every_order_keeps_the_same() -> None:
    books = [said(Order(n, 0, "e"), json.dumps({f"k{n:05}": n}).encode()) for n in range(MAX_KEYS + 50)]
    whole = merge(books)
    assert len(whole) == MAX_KEYS
    assert merge(reversed(books)) == whole
    assert merge([merge(books[1_000:]), merge(books[:1_500])]) == whole


def test_a_stored_book_that_was_not_written_by_us_is_refused() -> None:
    whole = pack(said(Order(1, 0, "e"), b'{"a":1,"b":2}'))
    other = pack(said(Order(1, 0, "e"), b'{"a":1}'))
    for words, moments in ((whole.words, other.moments), (b"", whole.moments), (whole.words, b"\x92\x90\x90")):
        with pytest.raises(Malformed):
            unpack(Packed(words, moments))


def test_saying_the_same_again_moves_moments_and_leaves_the_words_alone() -> None:
    once = said(Order(1, 0, "e1"), b'{"plan":"pro","name":"Zoe"}')
    again = merge([once, said(Order(9, 0, "e2"), b'{"plan":"pro","name":"Zoe"}')])
    assert pack(again).words == pack(once).words
    assert pack(again).moments != pack(once).moments
    assert len(pack(again).moments) < 16, "one event is named once, however many keys it set"


# ------------------------------------------------------------------------------------------------- laws
sayings = st.builds(
    say,
    st.integers(0, 6),
    st.sampled_from(("set", "once", "unset")),
    st.sampled_from(("plan", "city")),
    st.integers(0, 3),
    st.sampled_from(("e1", "e2", "e3")),
)
histories = st.lists(sayings, max_size=14)


def reference(history: list[dict[str, object]], key: str) -> object:
    """The rule, word by word, over the whole history at once."""
    told = [
        ((each["at"], each["event"]), each["verb"] == "unset", json.dumps(each["value"]), each["verb"] == "once")
        for each in history
        if each["key"] == key
    ]
    latest = max((each for each in told if not each[3]), default=None)
    default = min((each for each in told if each[3]), default=None)
    if latest is not None and not latest[1]:
        return json.loads(latest[2])
    if default is not None and (latest is None or default[0] > latest[0]):
        return json.loads(default[2])
    return None


@given(histories, st.randoms(use_true_random=False), st.integers(0, 14))
def test_any_order_split_and_repetition_gives_the_same_book(
    history: list[dict[str, object]], chance: object, cut: int
) -> None:
    books = [_book(each) for each in history]
    whole = merge(books)
    again = [*books, *books[::2]]
    chance.shuffle(again)  # type: ignore[attr-defined]
    assert merge([merge(again[:cut]), merge(again[cut:])]) == whole
    assert merge([whole, whole]) == whole
    held = {name: json.loads(value) for name, value in values(whole).items()}
    assert held == {key: reference(history, key) for key in ("plan", "city") if reference(history, key) is not None}


@given(histories)
def test_a_book_is_stored_in_one_form_and_read_as_it_was(history: list[dict[str, object]]) -> None:
    books = [_book(each) for each in history]
    stored = pack(merge(books))
    assert unpack(stored) == merge(books)
    assert pack(merge(reversed(books))) == stored
    assert msgspec.json.decode(as_json(unpack(stored))) == msgspec.json.decode(as_json(merge(books)))


@given(st.lists(st.tuples(st.sampled_from("abcd"), sayings), max_size=12), st.data())
def test_an_undone_merge_gives_every_property_back(
    told: list[tuple[str, dict[str, object]]], data: st.DataObject
) -> None:
    edges = [
        Edge(EdgeKind.MERGE, *pair, at, 0, f"m{at}") for at, pair in enumerate((("a", "b"), ("c", "d"), ("b", "d")))
    ]
    of_id = {each: merge(_book(saying) for owner, saying in told if owner == each) for each in "abcd"}
    taken_back = data.draw(st.sampled_from(edges))
    undone = fold(edges, [taken_back.name]).people()
    never = fold([each for each in edges if each != taken_back]).people()
    properties = [
        {name: values(merge(of_id[each] for each in group)) for name, group in people.items()}
        for people in (undone, never)
    ]
    assert properties[0] == properties[1]
