"""What a tenant sends: events, properties and which property came with which event, with kinds and first and last seen.

A definition is a minimum, a maximum and a join, so that batches fold in any order. `last_seen` is the event's hour:
a busy event writes its definition once an hour instead of once a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from sys import getsizeof
from typing import NamedTuple

import msgspec

from handbill.events.model import EVENT_PROPERTIES, PROPERTY_NAME_CHARACTERS
from handbill.kit.bounds import STORED_DEFINITIONS, CacheLimit
from handbill.kit.caches import GenerationCache
from handbill.people.raw import values
from handbill.people.types import ValueType, detect, join

HOUR_MS = 3_600_000
MAX_NAME = PROPERTY_NAME_CHARACTERS
MAX_PROPERTIES = EVENT_PROPERTIES
SKIPPED = frozenset(("$set", "$set_once", "$unset", "$groups", *(f"$group_{number}" for number in range(5))))


class Of(StrEnum):
    """What a definition is about."""

    EVENT = "event"
    PROPERTY = "property"
    PERSON_PROPERTY = "person_property"
    EVENT_PROPERTY = "event_property"


class Name(NamedTuple):
    """A definition's key. `event` is empty for properties as such, `property` for events as such."""

    tenant_id: int
    of: Of
    event: str
    property: str


class Seen(msgspec.Struct, frozen=True):
    """What is known under a name. `last` is a whole hour."""

    first: int
    last: int
    type: ValueType = ValueType.UNKNOWN


def floor_to_hour(ms: int) -> int:
    return ms - ms % HOUR_MS


def both(one: Seen, other: Seen) -> Seen:
    return Seen(min(one.first, other.first), max(one.last, other.last), join(one.type, other.type))


class _Tally:
    """What one batch saw under one name so far: a Seen that may still change."""

    __slots__ = ("first", "last", "type")

    def __init__(self, at: int) -> None:
        self.first = self.last = at
        self.type = ValueType.UNKNOWN

    def note(self, at: int) -> None:
        if at < self.first:
            self.first = at
        elif at > self.last:
            self.last = at

    def value(self, name: str, value: object, received: int) -> None:
        """At the top of the lattice nothing needs to be looked at any more: most properties are there at once."""
        if self.type is not ValueType.STRING:
            self.type = join(self.type, detect(name, value, received))

    def seen(self) -> Seen:
        return Seen(self.first, floor_to_hour(self.last), self.type)


class Observations:
    """The definitions of one batch, folded as its events go by. Properties as such are summed up at the end."""

    def __init__(self) -> None:
        self._events: dict[tuple[int, str], tuple[_Tally, dict[str, _Tally]]] = {}
        self._people: dict[int, dict[str, _Tally]] = {}

    def event(self, tenant_id: int, name: str, at: int, received: int, properties: bytes | None) -> None:
        """One event with its properties as sent. Names that are too long are skipped, the rest is taken."""
        if not _fits(name):
            return
        known = self._events.get((tenant_id, name))
        if known is None:
            known = self._events[tenant_id, name] = (_Tally(at), {})
        known[0].note(at)
        _take(known[1], at, received, properties)

    def person(self, tenant_id: int, at: int, received: int, properties: bytes | None) -> None:
        """What one event set on its person."""
        _take(self._people.setdefault(tenant_id, {}), at, received, properties)

    def seen(self) -> dict[Name, Seen]:
        found: dict[Name, Seen] = {}
        for (tenant_id, event), (tally, properties) in self._events.items():
            found[Name(tenant_id, Of.EVENT, event, "")] = tally.seen()
            for name, each in properties.items():
                seen = found[Name(tenant_id, Of.EVENT_PROPERTY, event, name)] = each.seen()
                whole = Name(tenant_id, Of.PROPERTY, "", name)
                found[whole] = both(found[whole], seen) if whole in found else seen
        for tenant_id, properties in self._people.items():
            for name, each in properties.items():
                found[Name(tenant_id, Of.PERSON_PROPERTY, "", name)] = each.seen()
        return found


def _take(tallies: dict[str, _Tally], at: int, received: int, properties: bytes | None) -> None:
    found = values(properties)
    if len(found) > MAX_PROPERTIES:  # an event with far too many of them defines none
        return
    for name, value in found.items():
        tally = tallies.get(name)
        if tally is None:
            if name in SKIPPED or not _fits(name):
                continue
            tally = tallies[name] = _Tally(at)
        tally.note(at)
        tally.value(name, value, received)


class Remembered:
    """Definitions this process knows to be stored, so that what says nothing new is not written.

    A definition is left out only if it adds nothing to what was committed, so forgetting costs a write and never a
    fact. Entries end after about an hour, each at its own time, so that one deleted by hand comes back.
    """

    def __init__(
        self, jitter: Callable[[], float], *, limit: CacheLimit = STORED_DEFINITIONS, keep_ms: int = HOUR_MS
    ) -> None:
        self._jitter = jitter
        self._keep_ms = keep_ms
        self._stored: GenerationCache[Name, tuple[Seen, float]] = GenerationCache(limit, _entry_bytes)

    def news(self, seen: Mapping[Name, Seen], now_ms: int) -> dict[Name, Seen]:
        """What must be written, in the order of names, so that two batches never wait for each other in a circle."""
        return {name: seen[name] for name in sorted(seen) if not self._covers(name, seen[name], now_ms)}

    def learn(self, stored: Iterable[tuple[Name, Seen]], now_ms: int) -> None:
        """After the commit, never before it."""
        for name, seen in stored:
            before = self._stored.get(name)
            whole = seen if before is None else both(before[0], seen)
            self._stored[name] = (whole, now_ms + self._keep_ms * (0.5 + 0.5 * self._jitter()))

    def _covers(self, name: Name, seen: Seen, now_ms: int) -> bool:
        stored = self._stored.get(name)
        return stored is not None and now_ms < stored[1] and both(stored[0], seen) == stored[0]


def _entry_bytes(name: Name, _: tuple[Seen, float]) -> int:
    return getsizeof(name.event) + getsizeof(name.property) + 300


def _fits(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME and "\0" not in name
