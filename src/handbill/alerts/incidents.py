"""From groups in trouble to incidents: opened once, after the condition's own time, and recovered once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from handbill.alerts.condition import Condition
from handbill.alerts.grammar import Labels

RECOVERY_S = 20.0
"""A condition must be false for so long before its incident is over: a value near its limit is one incident."""
MAX_OPEN = 500
IncidentKey: TypeAlias = tuple[str, Labels]


class Incident(msgspec.Struct, frozen=True):
    """One condition in trouble for one group of labels. Times are milliseconds since 1970."""

    condition: str
    labels: Labels
    value: float
    opened_ms: int
    recovered_ms: int | None = None

    @property
    def key(self) -> IncidentKey:
        return (self.condition, self.labels)


class IncidentTracker:
    """Open incidents. `restored` are those that were open when the program ended last."""

    def __init__(self, conditions: Sequence[Condition], restored: Iterable[Incident] = ()) -> None:
        self._conditions = {one.name: one for one in conditions}
        self.open: dict[IncidentKey, Incident] = {one.key: one for one in restored}
        self._true_since: dict[IncidentKey, float] = {}
        self._false_since: dict[IncidentKey, float] = {}
        self._started: float | None = None

    def update(
        self, now: float, now_ms: int, troubles: Mapping[str, Mapping[Labels, float]], *, can_recover: bool
    ) -> list[Incident]:
        """The incidents that have just recovered. `can_recover` is false while a process does not answer."""
        self._started = now if self._started is None else self._started
        current = {(name, labels): value for name, groups in troubles.items() for labels, value in groups.items()}
        self._true_since = {key: self._true_since.get(key, now) for key in current}
        for key, value in current.items():
            self._open(key, value, now, now_ms)
        return self._recover(current, now, now_ms, can_recover=can_recover)

    def _open(self, key: IncidentKey, value: float, now: float, now_ms: int) -> None:
        self._false_since.pop(key, None)
        if key in self.open or len(self.open) >= MAX_OPEN:
            return
        if now - self._true_since[key] >= self._conditions[key[0]].for_s:
            self.open[key] = Incident(key[0], key[1], value if math.isfinite(value) else 0.0, now_ms)

    def _recover(
        self, current: Mapping[IncidentKey, float], now: float, now_ms: int, *, can_recover: bool
    ) -> list[Incident]:
        recovered: list[Incident] = []
        for key, incident in list(self.open.items()):
            if key in current:
                continue
            if not self._is_decided(key, now, can_recover=can_recover):
                self._false_since.pop(key, None)
            elif now - self._false_since.setdefault(key, now) >= RECOVERY_S:
                del self.open[key], self._false_since[key]
                recovered.append(msgspec.structs.replace(incident, recovered_ms=now_ms))
        return recovered

    def _is_decided(self, key: IncidentKey, now: float, *, can_recover: bool) -> bool:
        """Whether "not in trouble" can be believed: every process answers, and the window was seen whole."""
        condition = self._conditions.get(key[0])
        if condition is None:
            return True  # a version that no longer has it
        assert self._started is not None
        reads_up = "up" in condition.metrics
        return (can_recover or reads_up) and now - self._started >= condition.window_s
