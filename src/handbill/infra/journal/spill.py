"""Whether a tenant is so noisy that its events take an overflow lane: policy and state as values, time as an argument.

Each process measures for itself. A tenant spills when it sends both more than a floor (nobody is sent away on a quiet
day) and more than its share of everything; it comes back when it has been quiet for a while, not at the first pause.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

import msgspec


class SpillPolicy(msgspec.Struct, frozen=True):
    """`floor` events per second in this process, `share` of all its events, `tau_s` the memory, `hold_s` the return."""

    floor: float = 2_000.0
    share: float = 0.5
    tau_s: float = 2.0
    hold_s: float = 10.0
    tenants: int = 10_000


@dataclass
class _Level:
    """Events with a fading memory: after `tau` seconds about a third of them still counts."""

    amount: float = 0.0
    at: float = 0.0
    spilled_until: float = 0.0

    def faded(self, now: float, tau: float) -> float:
        return self.amount * math.exp(-max(0.0, now - self.at) / tau)

    def add(self, count: int, now: float, tau: float) -> float:
        self.amount = self.faded(now, tau) + count
        self.at = max(self.at, now)
        return self.amount / tau  # events per second, once the memory is warm


@dataclass
class SpillState:
    everything: _Level = field(default_factory=_Level)
    tenants: OrderedDict[int, _Level] = field(default_factory=OrderedDict)


def spills(state: SpillState, policy: SpillPolicy, tenant_id: int, count: int, now: float) -> bool:
    """Count these events and say where they go. `now` is any clock in seconds that does not run backwards."""
    level = state.tenants.get(tenant_id)
    if level is None:
        level = state.tenants[tenant_id] = _Level(at=now)
        if len(state.tenants) > policy.tenants:
            state.tenants.popitem(last=False)  # the one silent for longest
    state.tenants.move_to_end(tenant_id)
    rate = level.add(count, now, policy.tau_s)
    total = state.everything.add(count, now, policy.tau_s)
    if rate > policy.floor and rate > policy.share * total:
        level.spilled_until = now + policy.hold_s
    return now < level.spilled_until
