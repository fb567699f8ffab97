"""Connecting ad accounts, correcting them, and letting them go. Each change is one transaction with its audit row."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec import UNSET, structs

from handbill.adstats import cadence, store
from handbill.adstats.accounts import Accounts
from handbill.adstats.editor import after, found
from handbill.adstats.model import Connection, ConnectionPatch, NewConnection, ProviderName, SyncState, TokenState
from handbill.adstats.providers.port import Account, AccountFacts, ProviderError
from handbill.adstats.store import Kept
from handbill.infra.postgres import Database, Tx, UniqueViolation
from handbill.kit import etags, pages
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy, Conflict, Fault, Invalid
from handbill.kit.ids import Ids
from handbill.kit.moments import moment_faults
from handbill.kit.pages import Page
from handbill.tenants.service import Audit

UNREACHABLE_RETRY_S = 60


class Connections:
    def __init__(
        self,
        database: Database,
        accounts: Accounts,
        audit: Audit,
        clock: Clock,
        ids: Ids,
        look_backs: Mapping[ProviderName, int],
    ) -> None:
        self._database = database
        self._accounts = accounts
        self._audit = audit
        self._clock = clock
        self._ids = ids
        self._look_backs = look_backs

    async def create(self, tenant_id: int, new: NewConnection, *, actor: str) -> Connection:
        """Ask the platform for the account's currency, zone and access, then connect it.

        A platform that cannot be reached leaves it unverified until the next sync. A deleted connection is made again,
        with what was read through it. Raises Conflict for an account that cannot be read or is connected already.
        """
        if new.time_zone is not None:
            cadence.check_zone(new.time_zone, "time_zone")
        _check_end(new.token_ends_at)
        connection_id, token = self._ids.new(), new.access_token
        asked = Account(connection_id, new.external_id, new.currency or "", new.time_zone or "UTC", token or "")
        facts = await self._accounts.read(new.provider, asked)
        now = self._clock.now()
        wanted = Connection(
            connection_id, new.provider, new.external_id, new.name, _currency(new, facts),
            (facts.time_zone if facts else None) or new.time_zone or "UTC",
            new.look_back_days or self._look_backs[new.provider],
            token_state="valid" if token else "none", token_changed_at=now if token else None,
            token_ends_at=new.token_ends_at if token else None, verified_at=now if facts else None,
        )  # fmt: skip
        sealed = self._accounts.seal(tenant_id, connection_id, token)
        try:
            async with self._database.tenant(tenant_id) as tx:
                row = await store.create_connection(tx, tenant_id, wanted, sealed, now)
                await self._note(tx, tenant_id, actor, "create", None, row.shown)
        except UniqueViolation:
            return await self._create_again(tenant_id, wanted, token, actor)
        return row.shown

    async def _create_again(self, tenant_id: int, wanted: Connection, token: str | None, actor: str) -> Connection:
        """The account is here already: a deleted connection comes back under its id, with its entities and days."""
        async with self._database.worker() as tx:
            await store.lock_seller(tx, tenant_id)
            before = await store.lock_account(tx, tenant_id, wanted.provider, wanted.external_id)
            if before is None or before.shown.is_active:
                raise Conflict(
                    f"The account {wanted.external_id} is connected already; nothing was changed. "
                    "Change that connection.",
                    code="AD_ACCOUNT_TAKEN",
                )
            connection_id = before.shown.connection_id
            sealed = self._accounts.seal(tenant_id, connection_id, token)
            again = structs.replace(wanted, connection_id=connection_id)
            row = await self._accounts.write(tx, tenant_id, before.shown, again, sealed)
            await self._note(tx, tenant_id, actor, "create", before.shown, row.shown)
        return row.shown

    async def read(self, tenant_id: int, connection_id: UUID) -> Connection:
        return (await self._row(tenant_id, connection_id)).shown

    async def list_page(self, tenant_id: int, cursor: str | None, limit: int) -> Page[Connection]:
        async with self._database.tenant(tenant_id) as tx:
            rows = await store.list_connections(tx, tenant_id, after(cursor), limit + 1)
        return pages.page(rows, limit, lambda row: (str(row.connection_id),))

    async def change(
        self, tenant_id: int, connection_id: UUID, patch: ConnectionPatch, *, version: int | None, actor: str
    ) -> Connection:
        """Change what is sent. A new token brings a dead connection back.

        With a new token, currency or zone the platform is asked first; see docs/adstats.md for the days that change.
        """
        if patch.time_zone is not UNSET:
            cadence.check_zone(patch.time_zone, "time_zone")
        _check_end(patch.token_ends_at or None)
        if {patch.access_token, patch.currency, patch.time_zone} == {UNSET}:
            async with self._database.tenant(tenant_id) as tx:
                before = await self._locked(tx, tenant_id, connection_id, version)
                return await self._write(tx, tenant_id, before, _patched(before.shown, patch), before.sealed, actor)
        known = await self._row(tenant_id, connection_id)
        etags.check(version, known.shown.version)
        facts = await self._ask(tenant_id, known, patch)
        now = self._clock.now()
        async with self._database.worker() as tx:
            await store.lock_seller(tx, tenant_id)
            before = await self._locked(tx, tenant_id, connection_id, version)
            wanted, sealed = _patched(before.shown, patch), before.sealed
            if patch.access_token is not UNSET:
                wanted = _with_new_token(wanted, patch, now)
                sealed = self._accounts.seal(tenant_id, connection_id, patch.access_token)
            elif before.sealed != known.sealed:
                facts = None  # read with a token that was changed meanwhile
            wanted = structs.replace(facts.applied_to(wanted) if facts else wanted, verified_at=now if facts else None)
            return await self._write(tx, tenant_id, before, wanted, sealed, actor)

    async def _ask(self, tenant_id: int, known: Kept, patch: ConnectionPatch) -> AccountFacts | None:
        """What the platform says of the account with the token that it will have; None when it cannot be asked."""
        shown = known.shown
        if patch.access_token is not UNSET:
            account = Account(
                shown.connection_id, shown.external_id, shown.currency, shown.time_zone, patch.access_token
            )
        elif shown.token_state == "dead":  # noqa: S105 - a state, not a password
            return None
        else:
            try:
                account = self._accounts.open(tenant_id, known)
            except ProviderError:
                return None
        facts = await self._accounts.read(shown.provider, account)
        if facts is not None:
            _check_agrees("currency", patch.currency, facts.currency)
            _check_agrees("time_zone", patch.time_zone, facts.time_zone)
        return facts

    async def delete(self, tenant_id: int, connection_id: UUID, *, version: int | None, actor: str) -> None:
        """No more syncs, and the token is deleted. What was read stays."""
        none: TokenState = "none"
        async with self._database.tenant(tenant_id) as tx:
            before = await self._locked(tx, tenant_id, connection_id, version)
            wanted = structs.replace(
                before.shown, is_active=False, token_state=none, token_note=None, token_ends_at=None, verified_at=None
            )
            row = await store.update_connection(tx, tenant_id, wanted, None, self._clock.now())
            await self._note(tx, tenant_id, actor, "disconnect", before.shown, row.shown)

    async def sync_states(self, tenant_id: int, connection_id: UUID | None = None) -> list[SyncState]:
        async with self._database.tenant(tenant_id) as tx:
            return await store.sync_states(tx, tenant_id, connection_id)

    async def _row(self, tenant_id: int, connection_id: UUID) -> Kept:
        async with self._database.tenant(tenant_id) as tx:
            return found(await store.find_connection(tx, tenant_id, connection_id), "AD_CONNECTION")

    async def _locked(self, tx: Tx, tenant_id: int, connection_id: UUID, version: int | None) -> Kept:
        row = found(await store.find_connection(tx, tenant_id, connection_id, lock=True), "AD_CONNECTION")
        etags.check(version, row.shown.version)
        return row

    async def _write(
        self, tx: Tx, tenant_id: int, before: Kept, wanted: Connection, sealed: bytes | None, actor: str
    ) -> Connection:
        row = await self._accounts.write(tx, tenant_id, before.shown, wanted, sealed)
        await self._note(tx, tenant_id, actor, "change", before.shown, row.shown)
        return row.shown

    async def _note(
        self, tx: Tx, tenant_id: int, actor: str, action: str, before: Connection | None, written: Connection
    ) -> None:
        await self._audit.write(
            tx, tenant_id, actor=actor, action=f"ad_connection.{action}",
            object=f"ad_connection {written.connection_id}", before=before, after=written,
        )  # fmt: skip


def _currency(new: NewConnection, facts: AccountFacts | None) -> str:
    """The platform's, or the one that was given."""
    currency = (facts.currency if facts else None) or new.currency
    if currency is not None:
        return currency
    if facts is None and new.access_token:
        raise Busy(
            "The platform could not be asked for the account's currency; nothing was connected. Try again, or send "
            "currency and time_zone: it is connected unverified then.",
            code="AD_PLATFORM",
            retry_after=UNREACHABLE_RETRY_S,
        )
    reason = "must be given where no platform tells it: for a MOCK account, and without an access_token"
    raise Invalid(f"Nothing was connected: currency {reason}.", faults=[Fault("currency", reason)])


def _patched(before: Connection, patch: ConnectionPatch) -> Connection:
    values: dict[str, Any] = {name: getattr(patch, name) for name in patch.__struct_fields__ if name != "access_token"}
    return structs.replace(before, **{name: value for name, value in values.items() if value is not UNSET})


def _with_new_token(wanted: Connection, patch: ConnectionPatch, now: datetime) -> Connection:
    valid: TokenState = "valid"
    ends_at = None if patch.token_ends_at is UNSET else patch.token_ends_at
    return structs.replace(
        wanted, token_state=valid, token_note=None, token_changed_at=now, token_ends_at=ends_at, token_checked_at=None
    )


def _check_agrees(field: str, given: object, actual: str | None) -> None:
    if given is UNSET or actual is None or given == actual:
        return
    raise Conflict(
        f"The platform says that the account's {field} is {actual}; nothing was changed. "
        f"Send {actual}, or leave {field} out.",
        code="AD_ACCOUNT_DIFFERS",
        faults=[Fault(field, f"the platform says {actual}")],
    )


def _check_end(moment: datetime | None) -> None:
    if faults := moment_faults("token_ends_at", moment):
        raise Invalid("The time is not valid; nothing was changed.", faults=faults)
