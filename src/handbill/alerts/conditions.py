"""The one list of alert conditions. Prometheus' rules, our own messages and the runbook's entries all follow it."""

from __future__ import annotations

from handbill.alerts.condition import Condition
from handbill.alerts.core_conditions import COUNTING, EXPORT, PROCESSES, SERVING
from handbill.alerts.feature_conditions import ADSTATS, JOBS, MESSAGING, TOKENS
from handbill.alerts.grammar import metrics

CONDITIONS: tuple[Condition, ...] = (*PROCESSES, *SERVING, *COUNTING, *EXPORT, *JOBS, *TOKENS, *MESSAGING, *ADSTATS)

METRICS: frozenset[str] = frozenset(name for condition in CONDITIONS for name in metrics(condition.test))
"""The names of all series that the conditions read."""

NOT_OURS = frozenset(("up", "probe_ssl_earliest_cert_expiry"))
"""Series that no page of ours has: Prometheus, its blackbox exporter, and our own watcher make them."""

__all__ = ["CONDITIONS", "METRICS", "NOT_OURS", "Condition"]
