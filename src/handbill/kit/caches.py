"""Bounded caches: the one way to remember what comes from outside, with a limit in entries and a limit in bytes.

Every cache counts the bytes of its keys and values and drops the least recently used entries at either limit. An entry
larger than a sixteenth of the cache is not stored: it would push out many others. No cache here is safe for use by
several threads, except `Memo`, which has a lock.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable
from enum import Enum
from threading import Lock
from typing import Any, Generic, TypeVar, TypeVarTuple

import cachetools
import msgspec

from handbill.kit.bounds import CacheLimit

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
Ts = TypeVarTuple("Ts")
SizeOf = Callable[[Any, Any], int]
"""The bytes of a key and its value."""

ENTRY_SHARE = 16
ENTRY_BYTES = 300
"""What an entry costs beside its key and its value: places in three hash tables. tracemalloc measured 200 to 290."""
_PLAIN = frozenset({str, bytes, int, float, bool, type(None)})
_MISSING: Any = object()


def size_of(value: Any) -> int:
    """About how many bytes a value holds: texts, numbers, containers, msgspec structs and classes with slots."""
    if type(value) in _PLAIN:
        return sys.getsizeof(value)
    if isinstance(value, Enum):
        return 0  # one object for all who use it
    size = sys.getsizeof(value)
    if isinstance(value, tuple | list | frozenset | set):
        return size + sum(map(size_of, value))
    if isinstance(value, dict):
        return size + sum(size_of(key) + size_of(each) for key, each in value.items())
    if isinstance(value, msgspec.Struct):
        return size + sum(size_of(getattr(value, name)) for name in value.__struct_fields__)
    return size + sum(size_of(getattr(value, name, None)) for name in getattr(value, "__slots__", ()))


def entry_size(key: Any, value: Any) -> int:
    return size_of(key) + size_of(value)


class _Bounded(cachetools.Cache[K, V]):
    """Adds to a cache of cachetools the limit in entries, the size of the key, and the limit for one entry."""

    _limit: CacheLimit
    _entry_size: SizeOf
    _next_size = 0

    def getsizeof(self, _value: V) -> int:  # type: ignore[override]  # cachetools declares a static method
        """cachetools asks for the size of a value alone; `__setitem__` has worked out that of the entry."""
        return self._next_size

    def __setitem__(self, key: K, value: V) -> None:
        size = ENTRY_BYTES + self._entry_size(key, value)
        if size > self._limit.bytes // ENTRY_SHARE:
            self.pop(key, None)
            return
        if key not in self:
            while len(self) >= self._limit.entries:
                self.popitem()
        self._next_size = size
        super().__setitem__(key, value)


class LruCache(_Bounded[K, V], cachetools.LRUCache[K, V]):
    """The least recently used entry goes first."""

    def __init__(self, limit: CacheLimit, size: SizeOf = entry_size) -> None:
        self._limit, self._entry_size = limit, size
        super().__init__(limit.bytes)

    def get(self, key: K, default: Any = None) -> Any:
        """As cachetools has it, in a third of the time where the key is there."""
        try:
            return self[key]
        except KeyError:
            return default

    def discard(self, unwanted: Callable[[V], bool]) -> None:
        """Drop every entry whose value is unwanted; the order of use of the others stays."""
        for key in [key for key in self if unwanted(cachetools.Cache.__getitem__(self, key))]:
            del self[key]


class TtlCache(_Bounded[K, V], cachetools.TTLCache[K, V]):
    """An entry lives for `ttl_s` from when it was stored; before that the least recently used goes first."""

    def __init__(
        self,
        limit: CacheLimit,
        ttl_s: float,
        timer: Callable[[], float] = time.monotonic,
        size: SizeOf = entry_size,
    ) -> None:
        self._limit, self._entry_size = limit, size
        super().__init__(limit.bytes, ttl_s, timer)


class GenerationCache(Generic[K, V]):
    """For hot paths: to find an entry takes a third of the time of `LruCache`, to store one about as much.

    There are two dicts. When the newer one holds half of either limit, the older one is dropped and the newer one takes
    its place; what is found in the older one moves to the newer. So an entry goes that was not used for a whole
    generation. None cannot be stored.
    """

    def __init__(self, limit: CacheLimit, size: SizeOf = entry_size) -> None:
        self._limit = limit
        self._entry_size = size
        self._newer: dict[K, V] = {}
        self._older: dict[K, V] = {}
        self._newer_bytes = self._older_bytes = 0

    def get(self, key: K) -> V | None:
        value = self._newer.get(key)
        if value is None and (value := self._older.get(key)) is not None:
            self[key] = value
        return value

    def __setitem__(self, key: K, value: V) -> None:
        size = ENTRY_BYTES + self._entry_size(key, value)
        if size > self._limit.bytes // ENTRY_SHARE:
            self.pop(key)
            return
        self._newer_bytes += size
        if (before := self._newer.get(key)) is not None:
            self._newer_bytes -= ENTRY_BYTES + self._entry_size(key, before)
        self._newer[key] = value
        if self._newer_bytes * 2 >= self._limit.bytes or len(self._newer) * 2 >= self._limit.entries:
            self._older, self._older_bytes = self._newer, self._newer_bytes
            self._newer, self._newer_bytes = {}, 0

    def pop(self, key: K) -> None:
        value = self._newer.pop(key, None)
        if value is not None:
            self._newer_bytes -= ENTRY_BYTES + self._entry_size(key, value)
        value = self._older.pop(key, None)
        if value is not None:
            self._older_bytes -= ENTRY_BYTES + self._entry_size(key, value)

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    @property
    def currsize(self) -> int:
        return self._newer_bytes + self._older_bytes


class Memo(Generic[*Ts, V]):
    """The results of a function by its positional arguments, safe for use by several threads.

    The function may run twice for the same arguments when two threads ask at once. What it raises is not stored.
    """

    def __init__(self, function: Callable[[*Ts], V], limit: CacheLimit) -> None:
        self._function = function
        self._lock = Lock()
        self.cache: LruCache[tuple[*Ts], V] = LruCache(limit)

    def __call__(self, *arguments: *Ts) -> V:
        with self._lock:
            result = self.cache.get(arguments, _MISSING)
        if result is _MISSING:
            result = self._function(*arguments)
            with self._lock:
                self.cache[arguments] = result
        return result  # type: ignore[no-any-return]  # the cache holds what the function returned

    def clear(self) -> None:
        with self._lock:
            self.cache.clear()
