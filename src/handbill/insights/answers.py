"""From the event store's rows to answers: every interval filled, groups in order, ratios from the counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

import msgspec

from handbill.insights.compile import ALL, NONE, OTHER, VALUE, Place
from handbill.insights.model import (
    Cohort,
    EventRow,
    FunnelLine,
    Group,
    Line,
    Step,
    TrendsQuery,
)
from handbill.insights.periods import milliseconds
from handbill.kit.clock import from_ms, from_us
from handbill.kit.untrusted_json import UNREADABLE, is_deep

_NAMES: dict[int, Literal["all", "value", "none", "other"]] = {
    ALL: "all", VALUE: "value", NONE: "none", OTHER: "other",
}  # fmt: skip
_PROPERTIES = 7
"""The place of an event's properties in a row of the statement `events`."""
Key = tuple[int, str]


def groups(found: Iterable[Key], top: Sequence[str], broken_down: bool) -> list[Key]:
    """The groups of an answer: the listed values, commonest first, then those who said nothing, then all others."""
    if not broken_down:
        return [(ALL, "")]
    there = set(found)
    last = [key for key in ((NONE, ""), (OTHER, "")) if key in there]
    return [(VALUE, value) for value in top] + last


def group(key: Key) -> Group:
    return Group(_NAMES[key[0]], key[1] if key[0] == VALUE else None)


def trend_lines(
    query: TrendsQuery, rows: Sequence[tuple[Any, ...]], cuts: Sequence[datetime], before: Sequence[datetime],
    top: Sequence[str],
) -> list[Line]:  # fmt: skip
    """Rows are (in the range proper?, beginning of the interval or 0 for the whole, kind, value, figure, ...), with the
    unidentified events of each series after the figures."""
    found = {(bool(row[0]), int(row[1]), (int(row[2]), str(row[3]))): row[4:] for row in rows}
    keys = groups({key for _, _, key in found}, top, query.breakdown is not None)
    lines: list[Line] = []
    for number, series in enumerate(query.series):
        read: type[int] | type[float] = int if series.measure in ("count", "people") else float  # as JSON writes them
        nothing = read(0) if series.measure in ("count", "people", "sum") else None

        def figure(
            current: bool, cut: int, key: Key, number: int = number, nothing: float | None = nothing,
            read: type[int] | type[float] = read,
        ) -> float | None:  # fmt: skip
            row = found.get((current, cut, key))
            return nothing if row is None or row[number] is None else read(row[number])

        def unidentified(cut: int, key: Key, place: int = len(query.series) + number) -> int:
            row = found.get((True, cut, key))
            return 0 if row is None else int(row[place])

        of_people = series.measure == "people"
        for key in keys:
            lines.append(
                Line(
                    number,
                    group(key),
                    [figure(True, milliseconds(cut), key) for cut in cuts],
                    figure(True, 0, key),
                    [figure(False, milliseconds(cut), key) for cut in before] if query.compare else None,
                    figure(False, 0, key) if query.compare else None,
                    [unidentified(milliseconds(cut), key) for cut in cuts] if of_people else None,
                    unidentified(0, key) if of_people else None,
                )
            )
    return lines


def funnel_lines(
    rows: Sequence[tuple[Any, ...]], steps: int, top: Sequence[str], broken_down: bool
) -> list[FunnelLine]:
    """Rows are (kind, value, people at step 1..n, median microseconds of step 2..n)."""
    found = {(int(row[0]), str(row[1])): row[2:] for row in rows}
    nobody: tuple[Any, ...] = (0,) * steps + (None,) * (steps - 1)
    lines = []
    for key in groups(found, top, broken_down):
        row = found.get(key, nobody)
        people = [int(count) for count in row[:steps]]
        took = [None, *row[steps:]]
        lines.append(FunnelLine(group(key), [_step(people, number, took[number]) for number in range(steps)]))
    return lines


def _step(people: Sequence[int], number: int, took: float | None) -> Step:
    before = people[max(number - 1, 0)]
    return Step(
        people[number],
        _share(people[number], people[0]),
        _share(people[number], before),
        None if took is None else round(took / 1_000_000, 6),
    )


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None


def cohorts(rows: Sequence[tuple[Any, ...]], cuts: Sequence[datetime]) -> list[Cohort]:
    """Rows are (cohort from 1, periods later, people)."""
    found = {(int(row[0]), int(row[1])): int(row[2]) for row in rows}
    last = len(cuts)
    return [
        Cohort(cut, found.get((place, 0), 0), [found.get((place, k), 0) for k in range(1, last - place + 1)])
        for place, cut in enumerate(cuts, 1)
    ]


def in_portions(rows: Sequence[tuple[Any, ...]], max_bytes: int) -> Iterator[Sequence[tuple[Any, ...]]]:
    """Rows of the statement `events` in order, cut so that the properties of each portion have about so many bytes."""
    start = size = 0
    for number, row in enumerate(rows):
        size += len(row[_PROPERTIES])
        if size > max_bytes:
            yield rows[start : number + 1]
            start, size = number + 1, 0
    if start < len(rows):
        yield rows[start:]


def place(row: tuple[Any, ...]) -> Place:
    """Where the event of this row of the statement `events` stands in the order of events."""
    at, _, _, event_id, *_, key, sequence = row
    return at, sequence, event_id, key


def event_row(row: tuple[Any, ...]) -> EventRow:
    """In the order of the statement `events`; an empty text is one that was not said."""
    at, received, event, event_id, distinct_id, person, session, properties, *rest, marks, key, _ = row
    url, referrer, country, browser, os, device_type, lib, source = (text or None for text in rest)
    is_unidentified = source == "banners" and distinct_id == f"event:{event_id}"
    person_id = None if is_unidentified else UUID(str(person))
    return EventRow(
        from_us(at), from_ms(received), event, event_id, distinct_id, person_id, session or None,
        _object(properties), url, referrer, country, browser, os, device_type, lib, source, list(marks), key,
    )  # fmt: skip


def _object(text: str) -> dict[str, Any]:
    """The properties as an object. Bytes that are none are shown, not hidden."""
    try:
        if not is_deep(text.encode()):
            return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except UNREADABLE:
        pass
    return {"$unreadable": text[:1000]}
