"""Prometheus itself reads our rules, and they fire when they should."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from handbill.alerts.conditions import CONDITIONS
from tests.kit import optional

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
RULES = DEPLOY / "alerts" / "handbill.yml"

UP = """\
      - {series: 'up{job="handbill-api", instance="a"}', values: '1x400'}
      - {series: 'up{job="handbill-worker", instance="w"}', values: '%s'}
"""
API = 'job="handbill-api", instance="a"'
WORKER = 'job="handbill-worker", instance="w"'


class Case(msgspec.Struct, frozen=True):
    """A series beside `up`, and whether the alert fires at a time."""

    alert: str
    when: str
    labels: str | None
    """The labels with which it fires; None if it must not."""
    series: str = ""
    values: str = ""
    worker: str = "1x400"


CASES = {
    "a stopped worker": Case("HandbillDown", "85s", "job: handbill-worker, instance: w", worker="1x5 0x100"),
    "a short pause": Case("HandbillDown", "75s", None, worker="1x5 0 1x100"),
    "lag": Case("HandbillJournalLag", "80s", "", 'journal_lag_seconds{lane="1"}', "0x5 25 35 45 55x50"),
    "a full disk": Case("HandbillDiskAlmostFull", "60s", "", f"disk_free_ratio{{{API}}}", "0.5 0x50"),
    "a disk that was not measured": Case(
        "HandbillDiskAlmostFull", "60s", None, f"disk_free_ratio{{{API}}}", "NaN " * 7
    ),
    "the first dead letter": Case(
        "HandbillDeadLetters", "2020s", "queue: q", f'dead_letters_total{{{WORKER}, queue="q"}}', "_x200 1x200"
    ),
    "an old dead letter": Case(
        "HandbillDeadLetters", "2020s", None, f'dead_letters_total{{{WORKER}, queue="q"}}', "7x400"
    ),
    "all requests fail": Case(
        "HandbillServerErrors", "150s", "", f'api_replies_total{{{API}, route="/x", status="500"}}', "0x10 3+3x100"
    ),
    "a failing readiness check": Case(
        "HandbillServerErrors", "150s", None, f'api_replies_total{{{API}, route="/ready", status="503"}}', "0x10 3+3x99"
    ),
    "a relay that never relayed": Case(
        "HandbillRelayStopped", "650s", "queue: q", 'outbox_pending{queue="q", tenant="1"}', "5x400"
    ),
    "no sync succeeded": Case(
        "HandbillAdStatsFailing", "1900s", "", f'adstats_syncs_total{{{WORKER}, outcome="failed"}}', "0+1x400"
    ),
}
SEVERITIES = {one.name: one.severity for one in CONDITIONS}


def promtool(*words: str, cwd: Path | None = None) -> None:
    done = subprocess.run([optional.need("promtool"), *words], capture_output=True, text=True, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_and_the_sample_are_valid() -> None:
    promtool("check", "rules", str(RULES))
    promtool("check", "config", str(DEPLOY / "prometheus" / "prometheus.yml"))


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_in_time(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    line = f"      - {{series: 'handbill_{case.series}', values: '{case.values}'}}\n" if case.series else ""
    fixed = f'alertname="{case.alert}", alertstate="firing", severity="{SEVERITIES[case.alert]}"'
    pairs = "".join(f', {label}="{value}"' for label, value in re.findall(r"(\w+): ([\w-]+)", case.labels or ""))
    expected = "[]" if case.labels is None else f"[{{labels: 'ALERTS{{{fixed}{pairs}}}', value: 1}}]"
    (tmp_path / "case.yml").write_text(
        f"rule_files: [{RULES}]\nevaluation_interval: 10s\ntests:\n  - interval: 10s\n"
        f"    input_series:\n{UP % case.worker}{line}    promql_expr_test:\n"
        f'      - expr: \'ALERTS{{alertname="{case.alert}", alertstate="firing"}}\'\n'
        f"        eval_time: {case.when}\n        exp_samples: {expected}\n"
    )
    promtool("test", "rules", "case.yml", cwd=tmp_path)
