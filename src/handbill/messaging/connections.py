"""Connections to a provider: their secrets (sealed), numbers, templates; the tenant's stop switch and pace."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, structs

from handbill.infra.postgres import Database, Tx, UniqueViolation
from handbill.jobs.model import Job, Unrecoverable
from handbill.jobs.service import Outbox
from handbill.kit import etags, pages
from handbill.kit.clock import Clock
from handbill.kit.errors import Conflict, Fault, Invalid, NotFound
from handbill.kit.ids import Ids
from handbill.kit.moments import moment_faults
from handbill.kit.pages import Page
from handbill.messaging import checks
from handbill.messaging.callbacks import Callback, Callbacks
from handbill.messaging.consequences import Consequences
from handbill.messaging.dispatch import Dispatcher
from handbill.messaging.hearing import GOOD, template_changed
from handbill.messaging.hooks_out import QUEUE, Hooks
from handbill.messaging.links import (
    MAX_NUMBERS,
    Connection,
    ConnectionPatch,
    NewConnection,
    NumberView,
    Safe,
    Switch,
    TemplateView,
)
from handbill.messaging.model import Account, Credentials, NumberInfo, Template, TemplateState, TokenInfo
from handbill.messaging.providers.port import Provider
from handbill.messaging.store import S
from handbill.tenants.service import Audit

ROTATION = timedelta(days=1)
"""How long webhooks signed with the app secret before are taken."""
CLOCK = "system"
BEHIND = timedelta(minutes=1)
"""What a list of templates says is taken to be so old: a webhook of the last minute may know more."""


class Connections:
    def __init__(
        self,
        database: Database,
        audit: Audit,
        provider: Provider,
        safe: Safe,
        dispatcher: Dispatcher,
        hooks: Hooks,
        consequences: Consequences,
        outbox: Outbox,
        clock: Clock,
        ids: Ids,
        callbacks: Callbacks,
    ) -> None:
        self._database = database
        self._audit = audit
        self._provider = provider
        self._safe = safe
        self._dispatcher = dispatcher
        self._hooks = hooks
        self._consequences = consequences
        self._outbox = outbox
        self._clock = clock
        self._ids = ids
        self._callbacks = callbacks

    async def connect(self, tenant_id: int, new: NewConnection, *, actor: str, check: bool = True) -> Connection:
        """Ask the provider about the token and every number, then seal and keep. What it does not know is refused."""
        faults = checks.plain("name", new.name) + moment_faults("token_ends_at", new.token_ends_at)
        checks.refuse(faults, "nothing was connected")
        connection_id, now = self._ids.new(), self._clock.now()
        given, numbers = Credentials(new.token, new.app_secret), sorted(set(new.numbers))
        infos, templates = [NumberInfo(number_id, "") for number_id in numbers], list[Template]()
        token = TokenInfo(valid=True)
        if check:
            infos, templates, token = await self._asked(tenant_id, given, new.waba_id, numbers)
        ends_at = token.ends_at or new.token_ends_at
        sealed = self._safe.sealed(tenant_id, str(connection_id), given)
        async with self._database.tenant(tenant_id) as tx:
            await tx.execute(
                S.insert_connection, tenant_id, connection_id, new.name, "whatsapp", new.waba_id,
                new.portfolio or new.waba_id, sealed, now, ends_at, now if check else None,
            )  # fmt: skip
            for info in infos:
                await self._put(tx, tenant_id, connection_id, info)
            await self._put_templates(tx, tenant_id, connection_id, templates, now - BEHIND)
            shown = {"name": new.name, "waba_id": new.waba_id, "numbers": numbers}
            await self._note(tx, tenant_id, actor, "connection.create", connection_id, None, shown)
        return await self.read(tenant_id, connection_id)

    async def change(
        self, tenant_id: int, connection_id: UUID, patch: ConnectionPatch, *, actor: str, version: int | None = None
    ) -> Connection:
        """What is sent, and nothing else. New secrets are tried on the provider before the old ones go; a stop that the
        old token caused is for a person to lift."""
        if patch.name is not UNSET:
            checks.refuse(checks.plain("name", patch.name), "nothing was changed")
        checks.refuse(moment_faults("token_ends_at", patch.end_after(None)), "nothing was changed")
        account = Account(tenant_id, "", "", str(connection_id))
        known = await self.read(tenant_id, connection_id)
        given = self._renewed(await self._safe.credentials(account), patch)
        told: datetime | None = None
        if given is not None:
            *_, token = await self._asked(tenant_id, given, known.waba_id, [one.number_id for one in known.numbers])
            told = token.ends_at
        async with self._database.tenant(tenant_id) as tx:
            before = await tx.fetchrow(S.lock_connection, tenant_id, connection_id)
            if before is None:
                raise _missing()
            etags.check(version, before["version"])
            after = {
                "name": before["name"] if patch.name is UNSET else patch.name,
                "portfolio": before["portfolio"] if patch.portfolio is UNSET else patch.portfolio,
            }
            sealed = before["sealed"]
            if given is not None:
                sealed = self._safe.sealed(tenant_id, str(connection_id), given)
            await tx.execute(
                S.change_connection, tenant_id, connection_id, after["name"], after["portfolio"], sealed,
                self._clock.now(), told or patch.end_after(before["token_ends_at"]), given is not None,
            )  # fmt: skip
            shown = {"name": before["name"], "portfolio": before["portfolio"]}
            after["secrets"] = "changed" if given is not None else "kept"
            await self._note(tx, tenant_id, actor, "connection.change", connection_id, shown, after)
        self._safe.forget(tenant_id, str(connection_id))
        return await self.read(tenant_id, connection_id)

    def _renewed(self, old: Credentials, patch: ConnectionPatch) -> Credentials | None:
        """The secrets after the change; None when nothing of them changes."""
        if patch.token is UNSET and patch.app_secret is UNSET:
            return None
        given = old if patch.token is UNSET else structs.replace(old, token=patch.token)
        if patch.app_secret is not UNSET and patch.app_secret != old.app_secret:
            until = self._clock.now_ms() + int(ROTATION.total_seconds() * 1000)
            given = structs.replace(
                given, app_secret=patch.app_secret, old_app_secret=old.app_secret, old_until_ms=until
            )
        return given

    async def _asked(
        self, tenant_id: int, given: Credentials, waba_id: str, numbers: Sequence[str]
    ) -> tuple[list[NumberInfo], list[Template], TokenInfo]:
        """What the provider says to these secrets, before they are kept: they are lent for the length of each call."""
        loan = f"check {self._ids.new()}"

        def lent(number_id: str = "") -> Account:
            self._safe.lend(tenant_id, loan, given)
            return Account(tenant_id, number_id, waba_id, loan)

        try:
            token = await self._provider.token(lent())
            if not token.valid:
                raise Conflict(
                    "The provider says that the token is not valid; nothing was kept.", code="PROVIDER_TOKEN"
                )
            infos = [await self._provider.number(lent(number_id)) for number_id in numbers]
            return infos, await self._provider.templates(lent()), token
        finally:
            self._safe.forget(tenant_id, loan)

    async def remove(self, tenant_id: int, connection_id: UUID, *, actor: str) -> None:
        await self.read(tenant_id, connection_id)
        async with self._database.tenant(tenant_id) as tx:
            if await tx.fetchval(S.delete_connection, tenant_id, connection_id) is None:
                raise Conflict("Campaigns or messages use it; nothing was removed.", code="CONNECTION_IN_USE")
            await self._note(tx, tenant_id, actor, "connection.remove", connection_id, None, None)
        self._safe.forget(tenant_id, str(connection_id))

    async def add_number(self, tenant_id: int, connection_id: UUID, number_id: str, *, actor: str) -> Connection:
        known = await self.read(tenant_id, connection_id)
        info = await self._provider.number(Account(tenant_id, number_id, known.waba_id, str(connection_id)))
        async with self._database.tenant(tenant_id) as tx:
            if len(await tx.fetch(S.read_numbers, tenant_id, [connection_id])) >= MAX_NUMBERS:
                raise Conflict("A connection has at most 1,000 numbers; nothing was changed.", code="TOO_MANY_NUMBERS")
            await self._put(tx, tenant_id, connection_id, info)
            await self._note(tx, tenant_id, actor, "number.add", connection_id, None, {"number_id": number_id})
        return await self.read(tenant_id, connection_id)

    async def remove_number(self, tenant_id: int, connection_id: UUID, number_id: str, *, actor: str) -> None:
        await self._known(tenant_id, connection_id, number_id)
        async with self._database.tenant(tenant_id) as tx:
            if await tx.fetchval(S.delete_number, tenant_id, connection_id, number_id) is None:
                raise Conflict("Campaigns or messages need it; nothing was removed.", code="CONNECTION_IN_USE")
            await self._note(tx, tenant_id, actor, "number.remove", connection_id, {"number_id": number_id}, None)

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
        return [self._connection(row, by_id.get(row["connection_id"], [])) for row in rows]

    def _connection(self, row: Any, numbers: list[NumberView]) -> Connection:
        connection_id, to_us = row["connection_id"], self._callbacks
        return Connection(
            connection_id, row["name"], row["channel"], row["waba_id"], row["portfolio"], numbers,
            to_us.path(connection_id), to_us.url_if_set(connection_id), to_us.verify_token(connection_id),
            row["version"], row["created_at"],
            *(row[name] for name in ("token_state", "token_note", "token_ends_at", "token_checked_at")),
        )  # fmt: skip

    async def callback(self, tenant_id: int, connection_id: UUID) -> Callback:
        """What the provider's app is given. Raises Conflict while the public address is not set."""
        await self.read(tenant_id, connection_id)
        return self._callbacks.callback(connection_id)

    async def refresh(self, tenant_id: int, connection_id: UUID, *, actor: str) -> Connection:
        """What the provider says now: numbers with their limits, and templates with their state."""
        found = await self.read(tenant_id, connection_id)
        accounts = [Account(tenant_id, one.number_id, found.waba_id, str(connection_id)) for one in found.numbers]
        asked_at = self._clock.now() - BEHIND
        whole = Account(tenant_id, "", found.waba_id, str(connection_id))
        await self._consequences.tokens.check(self._provider, whole, connection_id)
        infos = [await self._provider.number(account) for account in accounts]
        templates = await self._provider.templates(whole)
        async with self._database.tenant(tenant_id) as tx:
            for info in infos:
                await self._put(tx, tenant_id, connection_id, info)
            await self._put_templates(tx, tenant_id, connection_id, templates, asked_at)
            if actor != CLOCK:  # once an hour for ever would bury what people did
                counts = {"numbers": len(infos), "templates": len(templates)}
                await self._note(tx, tenant_id, actor, "connection.refresh", connection_id, None, counts)
        return await self.read(tenant_id, connection_id)

    async def _put_templates(
        self, tx: Tx, tenant_id: int, connection_id: UUID, templates: Sequence[Template], at: datetime
    ) -> None:
        """One that cannot be sent any more pauses its campaigns, as the webhook would have."""
        before = await self._states(tx, tenant_id, connection_id)
        encode = msgspec.json.encode
        unique = {(t.name, t.language): t for t in templates if not _odd(t)}
        kept = [unique[key] for key in sorted(unique)]
        await tx.execute(
            S.put_templates, tenant_id, connection_id, at, [t.name for t in kept], [t.language for t in kept],
            [t.id for t in kept], [t.category for t in kept], [t.state for t in kept],
            [encode(t.components).decode() for t in kept], [t.named for t in kept],
        )  # fmt: skip
        await tx.execute(S.drop_templates, tenant_id, connection_id, at)
        after = await self._states(tx, tenant_id, connection_id)
        for (name, language), state in sorted(before.items()):
            now = after.get((name, language), "DELETED")
            if state in GOOD and now not in GOOD:
                await template_changed(
                    tx, self._hooks, self._consequences, tenant_id, connection_id, name, language, now, ""
                )

    async def _states(self, tx: Tx, tenant_id: int, connection_id: UUID) -> dict[tuple[str, str], str]:
        rows = await tx.fetch(S.template_states, tenant_id, connection_id)
        return {(row["name"], row["language"]): row["state"] for row in rows}

    # --- by the clock

    async def queue_all(self) -> int:
        """One job for each connection of every tenant: what the provider says is asked for again."""
        async with self._database.worker() as tx:
            rows = await tx.fetch(S.every_connection)
            for row in rows:
                await self._queue(tx, row["tenant_id"], row["connection_id"])
        return len(rows)

    async def _queue(self, tx: Tx, tenant_id: int, connection_id: UUID) -> None:
        await self._outbox.put(tx, QUEUE, "refresh", {"connection_id": str(connection_id)}, tenant_id=tenant_id)

    async def refresh_job(self, job: Job, ctx: object) -> str:
        """The job behind it. A token that died is no reason to try again: sending will meet it and stop."""
        data = job.data if isinstance(job.data, dict) else {}
        try:
            connection_id = UUID(str(data.get("connection_id")))
            await self.refresh(job.tenant_id or 0, connection_id, actor=CLOCK)
        except (ValueError, NotFound):
            return "gone"
        except (Conflict, Invalid) as error:
            raise Unrecoverable(f"{error.code}: {error.detail}") from None
        return "refreshed"

    async def _put(self, tx: Tx, tenant_id: int, connection_id: UUID, info: NumberInfo) -> None:
        try:
            made = await tx.fetchval(
                S.put_number, tenant_id, info.number_id, connection_id, info.display[:50], info.quality[:20],
                info.per_second, info.tier, self._clock.now(),
            )  # fmt: skip
        except UniqueViolation:  # another tenant's; the answer is the same, for whose it is is nobody's business
            made = None
        if made is None:
            raise Conflict(
                f"The number {info.number_id} belongs to another connection; nothing was changed.", code="NUMBER_TAKEN"
            )

    async def resume_number(self, tenant_id: int, connection_id: UUID, number_id: str, *, actor: str) -> Connection:
        """A person says that the number may go on, before its pause is over."""
        await self._known(tenant_id, connection_id, number_id)
        async with self._database.tenant(tenant_id) as tx:
            await tx.fetchval(S.resume_number, tenant_id, number_id, self._clock.now())
            await self._note(tx, tenant_id, actor, "number.resume", connection_id, None, {"number_id": number_id})
        await self._ring(tenant_id)
        return await self.read(tenant_id, connection_id)

    async def _known(self, tenant_id: int, connection_id: UUID, number_id: str) -> None:
        known = await self.read(tenant_id, connection_id)
        if number_id not in {one.number_id for one in known.numbers}:
            raise NotFound("There is no such number.", code="NUMBER_NOT_FOUND")

    async def templates(
        self,
        tenant_id: int,
        connection_id: UUID | None,
        cursor: str | None,
        limit: int,
        state: TemplateState | None = None,
    ) -> Page[TemplateView]:
        name, language, last = ("", "", str(UUID(int=0)))
        if cursor is not None:
            name, language, last = map(str, pages.decode(cursor, [str, str, str]))
        checks.refuse(checks.plain("cursor", name) + checks.plain("cursor", language))
        after = checks.after_id(pages.encode(last))
        async with self._database.tenant(tenant_id) as tx:
            rows = await tx.fetch(S.list_templates, tenant_id, connection_id, name, language, after, limit + 1, state)
        found = [TemplateView(**{**dict(row), "components": msgspec.json.decode(row["components"])}) for row in rows]
        return pages.page(found, limit, lambda row: (row.name, row.language, str(row.connection_id)))

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
        return Switch(**dict(row or {}))

    async def set_pace(self, tenant_id: int, per_second: int | None, *, actor: str) -> Switch:
        """The administrator's to say: how fast this tenant may go; None: as its tier says."""
        if per_second is not None and not 0 <= per_second <= 100_000:
            raise Invalid("The pace is not valid.", faults=[Fault("per_second", "between 0 and 100,000")])
        async with self._database.tenant(tenant_id) as tx:
            row = await tx.fetchrow(S.set_pace, tenant_id, per_second, self._clock.now())
            await self._audit.write(
                tx, tenant_id, actor=actor, action="messaging.pace", object="switch", after={"per_second": per_second}
            )
        return Switch(**dict(row or {}))

    async def _ring(self, tenant_id: int) -> None:
        async with self._database.worker() as tx:
            await self._dispatcher.ring(tx, tenant_id)
            await self._dispatcher.ring_retries(tx, tenant_id)

    async def _note(
        self,
        tx: Tx,
        tenant_id: int,
        actor: str,
        action: str,
        connection_id: UUID,
        before: dict[str, Any] | None,
        after: dict[str, Any] | None,
    ) -> None:
        await self._audit.write(
            tx, tenant_id, actor=actor, action=action, object=f"connection {connection_id}", before=before, after=after
        )


def _odd(template: Template) -> bool:
    """A name that no text column takes cannot be asked for either."""
    return bool(checks.plain("name", template.name) or checks.plain("language", template.language))


def _missing() -> NotFound:
    return NotFound("There is no such connection.", code="CONNECTION_NOT_FOUND")
