"""A person's events in ClickHouse: told to them, or left standing without a name.

Rows stay, so that every count stays; what names somebody goes. Committed events that have not reached ClickHouse yet
would bring the name back, so an erasure waits for them, and asks to be repeated when that takes too long.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from handbill.events.store import EventStore
from handbill.infra import sqlfiles
from handbill.infra.clickhouse import ClickHouse, ClickHouseError, name_lists
from handbill.infra.postgres import Database
from handbill.kit.errors import Broken, Busy
from handbill.kit.ids import Ids

Q = sqlfiles.queries("handbill.events")
_COLUMNS = (
    "event", "event_id", "at", "received", "distinct_id", "session_id", "properties", "set", "set_once", "unset", "url",
    "referrer", "country", "browser", "os", "device_type", "language", "timezone", "ip", "user_agent", "lib",
)  # fmt: skip
_PATIENCE_S = 30.0
_LOOK_EVERY_S = 0.2
_NO_TABLE = frozenset({60, 81})

_WAIT = {"mutations_sync": 1}


def _about(statement: str, tenant_id: int, names: str, new: UUID) -> str:
    return statement.replace("<<tenant>>", str(tenant_id)).replace("<<names>>", names).replace("<<new>>", str(new))


class Forgetting:
    def __init__(
        self, database: Database, clickhouse: ClickHouse, ids: Ids | None = None, patience_s: float = _PATIENCE_S
    ) -> None:
        self._database = database
        self._clickhouse = clickhouse
        self._store = EventStore()
        self._ids = ids or Ids()
        self._patience_s = patience_s

    async def erase(self, tenant_id: int, subjects: list[str]) -> Mapping[str, int]:
        """For the erasure registry. Raises Busy while committed events of anybody still wait to be stored.

        Whose the ids were, among the overrides, is taken away by the people's own eraser: it knows when nobody ships.
        """
        await self._shipped()
        cleared, new = 0, self._ids.new()
        try:
            for names in name_lists(subjects):
                cleared += await self._forget(tenant_id, names, new)
        except ClickHouseError as error:
            if error.code not in _NO_TABLE:  # it was never given anything
                raise Broken(
                    f"ClickHouse refused to forget (code {error.code}); names may still stand there. Ask again.",
                    code="HISTORY_BROKEN",
                ) from error
        return {"clickhouse.events": cleared}

    async def _forget(self, tenant_id: int, names: str, new: UUID) -> int:
        mine, sessions = (await self._clickhouse.query(_about(Q.named, tenant_id, names, new)))[0]
        if mine:
            await self._clickhouse.command(_about(Q.forget, tenant_id, names, new), _WAIT)
        if sessions:
            await self._clickhouse.command(_about(Q.forget_sessions, tenant_id, names, new), _WAIT)
        return int(mine) + int(sessions)

    async def export(self, tenant_id: int, subject: str, most: int) -> Mapping[str, list[dict[str, Any]]]:
        told = {"tenant": tenant_id, "name": subject, "most": most}
        try:
            rows = await self._clickhouse.query(Q.told, told)
        except ClickHouseError as error:
            if error.code not in _NO_TABLE:
                raise Busy(f"ClickHouse cannot tell now (code {error.code}).", code="CLICKHOUSE_BUSY") from error
            rows = []
        return {"clickhouse.events": [dict(zip(_COLUMNS, row, strict=True)) for row in rows]}

    async def _shipped(self) -> None:
        async with self._database.worker() as tx:
            waiting = await self._store.unshipped_batches(tx)
        deadline = asyncio.get_running_loop().time() + self._patience_s
        while waiting:
            if asyncio.get_running_loop().time() > deadline:
                raise Busy(
                    "Events that are counted already have not reached the history yet; nothing was erased there. Ask "
                    "again when ClickHouse has caught up.",
                    code="HISTORY_BEHIND",
                )
            await asyncio.sleep(_LOOK_EVERY_S)
            async with self._database.worker() as tx:
                waiting &= await self._store.unshipped_batches(tx)
