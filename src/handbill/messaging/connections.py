"""Connections to a provider: their secrets (sealed), numbers, templates; the tenant's stop switch and pace."""

from __future__ import annotations

import hashlib
import hmac
from datetime import datetime
from typing import Annotated, Literal, Protocol
from uuid import UUID

import msgspec
from msgspec import Meta

from handbill.infra.postgres import Database, Tx
from handbill.kit import pages
from handbill.kit.clock import Clock
from handbill.kit.errors import Conflict, Fault, Invalid, NotFound
from handbill.kit.ids import Ids
from handbill.kit.pages import Page
from handbill.messaging import checks
from handbill.messaging.dispatch import Dispatcher
from handbill.messaging.model import Account, Channel, Credentials, NumberInfo
from handbill.messaging.plan import Digits, Name
from handbill.messaging.providers.port import Provider
from handbill.messaging.store import S
from handbill.tenants.service import Audit

Secret = Annotated[str, Meta(min_length=1, max_length=2000, pattern=r"^[\x21-\x7e]+$")]


class Safe(Protocol):
    """Where secrets are kept: seals them for a row, and opens them for a call."""

    def sealed(self, tenant_id: int, secret: str, credentials: Credentials) -> bytes: ...

    def forget(self, tenant_id: int, secret: str) -> None: ...

    async def credentials(self, account: Account) -> Credentials: ...


class NewConnection(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The four values of a WhatsApp number, as its provider shows them."""

    name: Name
    waba_id: Digits
    numbers: Annotated[list[Digits], Meta(min_length=1, max_length=100)]
    token: Secret
    app_secret: Secret
    portfolio: Digits | None = None
    """Accounts of one business share its tier: give the same id to all of them."""


class NewSecrets(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: Secret
    app_secret: Secret


class NumberView(msgspec.Struct, frozen=True):
    number_id: str
    display: str
    quality: str
    per_second: int
    tier: int | None
    paused_until: datetime | None
    pause_reason: str | None


class Connection(msgspec.Struct, frozen=True):
    connection_id: UUID
    name: str
    channel: Channel
    waba_id: str
    portfolio: str
    numbers: list[NumberView]
    webhook: str
    """The path of this connection's webhook."""
    verify_token: str | None
    """What the provider must repeat when it subscribes; shown when the connection is made."""
    version: int
    created_at: datetime


class TemplateView(msgspec.Struct, frozen=True):
    connection_id: UUID
    name: str
    language: str
    template_id: str
    category: str
    state: str
    components: list[dict[str, object]]
    named: bool
    reason: str
    changed_at: datetime


class Switch(msgspec.Struct, frozen=True):
    """Whether anything of this tenant is sent at all, and how fast."""

    stopped: bool = False
    reason: str | None = None
    per_second: int | None = None
    """Messages a second for the whole tenant; 0 is no limit but the numbers' own, null is what the tier says."""
    updated_at: datetime | None = None


class NewSwitch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    stopped: bool


class Connections:
    def __init__(
        self,
        database: Database,
        audit: Audit,
        provider: Provider,
        safe: Safe,
        dispatcher: Dispatcher,
        clock: Clock,
        ids: Ids,
        verify_key: bytes,
    ) -> None:
        self._database = database
        self._audit = audit
        self._provider = provider
        self._safe = safe
        self._dispatcher = dispatcher
        self._clock = clock
        self._ids = ids
        self._verify_key = verify_key

    def verify_token(self, connection_id: UUID) -> str:
        """Ours to choose, so it is made from the installation's secret and kept nowhere."""
        return hmac.new(self._verify_key, connection_id.bytes, hashlib.sha256).hexdigest()[:40]

    async def connect(self, tenant_id: int, new: NewConnection, *, actor: str, check: bool = True) -> Connection:
        """Seal the secrets and ask the provider about each number. A number it does not show us is refused."""
        checks.refuse(checks.plain("name", new.name), "nothing was connected")
        connection_id, now = self._ids.new(), self._clock.now()
        sealed = self._safe.sealed(tenant_id, str(connection_id), Credentials(new.token, new.app_secret))
        async with self._database.tenant(tenant_id) as tx:
            await tx.execute(
                S.insert_connection, tenant_id, connection_id, new.name, "whatsapp", new.waba_id,
                new.portfolio or new.waba_id, sealed, now,
            )  # fmt: skip
            for number_id in sorted(set(new.numbers)):
                await self._put(tx, tenant_id, connection_id, NumberInfo(number_id, ""))
            await self._audit.write(
                tx, tenant_id, actor=actor, action="connection.create", object=f"connection {connection_id}",
                after={"name": new.name, "waba_id": new.waba_id, "numbers": sorted(set(new.numbers))},
            )  # fmt: skip
        if check:
            try:
                await self.refresh(tenant_id, connection_id, actor=actor)
            except (Conflict, Invalid):
                async with self._database.tenant(tenant_id) as tx:
                    await tx.fetchval(S.delete_connection, tenant_id, connection_id)
                raise
        return msgspec.structs.replace(
            await self.read(tenant_id, connection_id), verify_token=self.verify_token(connection_id)
        )

    async def reseal(self, tenant_id: int, connection_id: UUID, new: NewSecrets, *, actor: str) -> Connection:
        """A new token, used within seconds. A stop that the old one caused is for a person to lift."""
        sealed = self._safe.sealed(tenant_id, str(connection_id), Credentials(new.token, new.app_secret))
        async with self._database.tenant(tenant_id) as tx:
            if await tx.fetchval(S.reseal_connection, tenant_id, connection_id, sealed, self._clock.now()) is None:
                raise _missing()
            await self._audit.write(
                tx, tenant_id, actor=actor, action="connection.reseal", object=f"connection {connection_id}"
            )
        self._safe.forget(tenant_id, str(connection_id))
        return await self.read(tenant_id, connection_id)

    async def remove(self, tenant_id: int, connection_id: UUID, *, actor: str) -> None:
        await self.read(tenant_id, connection_id)
        async with self._database.tenant(tenant_id) as tx:
            if await tx.fetchval(S.delete_connection, tenant_id, connection_id) is None:
                raise Conflict("Campaigns use this connection; nothing was removed.", code="CONNECTION_IN_USE")
            await self._audit.write(
                tx, tenant_id, actor=actor, action="connection.remove", object=f"connection {connection_id}"
            )

    async def read(self, tenant_id: int, connection_id: UUID) -> Connection:
        found = await self._some(tenant_id, None, 1, connection_id)
        if not found:
            raise _missing()
        return found[0]

    async def listed(self, tenant_id: int, cursor: str | None, limit: int) -> Page[Connection]:
        rows = await self._some(tenant_id, checks.after_id(cursor), limit + 1, None)
        return pages.page(rows, limit, lambda row: (str(row.connection_id),))

    async def _some(self, tenant_id: int, after: UUID | None, limit: int, only: UUID | None) -> list[Connection]:
        async with self._database.tenant(tenant_id) as tx:
            rows = await tx.fetch(S.read_connections, tenant_id, after, limit, only)
            numbers = await tx.fetch(S.read_numbers, tenant_id, [row["connection_id"] for row in rows])
        by_id: dict[UUID, list[NumberView]] = {}
        for row in numbers:
            view = NumberView(**{name: row[name] for name in NumberView.__struct_fields__})
            by_id.setdefault(row["connection_id"], []).append(view)
        return [
            Connection(
                row["connection_id"], row["name"], row["channel"], row["waba_id"], row["portfolio"],
                by_id.get(row["connection_id"], []), f"/webhooks/whatsapp/{row['connection_id']}", None, row["version"],
                row["created_at"],
            )
            for row in rows
        ]  # fmt: skip

    async def refresh(self, tenant_id: int, connection_id: UUID, *, actor: str) -> Connection:
        """What the provider says now: numbers with their limits, and templates with their state."""
        found = await self.read(tenant_id, connection_id)
        accounts = [Account(tenant_id, one.number_id, found.waba_id, str(connection_id)) for one in found.numbers]
        infos = [await self._provider.number(account) for account in accounts]
        templates = await self._provider.templates(accounts[0])
        now = self._clock.now()
        async with self._database.tenant(tenant_id) as tx:
            for info in infos:
                await self._put(tx, tenant_id, connection_id, info)
            encode = msgspec.json.encode
            await tx.execute(
                S.put_templates, tenant_id, connection_id, now, [t.name for t in templates],
                [t.language for t in templates], [t.id for t in templates], [t.category for t in templates],
                [t.state for t in templates], [encode(t.components).decode() for t in templates],
                [t.named for t in templates],
            )  # fmt: skip
            await tx.execute(S.drop_templates, tenant_id, connection_id, now)
            await self._audit.write(
                tx, tenant_id, actor=actor, action="connection.refresh", object=f"connection {connection_id}",
                after={"numbers": len(infos), "templates": len(templates)},
            )  # fmt: skip
        return await self.read(tenant_id, connection_id)

    async def _put(self, tx: Tx, tenant_id: int, connection_id: UUID, info: NumberInfo) -> None:
        made = await tx.fetchval(
            S.put_number, tenant_id, info.number_id, connection_id, info.display[:50], info.quality[:20],
            info.per_second, info.tier, self._clock.now(),
        )  # fmt: skip
        if made is None:
            raise Conflict(
                f"The number {info.number_id} belongs to another connection of yours; nothing was changed.",
                code="NUMBER_TAKEN",
            )

    async def resume_number(self, tenant_id: int, number_id: str, *, actor: str) -> None:
        async with self._database.tenant(tenant_id) as tx:
            if await tx.fetchval(S.resume_number, tenant_id, number_id, self._clock.now()) is None:
                raise NotFound("There is no such number.", code="NUMBER_NOT_FOUND")
            await self._audit.write(tx, tenant_id, actor=actor, action="number.resume", object=f"number {number_id}")
        await self._ring(tenant_id)

    async def templates(
        self, tenant_id: int, connection_id: UUID | None, cursor: str | None, limit: int
    ) -> Page[TemplateView]:
        name, language = ("", "") if cursor is None else map(str, pages.decode(cursor, [str, str]))
        checks.refuse(checks.plain("cursor", name) + checks.plain("cursor", language))
        async with self._database.tenant(tenant_id) as tx:
            rows = await tx.fetch(S.list_templates, tenant_id, connection_id, name, language, limit + 1)
        found = [TemplateView(**{**dict(row), "components": msgspec.json.decode(row["components"])}) for row in rows]
        return pages.page(found, limit, lambda row: (row.name, row.language))

    # --- the switch

    async def switch(self, tenant_id: int) -> Switch:
        async with self._database.tenant(tenant_id) as tx:
            row = await tx.fetchrow(S.read_switch, tenant_id)
        return Switch() if row is None else Switch(**dict(row))

    async def turn_switch(
        self, tenant_id: int, *, stopped: bool, actor: str, reason: Literal["operator"] = "operator"
    ) -> Switch:
        """Everything of this tenant stops before its next attempt, or goes on."""
        async with self._database.tenant(tenant_id) as tx:
            row = await tx.fetchrow(S.set_switch, tenant_id, stopped, reason if stopped else None, self._clock.now())
            action = "messaging.stop" if stopped else "messaging.go"
            await self._audit.write(tx, tenant_id, actor=actor, action=action, object="switch")
        if not stopped:
            await self._ring(tenant_id)
        assert row is not None
        return Switch(**dict(row))

    async def set_pace(self, tenant_id: int, per_second: int | None, *, actor: str) -> Switch:
        """The operator's: how fast this tenant may go."""
        if per_second is not None and not 0 <= per_second <= 100_000:
            raise Invalid("The pace is not valid.", faults=[Fault("per_second", "between 0 and 100,000")])
        async with self._database.tenant(tenant_id) as tx:
            row = await tx.fetchrow(S.set_pace, tenant_id, per_second, self._clock.now())
            await self._audit.write(
                tx, tenant_id, actor=actor, action="messaging.pace", object="switch", after={"per_second": per_second}
            )
        assert row is not None
        return Switch(**dict(row))

    async def _ring(self, tenant_id: int) -> None:
        async with self._database.worker() as tx:
            await self._dispatcher.ring(tx, tenant_id)
            await self._dispatcher.ring_retries(tx, tenant_id)


def _missing() -> NotFound:
    return NotFound("There is no such connection.", code="CONNECTION_NOT_FOUND")
