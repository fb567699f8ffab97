"""What decisions know of a person: one small value in Redis for each distinct id, read beside the caps. Pure.

A value holds only what some banner asks for (the tenant's needs: `person.NAME`, `segment.ID`). The mark says for which
needs the values are whole: where it names a need, an absent value means "nothing", not "unknown".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any
from uuid import UUID

import msgspec

from handbill.active_hours.model import Profile
from handbill.infra.redis import Keys
from handbill.segments.values import flat

TEXT_CUT = 1_000
LIST_CUT = 50
PERSON = "person."
SEGMENT = "segment."
ACTIVE_HOURS = "active_hours"
"""The need for the person's hours, and the attribute under which a decision finds their profile."""
SEGMENTS = "segments"
"""The attribute under which a decision finds the segments of its user."""


class Value(msgspec.Struct, frozen=True, array_like=True):
    """Properties by name, each as a list of plain values, the segments the person is in, and the person's hours."""

    properties: dict[str, list[Any]] = {}
    segments: list[bytes] = []
    hours: Profile | None = None


_encoder = msgspec.msgpack.Encoder()
_value = msgspec.msgpack.Decoder(Value)
_names = msgspec.msgpack.Decoder(list[str])


def packed(properties: Mapping[str, Any], segments: Iterable[UUID], hours: Profile | None = None) -> bytes | None:
    """The value to keep; None where there is nothing to say."""
    told = {name: _cut(value) for name, value in properties.items() if value is not None}
    inside = [segment.bytes for segment in segments]
    return _encoder.encode(Value(told, inside, hours)) if told or inside or hours is not None else None


EMPTY = _encoder.encode(Value())
"""Said aloud where the mark cannot say it: nothing is known of this id."""


def opened(value: bytes | None, needs: Iterable[str]) -> dict[str, Any]:
    """What targeting reads, by attribute. A value that cannot be read says nothing."""
    if value is None:
        return {}
    try:
        found = _value.decode(value)
    except msgspec.DecodeError:
        return {}
    values: dict[str, Any] = {SEGMENTS: frozenset(found.segments)} if found.segments else {}
    for need in needs:
        if need.startswith(PERSON):
            said = found.properties.get(need[len(PERSON) :])
            if said is not None:
                values[need] = flat(said)
        elif need == ACTIVE_HOURS and found.hours is not None:
            values[need] = found.hours
    return values


def marked(needs: Iterable[str]) -> bytes:
    return _encoder.encode(sorted(needs))


def named(mark: bytes | None) -> frozenset[str]:
    """The needs a mark stands for."""
    if mark is None:
        return frozenset()
    try:
        return frozenset(_names.decode(mark))
    except msgspec.DecodeError:
        return frozenset()


def needs_of(properties: Iterable[str], segments: Iterable[UUID]) -> frozenset[str]:
    return frozenset((*(PERSON + name for name in properties), *(SEGMENT + str(each) for each in segments)))


def properties_in(needs: Iterable[str]) -> list[str]:
    return sorted(need[len(PERSON) :] for need in needs if need.startswith(PERSON))


def segments_in(needs: Iterable[str]) -> list[UUID]:
    return sorted(UUID(need[len(SEGMENT) :]) for need in needs if need.startswith(SEGMENT))


class ProjectionKeys:
    """Where values and marks lie. A key is short on purpose: there is one for each id of each person."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys
        self._prefix = keys.plain("p").encode() + b":"
        self._marks: dict[int, bytes] = {}

    def value(self, tenant_id: int, distinct_id: str) -> bytes:
        text = f"{tenant_id}\0{distinct_id}".encode("utf-8", "surrogatepass")
        return self._prefix + blake2b(text, digest_size=16).digest()

    def mark(self, tenant_id: int) -> bytes:
        found = self._marks.get(tenant_id)
        if found is None:
            found = self._marks[tenant_id] = self._keys.tagged("person", tenant_id, "mark").encode()
        return found

    def building(self, tenant_id: int) -> bytes:
        return self._keys.tagged("person", tenant_id, "building").encode()


def _cut(value: Any) -> list[Any]:
    """Plain values only, within bounds: longer texts are compared by their beginning."""
    parts = [each[0] if isinstance(each, tuple) else each for each in flat(value)[:LIST_CUT]]
    return [each[:TEXT_CUT] if isinstance(each, str) else each for each in parts]
