"""One alert condition, and how long it takes from the trouble to the alert."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from handbill.alerts.grammar import Test, metrics, window_s

Severity: TypeAlias = Literal["critical", "warning"]
INTERVAL_S = 10
"""How often pages are read and rules are evaluated, by Prometheus as shipped and by our own watcher."""
CRITICAL_WITHIN_S = 60


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """`critical` is what stops counting or serving, or loses something; everything else is a `warning`.

    In `summary` and `description`, `{value}` and the names of the test's labels in braces are filled in.
    """

    name: str
    area: str
    severity: Severity
    summary: str
    description: str
    test: Test
    for_s: int = 0
    onset_s: int = 0
    """How long the trouble lasts before the test can be true, where it compares an age."""
    unit: Literal["number", "seconds", "ratio"] = "number"
    prometheus_only: bool = False

    @property
    def runbook(self) -> str:
        """Where its entry is."""
        return f"docs/runbook.md#{self.name.lower()}"

    @property
    def detected_within_s(self) -> int:
        """From the beginning of the trouble to the alert: the page is read and the rule evaluated once in between."""
        return self.onset_s + self.for_s + 2 * INTERVAL_S

    @property
    def window_s(self) -> int:
        return window_s(self.test)

    @property
    def metrics(self) -> frozenset[str]:
        return metrics(self.test)
