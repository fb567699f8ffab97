"""The conditions as Prometheus rules: deploy/alerts/handbill.yml is made here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from handbill.alerts.conditions import CONDITIONS, Condition
from handbill.alerts.grammar import (
    Absent,
    Both,
    Compare,
    Increase,
    Latest,
    Match,
    Quantile,
    Ratio,
    SecondsSince,
    Test,
    Unless,
    Value,
)

HEAD = """\
# Generated from src/handbill/alerts/ by `make docs`; do not edit by hand.
# Load it with `rule_files` in prometheus.yml; ../prometheus/prometheus.yml shows how. Scrape every 10 s: what stops
# counting or serving is then reported within 60 s. Each alert has an entry in docs/runbook.md.
"""
HUMAN = {"number": "humanize", "seconds": "humanizeDuration", "ratio": "humanizePercentage"}


def rules_page() -> str:
    """deploy/alerts/handbill.yml."""
    lines = [HEAD.rstrip("\n"), "groups:"]
    for area in sorted({condition.area for condition in CONDITIONS}):
        lines += [f"  - name: handbill-{area}", "    interval: 10s", "    rules:"]
        for condition in CONDITIONS:
            if condition.area == area:
                lines += _rule(condition)
    return "\n".join(lines) + "\n"


def _rule(condition: Condition) -> Iterable[str]:
    yield f"      - alert: {condition.name}"
    yield f"        expr: {json.dumps(render(condition.test))}"
    if condition.for_s:
        yield f"        for: {duration(condition.for_s)}"
    yield "        labels:"
    yield f"          severity: {condition.severity}"
    yield "        annotations:"
    yield f"          summary: {json.dumps(template(condition.summary, condition))}"
    yield f"          description: {json.dumps(template(condition.description, condition))}"
    yield f"          runbook: {condition.runbook}"


def template(text: str, condition: Condition) -> str:
    """A text of ours with Prometheus' placeholders."""
    text = text.replace("{value}", f"{{{{ $value | {HUMAN[condition.unit]} }}}}")
    for label in condition.test.by:
        text = text.replace(f"{{{label}}}", f"{{{{ $labels.{label} }}}}")
    return text


def render(test: Test) -> str:
    """A test in PromQL."""
    match test:
        case Compare():
            right = render_value(test.right) if isinstance(test.right, Increase) else number(test.right)
            return f"{render_value(test.left)} {test.operator} {right}"
        case Both():
            return f"{render(test.first)} and {render(test.second)}"
        case Unless():
            return " unless ".join(f"({render(part)})" for part in (test.first, *test.exceptions))
        case Absent():
            return f"absent({selector(test.metric, test.match)})"


def render_value(value: Value) -> str:
    """A value in PromQL."""
    match value:
        case Latest():
            return _or_default(
                f"{value.aggregation}{_by(value.by)} ({selector(value.metric, value.match)})", value.absent
            )
        case Increase():
            return _or_default(
                f"sum{_by(value.by)} ({_grown(value.metric, value.match, value.window_s)})", None if value.by else 0.0
            )
        case Ratio():
            return f"{render_value(value.numerator)} / {render_value(value.denominator)}"
        case Quantile():
            grown = _grown(f"{value.metric}_bucket", value.match, value.window_s)
            return f"histogram_quantile({number(value.quantile)}, sum by (le) ({grown}))"
        case SecondsSince():
            return f"time() - {render_value(value.timestamp)}"


def _grown(metric: str, match: Sequence[Match], window_s: int) -> str:
    """`increase` alone does not see the first value of a new series; a process that was up before began it at 0."""
    series, window = selector(metric, match), duration(window_s)
    return (
        f"(({series} unless {series} offset {window}) and on (job, instance) (up offset {window} == 1)) "
        f"or increase({series}[{window}])"
    )


def _or_default(text: str, default: float | None) -> str:
    return text if default is None else f"({text} or vector({number(default)}))"


def _by(labels: Sequence[str]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def selector(metric: str, match: Sequence[Match]) -> str:
    inside = ", ".join(f"{one.label}{one.operator}{json.dumps(one.value)}" for one in match)
    return f"{metric}{{{inside}}}" if inside else metric


def duration(seconds: int) -> str:
    """The shortest way to write a whole number of seconds: 90s, 5m, 1h, 14d."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds and seconds % size == 0:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
