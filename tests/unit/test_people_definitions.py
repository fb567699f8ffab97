"""Value types in one table, and definitions as a fold."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from handbill.kit.bounds import CacheLimit
from handbill.people.definitions import HOUR_MS, Name, Observations, Of, Remembered, Seen, both
from handbill.people.types import HALF_YEAR_S, TEN_YEARS_S, ValueType, detect, join, join_all

RECEIVED = 1_790_000_000_000
NOW_S = RECEIVED // 1000
U, B, N, D, S = ValueType.UNKNOWN, ValueType.BOOLEAN, ValueType.NUMERIC, ValueType.DATETIME, ValueType.STRING

# name, value, kind: the rules in their order, one line a case.
TABLE: list[tuple[str, object, ValueType]] = [
    # 1. names that are always text
    ("utm_source", 7, S), ("$initial_utm_term", True, S), ("$feature/new-cart", False, S), ("utm_id", None, S),
    ("$feature_flag_response", True, S), ("$survey_response", 5, S), ("$survey_response_2", 5, S),
    ("my_utm_source", 7, N), ("$feature_flag_responses", True, B),
    # 2. names of moments: numbers near now are unix seconds
    ("created_at", NOW_S, D), ("updated-at", NOW_S, D), ("loginTime", NOW_S + 0.5, D), ("createdAt", NOW_S, D),
    ("birthdate", "1990-05-17", D), ("timestamp", NOW_S - HALF_YEAR_S, D), ("timestamp", NOW_S - HALF_YEAR_S - 1, N),
    ("expires_at", NOW_S + TEN_YEARS_S, D), ("expires_at", NOW_S + TEN_YEARS_S + 1, N), ("timestamp", RECEIVED, N),
    ("date", True, B), ("date", "soon", S), ("date", None, U), ("price", NOW_S, N), ("time", str(NOW_S), N),
    # 3. plain JSON
    ("ok", True, B), ("ok", False, B), ("n", 0, N), ("n", -1.5e3, N),
    # 4. text, trimmed
    ("x", "true", B), ("x", " FALSE ", B), ("x", "True", S), ("x", "yes", S), ("x", "", S), ("x", "  ", S),
    ("x", "2026-11-16", D), ("x", "2026/11/16", D), ("x", "11/16/2026", D), ("x", "11/16/2026 08:30", D),
    ("x", "2026-11-16T08:30:00Z", D), ("x", "2026-11-16 08:30:00.123456+02:00", D), ("x", "2026-11-16T08:30", D),
    ("x", "2026-13-16", S), ("x", "2026-11-16T25:00", S), ("x", "16/11/2026", S), ("x", "2026-11-16 or so", S),
    ("x", "42", N), ("x", " -4.2e-7 ", N), ("x", "+.5", N), ("x", "1.", N), ("x", "1,5", S), ("x", "0x10", S),
    ("x", "٤٢", S), ("x", "NaN", S), ("x", "1" * 200, S), ("x", "a\u0000", S),
    # 5. what says nothing
    ("x", None, U), ("x", {}, U), ("x", {"date": "2026-11-16"}, U), ("x", [], U), ("x", [1, 2], U),
]  # fmt: skip


def test_the_table_of_value_types() -> None:
    wrong = [
        (name, value, kind, found)
        for name, value, kind in TABLE
        if (found := detect(name, value, RECEIVED)) is not kind
    ]
    assert wrong == []


def test_kinds_are_a_lattice() -> None:
    assert join(U, N) is N
    assert join(B, N) is S
    assert join(S, D) is S
    for one, other, third in product(ValueType, repeat=3):
        assert join(one, other) is join(other, one)
        assert join(one, one) is one
        assert join(join(one, other), third) is join(one, join(other, third)) is join_all((one, other, third))


def observed(*events: tuple[str, int, dict[str, object]]) -> dict[Name, Seen]:
    seen = Observations()
    for name, at, properties in events:
        seen.event(1, name, at, RECEIVED, json.dumps(properties).encode())
    return seen.seen()


def test_an_event_defines_itself_its_properties_and_their_meeting() -> None:
    found = observed(
        ("buy", HOUR_MS + 5, {"price": 3}), ("buy", 2 * HOUR_MS + 7, {"price": "x"}), ("see", 9, {"price": 1})
    )
    assert found == {
        Name(1, Of.EVENT, "buy", ""): Seen(HOUR_MS + 5, 2 * HOUR_MS),
        Name(1, Of.EVENT, "see", ""): Seen(9, 0),
        Name(1, Of.EVENT_PROPERTY, "buy", "price"): Seen(HOUR_MS + 5, 2 * HOUR_MS, S),
        Name(1, Of.EVENT_PROPERTY, "see", "price"): Seen(9, 0, N),
        Name(1, Of.PROPERTY, "", "price"): Seen(9, 2 * HOUR_MS, S),
    }


def test_what_a_person_is_told_is_defined_apart() -> None:
    seen = Observations()
    seen.person(1, 5, RECEIVED, b'{"plan":"pro","$set":1}')
    assert seen.seen() == {Name(1, Of.PERSON_PROPERTY, "", "plan"): Seen(5, 0, S)}


def test_what_is_skipped() -> None:
    skipped = {"$set": {}, "$set_once": {}, "$unset": [], "$groups": {}, "$group_0": "a", "$group_4": "a", "x" * 201: 1}
    assert set(observed(("buy", 1, skipped | {"$group_5": "a"}))) == {
        Name(1, Of.EVENT, "buy", ""),
        Name(1, Of.EVENT_PROPERTY, "buy", "$group_5"),
        Name(1, Of.PROPERTY, "", "$group_5"),
    }
    assert observed(("y" * 201, 1, {"price": 1})) == {}
    assert set(observed(("big", 1, {f"p{n}": n for n in range(10_001)}))) == {Name(1, Of.EVENT, "big", "")}


def test_what_is_remembered_is_not_written_again_until_it_says_more_or_an_hour_has_passed() -> None:
    memory = Remembered(lambda: 1.0)
    first = observed(("buy", 5, {"price": 3}))
    assert memory.news(first, 0) == first
    assert memory.news(first, 0) == first, "nothing is known before it is committed"
    memory.learn(first.items(), 0)
    assert memory.news(first, HOUR_MS - 1) == {}
    assert memory.news(first, HOUR_MS) == first
    later = observed(("buy", HOUR_MS, {"price": 3}))
    assert set(memory.news(later, 1)) == set(first), "another hour is news"
    other = observed(("buy", 6, {"price": "dear"}))
    assert set(memory.news(other, 1)) == {name for name in first if name.property}


def test_what_is_remembered_is_bounded() -> None:
    memory = Remembered(lambda: 0.0, limit=CacheLimit(10, 1 << 20))
    many = observed(*((f"e{n}", 1, {}) for n in range(30)))
    memory.learn(many.items(), 0)
    assert 20 <= len(memory.news(many, 1)) < 30


# ------------------------------------------------------------------------------------------------- laws
property_values: st.SearchStrategy[Any] = st.sampled_from((None, True, 3, "3", "x", "2026-11-16", NOW_S, {}, []))
events = st.tuples(
    st.sampled_from(("buy", "see")),
    st.integers(0, 3 * HOUR_MS),
    st.dictionaries(st.sampled_from(("price", "sold_at", "$set")), property_values),
)


@given(st.lists(events, max_size=12), st.randoms(use_true_random=False), st.integers(0, 12))
def test_any_order_split_and_repetition_gives_the_same_definitions(
    history: list[tuple[str, int, dict[str, object]]], chance: object, cut: int
) -> None:
    whole = observed(*history)
    again = [*history, *history[::2]]
    chance.shuffle(again)  # type: ignore[attr-defined]
    one, other = observed(*again[:cut]), observed(*again[cut:])
    merged = dict(one)
    for name, seen in other.items():
        merged[name] = both(merged[name], seen) if name in merged else seen
    assert merged == whole
