"""What the provider says of a connection's token: whether it still takes it, and when the token ends."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from handbill.infra.postgres import Database, Tx
from handbill.kit.clock import Clock
from handbill.kit.errors import Conflict
from handbill.kit.telemetry import logs, metrics
from handbill.kit.token_ends import LISTED, SOON, EndingToken, TokenSummary
from handbill.messaging.links import TokenState
from handbill.messaging.model import Account, TokenInfo
from handbill.messaging.providers.port import Provider
from handbill.messaging.store import S
from handbill.tenants.service import Audit

_log = logs.get("messaging")
REFUSED = 190
"""The provider's code for a token that it does not take, in an answer to any request."""
NOTE = "The provider refuses the token. Give the connection a new one."
FRESH = timedelta(minutes=1)
"""Longer than any process remembers a token that was replaced (Vault.fresh_s)."""


class TokenStates:
    """Keeps `token_state` and `token_ends_at` of connections."""

    def __init__(self, database: Database, audit: Audit, clock: Clock) -> None:
        self._database = database
        self._audit = audit
        self._clock = clock

    async def check(self, provider: Provider, account: Account, connection_id: UUID) -> None:
        """Ask the provider about the kept token. Raises Conflict PROVIDER_TOKEN, when that is recorded, if it is dead.

        A provider that does not tell about tokens has said nothing against this one.
        """
        try:
            info = await provider.token(account)
        except Conflict as error:
            if error.code != "PROVIDER_TOKEN":
                return
            info = TokenInfo(valid=False)
        async with self._database.tenant(account.tenant_id) as tx:
            await self.record(tx, account.tenant_id, connection_id, info)
        if not info.valid:
            raise Conflict(NOTE, code="PROVIDER_TOKEN")

    async def record(self, tx: Tx, tenant_id: int, connection_id: UUID, info: TokenInfo) -> None:
        """What was said of the token, unless it was changed a moment ago: then it was said of the one before."""
        now = self._clock.now()
        state: TokenState = "valid" if info.valid else "dead"
        note = None if info.valid else NOTE
        before = await tx.fetchval(
            S.set_token_state, tenant_id, connection_id, state, note, info.ends_at, now - FRESH, now
        )
        if before is None or before == state:
            return
        await self._audit.write(
            tx, tenant_id, actor="system", action=f"connection.token_{state}", object=f"connection {connection_id}"
        )
        _log.warning(f"messaging.token_{state}", tenant_id=tenant_id, connection_id=str(connection_id))
        if state == "dead":
            metrics.MESSAGING_TOKENS_DEAD.inc()

    async def refuse(self, tx: Tx, tenant_id: int, number_id: str) -> None:
        """A message from this number was refused because of the token."""
        connection_id = await tx.fetchval(S.connection_of_number, tenant_id, number_id)
        if connection_id is not None:
            await self.record(tx, tenant_id, connection_id, TokenInfo(valid=False))

    async def summarise(self, now: datetime) -> TokenSummary:
        """All connections of all tenants."""
        async with self._database.worker() as tx:
            row = await tx.fetchrow(S.summarise_tokens, now, now + SOON)
            rows = await tx.fetch(S.first_token_ends, now + SOON, LISTED)
        return TokenSummary(**dict(row or {}), first=[EndingToken(**dict(each)) for each in rows])
