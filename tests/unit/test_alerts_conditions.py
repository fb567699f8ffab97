"""The shipped conditions: they read metrics that exist, are fast enough, and each has its entry in the runbook."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from handbill.alerts.condition import CRITICAL_WITHIN_S, Condition
from handbill.alerts.conditions import CONDITIONS, METRICS, NOT_OURS
from handbill.alerts.grammar import Both, Compare, Increase, Latest, Ratio, Unless, comparisons, values
from handbill.alerts.promql import duration, render, rules_page
from handbill.kit.task_health import LIMIT_S
from handbill.kit.telemetry import metrics
from handbill.settings.fields import all_fields

ROOT = Path(__file__).resolve().parents[2]
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text(encoding="utf-8")
DASHBOARD = ROOT / "deploy" / "grafana" / "handbill.json"
PARTS = ("What it means", "How to look", "How to repair", "What is lost")
_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}


def series_labels() -> dict[str, set[str]]:
    """Every series that our pages have, with its labels."""
    labels: dict[str, set[str]] = {}
    for collector in list(metrics.REGISTRY._collector_to_names):
        for family in collector.collect():
            for suffix in _SUFFIXES[family.type]:
                more = {"le"} if suffix == "_bucket" else set()
                labels[family.name + suffix] = {*getattr(collector, "_labelnames", ()), *more, "job", "instance"}
    return labels


def test_every_metric_exists() -> None:
    assert METRICS - set(series_labels()) == NOT_OURS


def test_every_label_exists() -> None:
    labels = series_labels()
    for condition in CONDITIONS:
        for value in values(condition.test):
            for part in (value.numerator, value.denominator) if isinstance(value, Ratio) else (value,):
                if not isinstance(part, Latest | Increase) or part.metric in NOT_OURS:
                    continue
                used = {*part.by, *(match.label for match in part.match)}
                assert used <= labels[part.metric], (condition.name, used - labels[part.metric])


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda one: one.name)
def test_a_condition_is_complete(condition: Condition) -> None:
    assert re.fullmatch(r"Handbill[A-Z][A-Za-z]+", condition.name)
    if condition.severity == "critical":
        assert condition.detected_within_s <= CRITICAL_WITHIN_S
    placeholders = set(re.findall(r"\{(\w+)\}", condition.summary + condition.description))
    assert placeholders <= {"value", *condition.test.by}
    if isinstance(condition.test, Both | Unless):  # PromQL's `and` and `unless` join groups with equal labels
        assert {one.left.by for one in comparisons(condition.test)} == {condition.test.by}


def least_onset(condition: Condition) -> float:
    """A threshold in seconds is not passed sooner, nor is "nothing for so long" true; tasks have their own limit."""
    if condition.name == "HandbillTaskStuck":
        return LIMIT_S
    test = condition.test
    if isinstance(test, Unless):
        lefts = [one.left for one in test.exceptions]
        return max([left.window_s for left in lefts if isinstance(left, Increase)], default=0)
    if isinstance(test, Compare) and isinstance(test.left, Latest) and test.left.metric.endswith("_seconds"):
        return test.right if isinstance(test.right, float | int) else 0.0
    return 0.0


def test_the_onset_of_what_is_critical_is_the_age_that_it_waits_for() -> None:
    """Else an alert that promises 60 seconds comes later; `test_a_condition_is_complete` holds the sum against them."""
    for condition in CONDITIONS:
        if condition.severity == "critical" or condition.onset_s:
            assert condition.onset_s == least_onset(condition), condition.name


def test_names_are_unique() -> None:
    assert len({one.name for one in CONDITIONS}) == len(CONDITIONS)


def entries() -> dict[str, str]:
    parts = re.split(r"^### (.+)$", RUNBOOK, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_the_runbook_has_an_entry_for_each_alert_and_no_other() -> None:
    assert sorted(entries()) == sorted(one.name for one in CONDITIONS)


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda one: one.name)
def test_an_entry_has_all_its_parts(condition: Condition) -> None:
    entry = entries()[condition.name]
    assert [part for part in PARTS if f"**{part}.**" not in entry] == []


def test_the_commands_of_the_runbook_exist() -> None:
    from typer.main import get_command

    from handbill.cli import app

    named = re.findall(r"`handbill ([a-z-]+)(?: ([a-z-]+))?", RUNBOOK + "".join(one.description for one in CONDITIONS))
    assert named
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for first, second in named:
        assert first in commands, first
        below = getattr(commands[first], "commands", None)
        assert not below or second in below, (first, second)


def test_the_settings_of_the_runbook_exist() -> None:
    named = set(re.findall(r"HANDBILL_\w+", RUNBOOK + "".join(one.description for one in CONDITIONS)))
    assert len(named) > 10
    assert named <= {field.variable for field in all_fields()}


def test_the_dashboard_reads_metrics_that_exist() -> None:
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    assert len(expressions) > 20
    named = {name for one in expressions for name in re.findall(r"\bhandbill_[a-z_]+", one)}
    assert named <= set(series_labels()), sorted(named - set(series_labels()))
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_rules_name_every_condition() -> None:
    page = rules_page()
    assert sorted(re.findall(r"alert: (\w+)", page)) == sorted(one.name for one in CONDITIONS)
    assert page == (ROOT / "deploy" / "alerts" / "handbill.yml").read_text(encoding="utf-8")


def test_promql() -> None:
    relay = next(one for one in CONDITIONS if one.name == "HandbillRelayStopped")
    assert render(relay.test) == (
        "(sum by (queue) (handbill_outbox_pending) > 0) unless (sum by (queue) (((handbill_outbox_relayed_total unless "
        "handbill_outbox_relayed_total offset 10m) and on (job, instance) (up offset 10m == 1)) or "
        "increase(handbill_outbox_relayed_total[10m])) > 0) unless "
        '(sum by (queue) (handbill_queue_depth{state="waiting"}) > 0)'
    )
    assert [duration(one) for one in (0, 45, 60, 90, 3_600, 86_400)] == ["0s", "45s", "1m", "90s", "1h", "1d"]
