"""How fairly tenants share the sending: wait, rate, share, and Jain's index over the rates.

Jain's index of n rates is (sum)^2 / (n * sum of squares): 1 when all are equal, 1/n when one has everything. Rates are
compared as far as tenants wanted them, so a tenant that had little to send does not make the others look greedy only
by being done.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from handbill.infra.postgres import Database
from handbill.kit.clock import Clock
from handbill.kit.telemetry import metrics
from handbill.messaging.store import S

SHOWN = 20


class TenantShare(msgspec.Struct, frozen=True):
    tenant_id: int
    messages: int
    """Messages of this tenant that were attempted in the window."""
    rate: float
    """Messages a second, on average over the window."""
    share: float | None
    """The tenant's part of all messages of the window, from 0 to 1; null where only your own are shown."""
    wait_s: float
    """Seconds that messages waited on average from being due to the attempt."""
    wait_p95_s: float
    """Seconds within which 95 % of the messages were attempted."""


class FairShares(msgspec.Struct, frozen=True):
    """The last `window_s` seconds. Shares and the index tell of everybody, so only the operator is told."""

    window_s: int
    """How many seconds back the figures go."""
    messages: int
    """All messages that were attempted in the window."""
    jain: float | None
    """Jain's index of fairness from 0 to 1, where 1 is equal; null where only your own are shown."""
    tenants: list[TenantShare]
    """One row for each tenant that you may see."""


def jain(rates: Sequence[float]) -> float:
    squares = sum(rate * rate for rate in rates)
    return 1.0 if not rates or squares == 0 else sum(rates) ** 2 / (len(rates) * squares)


class Fairness:
    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def shares(self, window_s: int = 60) -> FairShares:
        """Over all tenants, by internal number: for the operator."""
        since = self._clock.now() - timedelta(seconds=window_s)
        async with self._database.worker() as tx:
            rows = await tx.fetch(S.fairness, since)
        total = sum(row["messages"] for row in rows)
        tenants = [
            TenantShare(
                row["tenant_id"], row["messages"], row["messages"] / window_s, row["messages"] / total,
                row["wait_s"], row["wait_p95_s"],
            )
            for row in rows
        ]  # fmt: skip
        return FairShares(window_s, total, jain([one.rate for one in tenants]), tenants)

    async def own(self, tenant_id: int, window_s: int = 60) -> FairShares:
        """A tenant's own wait and rate. With its share, or the index, it could work out what others send."""
        whole = await self.shares(window_s)
        mine = [msgspec.structs.replace(one, share=None) for one in whole.tenants if one.tenant_id == tenant_id]
        return FairShares(window_s, sum(one.messages for one in mine), None, mine)

    async def measure(self) -> None:
        """Into the gauges: the busiest tenants by number, for a while only."""
        found = await self.shares()
        metrics.MESSAGING_JAIN.set(found.jain or 0.0)
        metrics.MESSAGING_RATE.clear()
        metrics.MESSAGING_WAIT.clear()
        for one in found.tenants[:SHOWN]:
            metrics.MESSAGING_RATE.labels(str(one.tenant_id)).set(one.rate)
            metrics.MESSAGING_WAIT.labels(str(one.tenant_id)).set(one.wait_s)
