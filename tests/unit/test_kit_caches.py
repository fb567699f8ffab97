"""The bounded caches: what goes first, what is not stored, and that their count of bytes is right."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from handbill.kit.bounds import CacheLimit
from handbill.kit.caches import ENTRY_BYTES, ENTRY_SHARE, GenerationCache, LruCache, Memo, TtlCache, entry_size, size_of
from handbill.kit.zones import find_zone
from tests.kit.clocks import FakeClock

WIDE = CacheLimit(3, 1 << 20)


class Colour(StrEnum):
    RED = "red"


class Point(msgspec.Struct):
    x: int
    name: str


def test_the_size_of_a_value_counts_what_is_inside_it() -> None:
    text = "x" * 10_000
    for value in (
        text,
        text.encode(),
        (text,),
        [text],
        {text},
        frozenset({text}),
        {"a": text},
        {text: 1},
        Point(1, text),
    ):
        assert 10_000 < size_of(value) < 10_600
    assert size_of(UUID(int=1)) > 40
    assert size_of(Colour.RED) == 0
    assert size_of(None) < 50


def test_the_least_recently_used_entry_goes_first() -> None:
    cache: LruCache[str, int] = LruCache(WIDE)
    for number, name in enumerate("abc"):
        cache[name] = number
    assert cache.get("a") == 0
    cache["d"] = 3
    assert (cache.get("a"), cache.get("b"), len(cache)) == (0, None, 3)
    cache.discard(lambda value: value == 0)
    assert set(cache) == {"c", "d"}


def test_what_is_dropped_by_its_value_leaves_the_order_of_use() -> None:
    cache: LruCache[str, int] = LruCache(WIDE)
    for number, name in enumerate("abc"):
        cache[name] = number
    cache.get("a")
    cache.discard(lambda value: value == 2)
    cache["d"] = cache["e"] = 5
    assert set(cache) == {"a", "d", "e"}, "b was used least recently"


@pytest.mark.parametrize("kind", ["lru", "ttl", "generation"])
def test_an_entry_that_is_too_large_is_not_stored_and_takes_the_older_one_along(kind: str) -> None:
    limit = CacheLimit(100, 64_000)
    makers: dict[str, Callable[[CacheLimit], Any]] = {
        "lru": LruCache,
        "ttl": lambda limit: TtlCache(limit, 60.0),
        "generation": GenerationCache,
    }
    cache = makers[kind](limit)
    cache["a"] = "small"
    assert cache.get("a") == "small"
    cache["a"] = "x" * (64_000 // ENTRY_SHARE)
    assert cache.get("a") is None, "neither the large value nor the one that it was to replace"
    assert (len(cache), cache.currsize) == (0, 0)


def test_an_entry_lives_for_its_time_by_the_given_timer() -> None:
    clock = FakeClock()
    cache: TtlCache[str, int] = TtlCache(WIDE, 5.0, clock.monotonic)
    cache["a"] = 1
    clock.advance(ms=4_999)
    assert cache.get("a") == 1
    clock.advance(ms=1)
    assert cache.get("a") is None
    assert "a" not in cache


def test_an_entry_that_is_used_outlives_its_generation() -> None:
    cache: GenerationCache[int, int] = GenerationCache(CacheLimit(10, 1 << 20))
    cache[0] = 100
    for number in range(1, 40):
        cache[number] = number
        assert cache.get(0) == 100
    assert cache.get(1) is None
    assert len(cache) <= 10


operations = st.lists(st.tuples(st.sampled_from(("set", "get", "pop")), st.integers(0, 9), st.integers(0, 900)))


@given(operations)
def test_the_bytes_that_are_counted_are_those_of_the_entries(steps: list[tuple[str, int, int]]) -> None:
    limit = CacheLimit(6, 16_000)
    lru: LruCache[int, str] = LruCache(limit)
    generations: GenerationCache[int, str] = GenerationCache(limit)
    for verb, key, length in steps:
        for cache in (lru, generations):
            if verb == "set":
                cache[key] = "x" * length
            elif verb == "get":
                assert cache.get(key) is None or isinstance(cache.get(key), str)
        if verb == "pop":
            lru.pop(key, None)
            generations.pop(key)
        assert lru.currsize == sum(ENTRY_BYTES + entry_size(*entry) for entry in list(lru.items()))
        held = [*generations._newer.items(), *generations._older.items()]
        assert generations.currsize == sum(ENTRY_BYTES + entry_size(*entry) for entry in held)
        assert lru.currsize <= limit.bytes
        assert generations.currsize <= limit.bytes
        assert len(lru) <= limit.entries
        assert len(generations) <= limit.entries


def test_a_function_is_asked_once_for_the_same_arguments() -> None:
    asked: list[tuple[int, str]] = []

    def work(number: int, text: str) -> str | None:
        asked.append((number, text))
        return text * number or None

    memo = Memo(work, WIDE)
    assert [memo(2, "a"), memo(2, "a"), memo(0, "a"), memo(0, "a")] == ["aa", "aa", None, None]
    assert asked == [(2, "a"), (0, "a")]
    memo.clear()
    memo(2, "a")
    assert len(asked) == 3


@given(st.text())
def test_any_name_of_a_zone_is_safe_to_ask_for(name: str) -> None:
    zone = find_zone(name)
    assert zone is None or zone.key == name
