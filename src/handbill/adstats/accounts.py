"""Ad accounts as their platforms know them: tokens at rest, reading an account's currency and zone, correcting them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from msgspec import structs

from handbill.adstats import cadence, store
from handbill.adstats.model import Connection, ProviderName
from handbill.adstats.providers.port import (
    Account,
    AccountFacts,
    ProviderError,
    RequestRefused,
    StatProvider,
    TokenDead,
)
from handbill.adstats.store import Kept
from handbill.infra.postgres import Database, Tx
from handbill.kit.clock import Clock
from handbill.kit.errors import Broken, Conflict
from handbill.tenants.service import Audit

CHECK_INTERVAL = timedelta(days=1)
READ_TIMEOUT_S = 15.0
"""A person waits for the answer; after it the account is connected unverified."""


class Seals(Protocol):
    """What keeps tokens at rest, bound to their place."""

    def seal(self, clear: bytes, place: str) -> bytes: ...

    def open(self, sealed: bytes, place: str) -> bytes: ...


def _place(tenant_id: int, connection_id: UUID) -> str:
    return f"adstats:{tenant_id}:{connection_id}"


class Accounts:
    def __init__(
        self,
        database: Database,
        providers: Mapping[ProviderName, StatProvider],
        seals: Seals,
        audit: Audit,
        clock: Clock,
    ) -> None:
        self._database = database
        self._providers = providers
        self._seals = seals
        self._audit = audit
        self._clock = clock
        self.ad_sources = {name: provider.ad_source for name, provider in providers.items()}

    def provider(self, name: ProviderName) -> StatProvider:
        return self._providers[name]

    def seal(self, tenant_id: int, connection_id: UUID, token: str | None) -> bytes | None:
        return None if token is None else self._seals.seal(token.encode(), _place(tenant_id, connection_id))

    def open(self, tenant_id: int, row: Kept) -> Account:
        """The account with its token in clear. Raises ProviderError when the seal key is another one."""
        shown = row.shown
        place = _place(tenant_id, shown.connection_id)
        try:
            token = self._seals.open(row.sealed, place).decode() if row.sealed else ""
        except Broken:  # this account's trouble alone; a new token, or the old seal key, mends it
            raise ProviderError("the token does not open with this installation's seal key") from None
        return Account(shown.connection_id, shown.external_id, shown.currency, shown.time_zone, token)

    async def read(self, name: ProviderName, account: Account) -> AccountFacts | None:
        """What the platform says of an account; None when it cannot be asked now.

        Raises Conflict when the platform accepts the token no more, or does not let it read this account.
        """
        if not account.token and self._providers[name].needs_token:
            return None
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                return await self._providers[name].read_account(account)
        except TokenDead as error:
            raise Conflict(
                f"The platform refuses the token: {error}. Nothing was changed.", code="AD_TOKEN_DEAD"
            ) from None
        except RequestRefused as error:
            raise Conflict(
                f"The account {account.external_id} cannot be read with this token: {error}. Nothing was changed. "
                "Check the account's number, and that the token's user may read it.",
                code="AD_ACCOUNT_UNREADABLE",
            ) from None
        except (ProviderError, TimeoutError):
            return None

    async def write(self, tx: Tx, tenant_id: int, before: Connection, wanted: Connection, sealed: bytes | None) -> Kept:
        """Write a connection whose currency or zone may differ, and bring its days in line.

        The caller has the seller's lock and then the row's. All days get the corrected currency, days that have not
        begun in the corrected zone are deleted, and the next syncs read the whole look-back again.
        """
        now = self._clock.now()
        row = await store.update_connection(tx, tenant_id, wanted, sealed, now)
        connection_id = wanted.connection_id
        days = set()
        if wanted.time_zone != before.time_zone:
            today = cadence.today(now, wanted.time_zone)
            days |= set(await store.delete_days_after(tx, tenant_id, connection_id, today))
        if wanted.currency != before.currency:
            await store.relabel_days(tx, tenant_id, connection_id, wanted.currency)
            days |= set(await store.connection_days(tx, tenant_id, connection_id))
        if days:
            await store.roll_sellpages(tx, tenant_id, sorted(days), self.ad_sources)
        if (wanted.currency, wanted.time_zone) != (before.currency, before.time_zone):
            await store.restart_look_back(tx, tenant_id, connection_id)
        return row

    async def verify(self, tenant_id: int, row: Kept) -> Kept:
        """The connection as its platform knows it, asked once a day, and at every sync until it has answered once.

        Raises ProviderError when it was never verified and cannot be, or when the platform refuses.
        """
        shown, now = row.shown, self._clock.now()
        if shown.verified_at is not None and now - shown.verified_at < CHECK_INTERVAL:
            return row
        try:
            facts = await self._providers[shown.provider].read_account(self.open(tenant_id, row))
        except (TokenDead, RequestRefused):
            raise
        except ProviderError:
            if shown.verified_at is None:
                raise
            return row
        wanted = facts.applied_to(shown)
        if wanted != shown:
            return await self._correct(tenant_id, row, facts, now)
        async with self._database.worker() as tx:
            await store.note_verified(tx, tenant_id, shown.connection_id, row.sealed, now)
        return Kept(structs.replace(shown, verified_at=now), row.sealed, row.waiting, row.tree)

    async def _correct(self, tenant_id: int, row: Kept, facts: AccountFacts, now: datetime) -> Kept:
        """Take what the platform says in place of what was given."""
        connection_id = row.shown.connection_id
        async with self._database.worker() as tx:
            await store.lock_seller(tx, tenant_id)
            before = await store.find_connection(tx, tenant_id, connection_id, lock=True)
            if before is None or before.sealed != row.sealed or not before.shown.is_active:
                raise ProviderError("the connection was changed while its platform was asked")
            wanted = structs.replace(facts.applied_to(before.shown), verified_at=now)
            written = await self.write(tx, tenant_id, before.shown, wanted, before.sealed)
            await self._audit.write(
                tx, tenant_id, actor="system", action="ad_connection.correct",
                object=f"ad_connection {connection_id}", before=before.shown, after=written.shown,
            )  # fmt: skip
        return Kept(written.shown, written.sealed, row.waiting, row.tree)
