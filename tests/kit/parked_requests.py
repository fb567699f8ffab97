"""Requests about parked events run to their end in the test's own process, as the worker would."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest

from handbill.events.model import Event, key
from handbill.events.parked_requests import ParkedRequests
from handbill.events.service import OnFailure, ParkedRequest, ReplayOptions
from handbill.infra.postgres import Database
from handbill.infra.sqlfiles import Sql
from tests.kit.parked_events import park

COUNTED = Sql(
    "insert into events.event_keys (tenant_id, key, stored_time) values ($1, $2, now()) on conflict do nothing",
    "test_counted",
)
SENT_ONCE = {"unreadable": 0, "too_old": 0, "failed": 0, "unshipped": 0, "shipped": 0, "stopped": False}
PARK = ReplayOptions()
STOP = ReplayOptions(OnFailure.STOP)


async def ended(requests: ParkedRequests, tenant: int, request_id: UUID) -> ParkedRequest:
    """Run it as the worker does, until it has ended."""
    for _ in range(100):
        if not (await requests.run(tenant, request_id)).again_ms:
            return await requests.get(tenant, request_id)
    raise AssertionError(f"the request does not end: {await requests.get(tenant, request_id)}")


class CountingEdge:
    """An edge behind which every event is counted at once, save for one that is parked again."""

    def __init__(self, database: Database, bad: str | None = None) -> None:
        self._database = database
        self._bad = bad
        self.accepted: list[str] = []

    async def accept(self, events: Sequence[Event]) -> None:
        self.accepted += [event.id for event in events]
        async with self._database.worker() as tx:
            for event in events:
                if event.id != self._bad:
                    await tx.execute(COUNTED, event.tenant, key(event.kind, event.id))
        await park(self._database, [event for event in events if event.id == self._bad])


def portions_of(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    for name in ("FULL_SPEED", "CAREFUL", "DROPPED_AT_ONCE"):
        monkeypatch.setattr(f"handbill.events.dead.{name}", size)
