"""The audit log: one row beside every change, in the transaction of that change: neither is ever there alone."""

from __future__ import annotations

from typing import Any

import msgspec

from handbill.infra.postgres import Tx
from handbill.kit.clock import Clock
from handbill.kit.ids import Ids
from handbill.tenants import store
from handbill.tenants.model import REQUEST_ID, AuditEntry

HIDDEN = frozenset({"password", "password_hash", "jwt_secret", "secret", "key", "clear_key", "token", "jwks"})
"""Fields that never enter the log, whatever object they are part of."""


class Audit:
    def __init__(self, clock: Clock, ids: Ids) -> None:
        self._clock = clock
        self._ids = ids

    async def write(
        self,
        tx: Tx,
        tenant_id: int,
        *,
        actor: str,
        action: str,
        object: str,
        before: msgspec.Struct | dict[str, Any] | None = None,
        after: msgspec.Struct | dict[str, Any] | None = None,
    ) -> None:
        """Adds the row to the caller's transaction."""
        entry = AuditEntry(
            audit_id=self._ids.new(),
            at=self._clock.now(),
            actor=actor[:300],
            action=action,
            object=object[:300],
            before=shown(before),
            after=shown(after),
            request_id=REQUEST_ID.get(),
        )
        await store.write_audit(tx, tenant_id, entry)


def shown(value: msgspec.Struct | dict[str, Any] | None) -> dict[str, Any] | None:
    """The value without its secrets, at any depth."""
    if value is None:
        return None
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return {name: _hidden(inner) for name, inner in plain.items() if name not in HIDDEN}


def _hidden(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _hidden(inner) for name, inner in value.items() if name not in HIDDEN}
    if isinstance(value, list):
        return [_hidden(inner) for inner in value]
    return value
