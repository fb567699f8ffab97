"""The public part of this package: profiles for decisions, and what is kept about a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from handbill.active_hours import store
from handbill.active_hours.model import WEEKS, week_of
from handbill.active_hours.store import drop, profiles, take_changed, tenants_with_activity
from handbill.infra.postgres import Database
from handbill.infra.state import StateTable

__all__ = [
    "SETTLE_AFTER", "STATE", "ActiveHoursService", "drop", "first_week_kept", "profiles", "take_changed",
    "tenants_with_activity",
]  # fmt: skip

SETTLE_AFTER = timedelta(minutes=5)
"""A person's profile is written anew at most this often, however many events there are."""
STATE = (StateTable("active_hours.activity", ("tenant_id", "distinct_id", "week"), frozenset({"changed_at"})),)


def first_week_kept(now_ms: int) -> int:
    return week_of(now_ms) - WEEKS


class ActiveHoursService:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def erase(self, tenant_id: int, subjects: list[str]) -> Mapping[str, int]:
        """Safe to repeat. The profile in Redis goes with the person."""
        async with self._database.worker() as tx:
            return {"active_hours.activity": await store.erase(tx, tenant_id, subjects)}

    async def export(self, tenant_id: int, subject: str, limit: int) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        async with self._database.tenant(tenant_id) as tx:
            return {"active_hours.activity": await store.export(tx, tenant_id, subject, limit)}
