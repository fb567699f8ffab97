"""What a message says: short text for a person, fields for a program; no tenant's data beyond its internal number."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from handbill.alerts.conditions import CONDITIONS, Condition
from handbill.alerts.incidents import Incident
from handbill.kit.clock import from_ms

_BY_NAME: Mapping[str, Condition] = {one.name: one for one in CONDITIONS}
MAX_DETAILED = 20
"""Changes that the text of one message describes; further ones are counted."""
MAX_CHANGES = 200
"""Changes of one message; further ones are in the next."""
_MAX_LABEL = 100
ChangeKind: TypeAlias = Literal["opened", "recovered", "missed"]
"""`missed` is an incident that was over before its sender could report it."""
_MARKS = {"opened": "OPEN", "recovered": "RECOVERED", "missed": "OPENED AND RECOVERED"}


class Change(msgspec.Struct, frozen=True):
    kind: ChangeKind
    incident: Incident


class Message(msgspec.Struct, frozen=True):
    """One message about one or several changes; `note` is a line about messages as such."""

    installation: str
    changes: tuple[Change, ...] = ()
    dropped: int = 0
    """How many earlier incidents there are no details of any more."""
    note: str = ""
    is_limit_notice: bool = False

    @property
    def subject(self) -> str:
        """One line."""
        if not self.changes:
            return f"[{self.installation}] {self.note or f'{self.dropped} earlier incidents'}"
        count = f"{len(self.changes)} alerts: " if len(self.changes) > 1 else ""
        return f"[{self.installation}] {count}{headline(self.changes[0])}"

    @property
    def text(self) -> str:
        """The whole message as plain text."""
        parts = [self.note] if self.note else []
        parts += [_paragraph(change) for change in self.changes[:MAX_DETAILED]]
        if len(self.changes) > MAX_DETAILED:
            parts.append(f"And {len(self.changes) - MAX_DETAILED} more.")
        if self.dropped:
            parts.append(f"{self.dropped} incidents began and ended before this message could be sent.")
        return "\n\n".join(parts)

    def fields(self) -> list[dict[str, Any]]:
        """The same for a program."""
        return [_fields(change) for change in self.changes]


def headline(change: Change) -> str:
    """Which alert, for what, in one line."""
    severity = one.severity if (one := _BY_NAME.get(change.incident.condition)) else "warning"
    mark = severity.upper() if change.kind == "opened" else _MARKS[change.kind]
    return f"{mark} {change.incident.condition}: {summary(change.incident)}"


def summary(incident: Incident) -> str:
    condition = _BY_NAME.get(incident.condition)
    return _fill(condition.summary, condition, incident) if condition else "this version has no such alert"


def _paragraph(change: Change) -> str:
    incident = change.incident
    lines = [headline(change)]
    condition = _BY_NAME.get(incident.condition)
    if change.kind == "opened" and condition is not None:
        lines.append(_fill(condition.description, condition, incident))
        lines.append(f"Since {_time(incident.opened_ms)}. Runbook: {condition.runbook}")
    elif incident.recovered_ms is not None:
        lines.append(f"From {_time(incident.opened_ms)} to {_time(incident.recovered_ms)}.")
    return "\n".join(lines)


def _fields(change: Change) -> dict[str, Any]:
    incident = change.incident
    condition = _BY_NAME.get(incident.condition)
    return {
        "status": change.kind,
        "alert": incident.condition,
        "severity": condition.severity if condition else "warning",
        "labels": {name: clean(value) for name, value in incident.labels},
        "value": incident.value,
        "summary": summary(incident),
        "opened_at": from_ms(incident.opened_ms).isoformat(),
        "recovered_at": from_ms(incident.recovered_ms).isoformat() if incident.recovered_ms is not None else None,
        "runbook": condition.runbook if condition else None,
    }


def _fill(text: str, condition: Condition, incident: Incident) -> str:
    for name, value in incident.labels:
        text = text.replace(f"{{{name}}}", clean(value))
    return text.replace("{value}", human(incident.value, condition.unit))


def human(value: float, unit: Literal["number", "seconds", "ratio"]) -> str:
    """A value as a person reads it: 1,234 or 3 min 20 s or 12.5 %."""
    if unit == "ratio":
        return f"{value * 100:.3g} %"
    if unit == "number":
        return f"{value:,.0f}" if value == int(value) else f"{value:.3g}"
    for size, name, part, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if abs(value) >= size:
            return f"{int(value // size)} {name} {int(value % size // part)} {small}"
    return f"{value:.3g} s"


def clean(text: str) -> str:
    """A label without control characters, cut to a bearable length."""
    return "".join(letter if letter.isprintable() else " " for letter in text[:_MAX_LABEL])


def _time(ms: int) -> str:
    when: datetime = from_ms(ms)
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"
