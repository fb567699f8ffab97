"""What became of single messages, for the tenant's webhooks: each change of state once, in its own transaction."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from handbill.infra.postgres import Tx
from handbill.messaging.hooks_out import Hooks
from handbill.messaging.store import S


class SingleOutcomes:
    """Publishes `message.accepted`, `.sent`, `.delivered`, `.read`, `.failed`, `.skipped` and `.unknown`."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    async def report(self, tx: Tx, messages: Iterable[tuple[int, UUID]]) -> None:
        """(tenant, message) of single messages whose row this transaction has changed."""
        wanted = sorted(messages)
        if not wanted:
            return
        rows = await tx.fetch(S.report_singles, [tenant for tenant, _ in wanted], [message for _, message in wanted])
        for row in sorted(rows, key=lambda row: (row["tenant_id"], row["message_id"])):
            if row["state"] in ("pending", "claimed", "sending"):
                continue  # tried again, after it had counted as unknown
            body = {name: row[name] for name in _BODY} | {"message_id": str(row["message_id"])}
            await self._hooks.announce(tx, row["tenant_id"], f"message.{row['state']}", body)


_BODY = ("idempotency_key", "address", "state", "reason", "wamid", "error_code", "error_details")
