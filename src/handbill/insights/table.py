"""Answers as CSV. Nothing in it is a formula: a spreadsheet shows such a text, and does not run it."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.insights.model import EXPORT_ROWS, EventRow, Funnel, Group, Retention, Trends, TrendsQuery
from handbill.kit.cells import harmless

EVENT_COLUMNS = tuple(field.name for field in msgspec.structs.fields(EventRow) if field.name != "key")
CUT = f"# Cut after {EXPORT_ROWS} rows; ask for a shorter range to have the rest."
BROKEN = "# The export broke off here; what stands above is right, the rest is missing. Ask again."


def cell(value: Any) -> str:
    """A number stays a number; a text that a spreadsheet would take for a formula gets an apostrophe in front."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    text = value if isinstance(value, str) else msgspec.json.encode(value, enc_hook=str).decode()
    return harmless(text.replace("\0", "\N{REPLACEMENT CHARACTER}"))


def rows(lines: Iterable[Sequence[Any]]) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerows([cell(value) for value in line] for line in lines)
    return out.getvalue().encode("utf-8", "replace")


def events(found: Iterable[EventRow]) -> bytes:
    return rows([getattr(row, name) for name in EVENT_COLUMNS] for row in found)


def trends(query: TrendsQuery, answer: Trends) -> bytes:
    head = ["at", "period", "series", "event", "measure", "of", "group", "value", "figure", "unidentified"]
    lines: list[list[Any]] = [head]
    for line in answer.lines:
        series = query.series[line.series]
        named = [line.series, series.event, series.measure, series.of, *_group(line.group)]
        unidentified: Sequence[int | None] = line.unidentified or [None] * len(answer.points)
        for at, figure, unknown in zip(answer.points, line.figures, unidentified, strict=True):
            lines.append([at, "current", *named, figure, unknown])
        for at, figure in zip(answer.previous_points or (), line.previous or (), strict=True):
            lines.append([at, "previous", *named, figure, None])
    return rows(lines)


def funnel(answer: Funnel) -> bytes:
    head = ["group", "value", "step", "people", "of_first", "of_previous", "median_s", "unidentified"]
    lines: list[list[Any]] = [head]
    for line in answer.lines:
        for number, step in enumerate(line.steps, 1):
            lines.append(
                [*_group(line.group), number, step.people, step.of_first, step.of_previous, step.median_s, None]
            )  # fmt: skip
    if any(answer.unidentified):  # of the whole question, not of a group
        lines += [[None, None, step, *[None] * 4, count] for step, count in enumerate(answer.unidentified, 1)]
    return rows(lines)


def retention(answer: Retention) -> bytes:
    head = ["at", "people", "periods_later", "returned", "unidentified_begins", "unidentified_returns"]
    lines: list[list[Any]] = [head]
    for cohort in answer.cohorts:
        for later, count in enumerate((cohort.people, *cohort.returned)):
            lines.append([cohort.at, cohort.people, later, count, None, None])
    nobodys = answer.unidentified
    if nobodys.begins or nobodys.returns:  # of the whole range, not of a cohort
        lines.append([*[None] * 4, nobodys.begins, nobodys.returns])
    return rows(lines)


def _group(group: Group) -> list[Any]:
    return [group.kind, group.value]
