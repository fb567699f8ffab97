"""The shipped alert rules speak of metrics that exist, with labels that they have."""

from __future__ import annotations

import re
from pathlib import Path

from handbill.kit.telemetry import metrics

ALERTS = Path(__file__).resolve().parents[2] / "deploy" / "alerts"


def test_every_rule_names_a_metric_of_ours() -> None:
    known = {
        family.name + suffix for family in metrics.REGISTRY.collect() for suffix in ("", "_total", "_bucket", "_count")
    }
    used: set[str] = set()
    for file in ALERTS.glob("*.yml"):
        text = file.read_text()
        rules = re.findall(r"^\s+expr: (.+)$", text, re.MULTILINE)
        assert len(rules) == text.count("- alert:")
        assert text.count("description:") == len(rules)
        used |= {name for rule in rules for name in re.findall(r"\bhandbill_[a-z_]+", rule)}
    assert used
    assert used <= known, sorted(used - known)
