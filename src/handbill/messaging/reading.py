"""What a person reads: the inbox, and what the provider says about accounts and templates."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec

from handbill.infra.postgres import Database
from handbill.kit import pages
from handbill.kit.clock import from_ms, to_ms
from handbill.kit.pages import Page
from handbill.messaging import checks
from handbill.messaging.store import S


class Inbound(msgspec.Struct, frozen=True):
    """What a person wrote to us. `wish`: whether it was one of the words that stop or start messages."""

    wamid: str
    connection_id: UUID
    number_id: str
    address: str
    name: str
    at: datetime
    kind: str
    text: str
    payload: str
    media_id: str | None
    reply_to: str | None
    wish: str | None


class Alert(msgspec.Struct, frozen=True):
    alert_key: str
    connection_id: UUID
    at: datetime
    field: str
    event: str
    body: str


class Reading:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def inbound(self, tenant_id: int, cursor: str | None, limit: int, address: str | None) -> Page[Inbound]:
        """Newest first."""
        before, last = _before(cursor)
        checks.refuse(checks.plain("address", address) + checks.plain("cursor", last))
        async with self._database.tenant(tenant_id) as tx:
            rows = await tx.fetch(S.list_inbound, tenant_id, address, before, last, limit + 1)
        found = [Inbound(**dict(row)) for row in rows]
        return pages.page(found, limit, lambda row: (to_ms(row.at), row.wamid))

    async def alerts(self, tenant_id: int, cursor: str | None, limit: int) -> Page[Alert]:
        before, last = _before(cursor)
        checks.refuse(checks.plain("cursor", last))
        async with self._database.tenant(tenant_id) as tx:
            rows = await tx.fetch(S.list_alerts, tenant_id, before, last, limit + 1)
        found = [Alert(**dict(row)) for row in rows]
        return pages.page(found, limit, lambda row: (to_ms(row.at), row.alert_key))


def _before(cursor: str | None) -> tuple[datetime | None, str]:
    if cursor is None:
        return None, ""
    at_ms, last = pages.decode(cursor, [int, str])
    bounded = min(max(int(at_ms), 0), 4_000_000_000_000)
    return from_ms(bounded), str(last)
