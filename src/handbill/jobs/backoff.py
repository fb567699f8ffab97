"""The wait before the next attempt, as a function of the policy, the attempt and a draw."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

from handbill.jobs.model import Backoff, whole

CEILING_MS = 30 * 24 * 3600 * 1000
"""No delay is longer than this, so that doubling for ever cannot overflow a score in Redis."""


def delay_ms(policy: Backoff | None, attempt: int, draw: Callable[[], float] = random.random) -> int:
    """Milliseconds to wait after the given attempt (counted from 1) has failed."""
    if policy is None:
        return 0
    if policy.kind == "list":
        if not policy.delays_ms:
            return 0
        full: float = policy.delays_ms[min(attempt, len(policy.delays_ms)) - 1]
    elif policy.kind == "fixed":
        full = policy.delay_ms
    else:
        full = policy.delay_ms * 2.0 ** min(attempt - 1, 60)
    full = min(max(full, 0), CEILING_MS)
    chance = 1.0 if policy.kind == "jitter" else min(max(policy.jitter, 0.0), 1.0)
    return math.floor(full * (1 - chance) + full * chance * draw()) if chance else round(full)


def to_wire(policy: Backoff) -> dict[str, Any]:
    """BullMQ's form; the kinds it does not know carry their own name and reach only our workers."""
    found: dict[str, Any] = {"type": policy.kind}
    if policy.kind == "list":
        found["delays"] = list(policy.delays_ms)
    else:
        found["delay"] = policy.delay_ms
    if policy.jitter:
        found["jitter"] = policy.jitter
    return found


def from_wire(value: Any) -> Backoff | None:
    """A job's `backoff` as any program wrote it: a number, BullMQ's object or ours. An unknown type counts as fixed."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Backoff("fixed", delay_ms=max(whole(value, 0), 0))
    if not isinstance(value, dict):
        return None
    delay = max(whole(value.get("delay"), 0), 0)
    jitter = value.get("jitter")
    part = float(jitter) if isinstance(jitter, int | float) else 0.0
    kind = value.get("type")
    if kind == "list":
        delays = value.get("delays")
        steps = tuple(max(whole(step, 0), 0) for step in delays) if isinstance(delays, list) else ()
        return Backoff("list", delays_ms=steps, jitter=part)
    if kind == "exponential":
        return Backoff("exponential", delay_ms=delay, jitter=part)
    if kind == "jitter":
        return Backoff("jitter", delay_ms=delay)
    return Backoff("fixed", delay_ms=delay, jitter=part)
