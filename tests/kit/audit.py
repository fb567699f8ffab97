"""An audit log that only remembers."""

from __future__ import annotations

from typing import Any

from handbill.infra.postgres import Tx


class RecordedAudit:
    """`rows`: the tenant, who acted and what was done, in the order of the calls."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, str, str]] = []

    async def write(self, tx: Tx, tenant_id: int, *, actor: str, action: str, object: str, **_: Any) -> None:
        self.rows.append((tenant_id, actor, action))
