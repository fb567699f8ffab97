"""How long each layer of the tests takes: the sum of its tests' times, divided by the processes that ran them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

LIMITS_MIN: Mapping[str, float] = {"architecture": 0.5, "unit": 1.5, "store": 4.0, "e2e": 4.0, "browser": 2.0}
"""Minutes of a run with nothing else on two cores."""


class LayerTimes:
    """Seconds by layer, from the reports of single tests."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def add(self, node_id: str, seconds: float) -> None:
        """The time of one phase of a test. `node_id` begins with the path of its file."""
        parts = node_id.split("/")
        if len(parts) > 2 and parts[0] == "tests":
            self.seconds[parts[1]] += seconds

    def lines(self, processes: int) -> list[str]:
        """One line for each layer: its minutes and its limit."""
        return [
            f"{layer}: {self._minutes(layer, processes):.1f} min (limit {LIMITS_MIN.get(layer, 0.0):g})"
            for layer in sorted(self.seconds)
        ]

    def _minutes(self, layer: str, processes: int) -> float:
        return self.seconds[layer] / processes / 60
