"""What became of an event that was committed: counted, counted apart, or kept without counting, and why.

PostgreSQL has no index by which one event's row could be found. The event store has one, and what decided the matter:
its marks, and of a view how long it was visible and how long it should have been.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from handbill.events.model import key
from handbill.infra import sqlfiles
from handbill.infra.clickhouse import ClickHouse, ClickHouseError
from handbill.kit.errors import Busy
from handbill.kit.untrusted_json import UNREADABLE

Q = sqlfiles.queries("handbill.events")
_LIMITS = {"max_execution_time": 5, "max_memory_usage": 1 << 30}
_CAPTURE = "capture"
ACCIDENTAL = "accidental"
_AWAY = "The event store, which knows whether it counted, does not answer: ask again."
_LATER = "Whether it counted is known once the event store has it: ask again shortly."
COUNTED, APART, NOT_COUNTED, STORED = "counted", "counted_apart", "not_counted", "stored"


class Outcome(msgspec.Struct, frozen=True):
    """`outcome` is counted, counted_apart, not_counted, or stored: whether it counted is not known yet."""

    outcome: str
    said: str


def outcome_of(kind: str, marks: Collection[str], properties: dict[str, Any], apart: Collection[str]) -> Outcome:
    """From what the event store has of it. `apart`: marks of events that are counted apart."""
    if kind == _CAPTURE:
        return Outcome(COUNTED, f"Counted as {kind}.")
    if kind == "view" and properties.get("counted") is False:
        return Outcome(NOT_COUNTED, f"Stored as view and not counted: {_why_not(marks, properties)}.")
    marked = sorted(set(marks) & set(apart))
    if marked:
        return Outcome(APART, f"Stored as {kind} and counted apart, in marked_{kind}s: marked {', '.join(marked)}.")
    return Outcome(COUNTED, f"Counted as {kind}.")


def _why_not(marks: Collection[str], properties: dict[str, Any]) -> str:
    seen, needed = properties.get("duration_ms", 0), properties.get("required_ms")
    lasted = f"visible for {seen:,} of {needed:,} ms" if needed is not None else f"visible for {seen:,} ms, too short"
    if ACCIDENTAL in marks:
        return f"closed by accident ({lasted})"
    return f"{lasted} and not dismissed"


class StoredEvents:
    """`apart`: marks of events that are counted apart."""

    def __init__(self, clickhouse: ClickHouse, apart: Collection[str]) -> None:
        self._clickhouse = clickhouse
        self._apart = frozenset(apart)

    def judge(self, kind: str, marks: Collection[str], properties: dict[str, Any]) -> Outcome:
        return outcome_of(kind, marks, properties, self._apart)

    async def outcome(self, tenant_id: int, kind: str, event_id: str) -> Outcome:
        """Of an event whose key is known. Nothing is said to have counted that may not have."""
        if kind == _CAPTURE:
            return self.judge(kind, (), {})
        asked = {"tenant": tenant_id, "key": key(kind, event_id).hex()}
        try:
            rows = await self._clickhouse.query(Q.stored_event.text, asked, _LIMITS, again=False)
        except (Busy, ClickHouseError):
            return Outcome(STORED, f"Stored as {kind}. {_AWAY}")
        if not rows:
            return Outcome(STORED, f"Stored as {kind}. {_LATER}")
        marks, properties = rows[0]
        return self.judge(kind, [str(mark) for mark in marks], _object(properties))


def _object(properties: Any) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(properties)
    except UNREADABLE:
        return {}
    return found if isinstance(found, dict) else {}
