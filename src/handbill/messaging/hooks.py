"""Webhooks of our own, as their owner sees them: making, changing and testing them, the log, and one try at delivering.

A delivery keeps its id through every try: whoever takes the same id twice has met a lost answer, not a second event.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, Protocol
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType, structs

from handbill.infra.postgres import Database, Tx, repeat
from handbill.infra.safe_http import RequestFailed, SafeHttpClient
from handbill.jobs.model import Job, Unrecoverable
from handbill.kit import pages
from handbill.kit.clock import Clock
from handbill.kit.errors import Conflict, Fault, HandbillError, Invalid, NotFound
from handbill.kit.ids import Ids
from handbill.kit.pages import Page
from handbill.kit.telemetry import logs, metrics
from handbill.messaging import checks
from handbill.messaging.hooks_out import EVENTS, Hooks
from handbill.messaging.providers.vault import Seal
from handbill.messaging.store import S
from handbill.tenants.service import Audit

_log = logs.get("messaging")
MOST = 20
OVERLAP = timedelta(days=1)
"""How long the secret before still signs, after a new one was made."""
GIVEN_UP = timedelta(days=3)
"""A hook at which nothing arrived for so long is switched off."""
GONE = 410

DeliveryState = Literal["waiting", "delivered", "failed"]
Url = Annotated[str, Meta(min_length=8, max_length=2000)]
Events = Annotated[list[Annotated[str, Meta(max_length=60)]], Meta(max_length=50)]


class NewHook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: Url
    events: Events = []
    """Names of the events that it gets; none named: every event."""


class HookPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: Url | UnsetType = UNSET
    events: Events | UnsetType = UNSET
    active: bool | UnsetType = UNSET


class Hook(msgspec.Struct, frozen=True):
    hook_id: UUID
    url: str
    events: list[str]
    active: bool
    off_reason: str | None
    """Why it is switched off; null while it is on."""
    failing_since: datetime | None
    """The first failure after the last success; null while deliveries arrive."""
    created_at: datetime


class HookMade(msgspec.Struct, frozen=True):
    """`secret` signs every delivery. It is shown this once."""

    hook: Hook
    """The webhook as it was created."""
    secret: str
    """Signs every delivery. It is shown this once."""


class Delivery(msgspec.Struct, frozen=True):
    """One event for one hook, and what became of it."""

    delivery_id: UUID
    """The id of the delivery; it stays the same through every attempt."""
    hook_id: UUID
    event: str
    """The name of the event that is delivered."""
    state: DeliveryState
    """Whether it waits for an attempt, arrived, or was given up."""
    attempts: int
    status: int | None
    """The HTTP status of the last answer; null without an answer."""
    error: str | None
    """Why the last attempt failed; null if it did not."""
    created_at: datetime
    finished_at: datetime | None


class Kept(msgspec.Struct, frozen=True):
    """What is sealed: the secret, and the one before it for a while."""

    secret: str
    old: str | None = None
    old_until_ms: int = 0

    def good(self, now_ms: int) -> list[str]:
        return [self.secret, self.old] if self.old and now_ms < self.old_until_ms else [self.secret]


class Attempt(Protocol):
    @property
    def attempt(self) -> int: ...


class Undelivered(Exception):
    """This try came to nothing; the queue makes the next one."""


def signature(good: list[str], at_s: int, body: bytes) -> str:
    """`t=...,v1=...`: the time of the try and, for each secret, the HMAC of both. The time ends old recordings."""
    said = str(at_s).encode() + b"." + body
    marks = [hmac.new(secret.encode(), said, hashlib.sha256).hexdigest() for secret in good]
    return ",".join([f"t={at_s}", *(f"v1={mark}" for mark in marks)])


class HookDesk:
    def __init__(
        self,
        database: Database,
        audit: Audit,
        hooks: Hooks,
        seal: Seal,
        http: SafeHttpClient,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._database = database
        self._audit = audit
        self._hooks = hooks
        self._seal = seal
        self._http = http
        self._clock = clock
        self._ids = ids

    async def close(self) -> None:
        await self._http.close()

    # --- the owner's verbs

    async def create(self, tenant_id: int, new: NewHook, *, actor: str) -> HookMade:
        self._check(new.url, new.events)
        hook = Hook(self._ids.new(), new.url, sorted(set(new.events)), True, None, None, self._clock.now())
        kept = Kept(_fresh())
        async with self._database.tenant(tenant_id) as tx:
            if await tx.fetchval(S.count_hooks, tenant_id) >= MOST:
                raise Conflict(f"There are {MOST} webhooks already; nothing was made.", code="HOOKS_FULL")
            sealed = self._sealed(tenant_id, hook.hook_id, kept)
            await tx.execute(S.insert_hook, tenant_id, hook.hook_id, hook.url, hook.events, sealed, hook.created_at)
            await self._note(tx, tenant_id, actor, "hook.create", None, hook)
        return HookMade(hook, kept.secret)

    async def listed(self, tenant_id: int, cursor: str | None, limit: int) -> Page[Hook]:
        async with self._database.tenant(tenant_id) as tx:
            rows = await tx.fetch(S.list_hooks, tenant_id, checks.after_id(cursor), limit + 1)
        return pages.page([Hook(**dict(row)) for row in rows], limit, lambda row: (str(row.hook_id),))

    async def read(self, tenant_id: int, hook_id: UUID) -> Hook:
        async with self._database.tenant(tenant_id) as tx:
            return (await self._held(tx, tenant_id, hook_id))[0]

    async def change(self, tenant_id: int, hook_id: UUID, patch: HookPatch, *, actor: str) -> Hook:
        """What is sent, and nothing else. Switched on again, a hook starts with a clean slate."""
        async with self._database.tenant(tenant_id) as tx:
            before, kept = await self._held(tx, tenant_id, hook_id)
            after = before
            if patch.url is not UNSET:
                after = structs.replace(after, url=patch.url)
            if patch.events is not UNSET:
                after = structs.replace(after, events=sorted(set(patch.events)))
            if patch.active is not UNSET and patch.active != before.active:
                off = None if patch.active else "operator"
                after = structs.replace(after, active=patch.active, off_reason=off, failing_since=None)
            self._check(after.url, after.events)
            await self._put(tx, tenant_id, after, kept)
            if before.active and not after.active:
                await self._close(tx, tenant_id, hook_id, "the webhook was switched off")
            await self._note(tx, tenant_id, actor, "hook.change", before, after)
        return after

    async def renew(self, tenant_id: int, hook_id: UUID, *, actor: str) -> HookMade:
        """A new secret. The one before signs beside it for a day, so that nothing is refused in between."""
        async with self._database.tenant(tenant_id) as tx:
            hook, old = await self._held(tx, tenant_id, hook_id)
            until = self._clock.now_ms() + int(OVERLAP.total_seconds() * 1000)
            kept = Kept(_fresh(), old.secret, until)
            await self._put(tx, tenant_id, hook, kept)
            await self._note(tx, tenant_id, actor, "hook.renew", None, hook)
        return HookMade(hook, kept.secret)

    async def remove(self, tenant_id: int, hook_id: UUID, *, actor: str) -> None:
        """The log of its deliveries stays until it is old."""
        async with self._database.tenant(tenant_id) as tx:
            hook, _ = await self._held(tx, tenant_id, hook_id)
            await tx.execute(S.delete_hook, tenant_id, hook_id)
            await self._close(tx, tenant_id, hook_id, "the webhook was removed")
            await self._note(tx, tenant_id, actor, "hook.remove", hook, None)

    async def test(self, tenant_id: int, hook_id: UUID, *, actor: str) -> Delivery:
        """One event `hook.test`, whatever the hook has subscribed to."""
        async with self._database.tenant(tenant_id) as tx:
            hook, _ = await self._held(tx, tenant_id, hook_id)
            if not hook.active:
                raise Conflict("The webhook is switched off; nothing was sent.", code="HOOK_OFF")
            delivery = await self._hooks.tell(tx, tenant_id, hook_id, "hook.test", {"hook_id": str(hook_id)})
            await self._note(tx, tenant_id, actor, "hook.test", None, hook)
            return _delivery(await tx.fetchrow(S.read_delivery, tenant_id, delivery))

    async def deliveries(
        self, tenant_id: int, hook_id: UUID, cursor: str | None, limit: int, state: DeliveryState | None
    ) -> Page[Delivery]:
        """The newest first; also of a hook that is gone."""
        async with self._database.tenant(tenant_id) as tx:
            rows = await tx.fetch(S.list_deliveries, tenant_id, hook_id, checks.after_id(cursor), limit + 1, state)
        return pages.page([_delivery(row) for row in rows], limit, lambda row: (str(row.delivery_id),))

    async def redeliver(self, tenant_id: int, hook_id: UUID, delivery_id: UUID, *, actor: str) -> Delivery:
        """Once more, under the same id: whoever took it the first time can tell."""
        async with self._database.tenant(tenant_id) as tx:
            hook, _ = await self._held(tx, tenant_id, hook_id)
            row = await tx.fetchrow(S.read_delivery, tenant_id, delivery_id)
            if row is None or row["hook_id"] != hook_id:
                raise NotFound("There is no such delivery.", code="DELIVERY_NOT_FOUND")
            if not hook.active:
                raise Conflict("The webhook is switched off; nothing was sent.", code="HOOK_OFF")
            if await tx.fetchval(S.redeliver, tenant_id, delivery_id) is not None:
                await self._hooks.queue(tx, tenant_id, delivery_id)
                await self._note(tx, tenant_id, actor, "hook.redeliver", None, hook)
            return _delivery(await tx.fetchrow(S.read_delivery, tenant_id, delivery_id))

    async def forget(self, before: datetime) -> int:
        """Retention of the log."""
        return await repeat(self._database, S.forget_deliveries, before)

    # --- one try

    async def deliver(self, job: Job, ctx: Attempt) -> str:
        """The job behind each delivery. What is over stays over, however often the job runs."""
        tenant_id, delivery_id = _named(job)
        async with self._database.tenant(tenant_id) as tx:
            row = await tx.fetchrow(S.read_delivery, tenant_id, delivery_id)
        if row is None or row["state"] != "waiting":
            return "over"
        status, error = None, "the webhook is switched off or gone"
        if row["active"]:
            status, error = await self._try(tenant_id, row)
        final = not row["active"] or status == GONE or ctx.attempt >= job.attempts
        state: DeliveryState = "delivered" if not error else "failed" if final else "waiting"
        metrics.HOOK_DELIVERIES.labels("again" if state == "waiting" else state).inc()
        async with self._database.tenant(tenant_id) as tx:
            now = self._clock.now()
            told = await tx.fetchval(S.delivery_tried, tenant_id, delivery_id, state, status, error or None, now)
            if told is not None and row["active"]:
                await self._judge(tx, tenant_id, row["hook_id"], works=not error)
        if state == "waiting":
            raise Undelivered(error)
        return state

    async def _try(self, tenant_id: int, row: Any) -> tuple[int | None, str]:
        """The answer's status, and what is wrong with it; nothing wrong means that it was taken."""
        now_ms, body = self._clock.now_ms(), row["body"].encode()
        try:
            kept = self._open(tenant_id, row["hook_id"], row["sealed"])
            headers = {
                "Content-Type": "application/json",
                "User-Agent": "Handbill",
                "Handbill-Event": row["event"],
                "Handbill-Delivery": str(row["delivery_id"]),
                "Handbill-Signature": signature(kept.good(now_ms), now_ms // 1000, body),
            }
            response = await self._http.request("POST", row["url"], headers=headers, body=body, read_body=False)
        except RequestFailed as error:
            _log.info("hook.not_delivered", tenant=tenant_id, hook=str(row["hook_id"]), reason=error.reason)
            return None, error.detail
        except Invalid as error:
            return None, error.detail[:500]
        except HandbillError as error:
            _log.error("hook-not-sent", tenant=tenant_id, hook=str(row["hook_id"]), code=error.code)
            return None, error.detail[:500]
        return response.status, "" if 200 <= response.status < 300 else f"answered {response.status}"

    async def _judge(self, tx: Tx, tenant_id: int, hook_id: UUID, *, works: bool) -> None:
        if works:
            await tx.execute(S.hook_works, tenant_id, hook_id)
            return
        now = self._clock.now()
        if await tx.fetchval(S.hook_fails, tenant_id, hook_id, now, now - GIVEN_UP) is not False:
            return
        await self._close(tx, tenant_id, hook_id, "the webhook was switched off: it failed for too long")
        await self._audit.write(
            tx, tenant_id, actor="system", action="hook.disable", object=f"hook {hook_id}", after={"reason": "failing"}
        )
        await self._hooks.announce(tx, tenant_id, "hook.disabled", {"hook_id": str(hook_id)})
        metrics.HOOKS_DISABLED.inc()
        _log.warning("hook-disabled", tenant=tenant_id, hook=str(hook_id))

    # --- inside

    def _check(self, url: str, events: list[str]) -> None:
        faults = checks.plain("url", url)
        faults += [Fault("events", f"{event[:60]!r} is no event") for event in events if event not in EVENTS]
        checks.refuse(faults, "no webhook was changed")
        if not url.isascii():
            raise Invalid(
                "The URL was refused: it must be plain ASCII.",
                code="OUTGOING_REFUSED",
                faults=[Fault("url", "must be plain ASCII")],
            )
        self._http.check(url, "url")

    async def _held(self, tx: Tx, tenant_id: int, hook_id: UUID) -> tuple[Hook, Kept]:
        row = await tx.fetchrow(S.read_hook, tenant_id, hook_id)
        if row is None:
            raise NotFound("There is no such webhook.", code="HOOK_NOT_FOUND")
        hook = Hook(**{name: row[name] for name in Hook.__struct_fields__})
        return hook, self._open(tenant_id, hook_id, row["sealed"])

    async def _put(self, tx: Tx, tenant_id: int, hook: Hook, kept: Kept) -> None:
        await tx.execute(
            S.change_hook, tenant_id, hook.hook_id, hook.url, hook.events, hook.active, hook.off_reason,
            hook.failing_since, self._sealed(tenant_id, hook.hook_id, kept),
        )  # fmt: skip

    async def _close(self, tx: Tx, tenant_id: int, hook_id: UUID, why: str) -> None:
        await tx.execute(S.close_waiting, tenant_id, hook_id, why, self._clock.now())

    async def _note(
        self, tx: Tx, tenant_id: int, actor: str, action: str, before: Hook | None, after: Hook | None
    ) -> None:
        about = after or before
        assert about is not None
        await self._audit.write(
            tx, tenant_id, actor=actor, action=action, object=f"hook {about.hook_id}", before=before, after=after
        )

    def _sealed(self, tenant_id: int, hook_id: UUID, kept: Kept) -> bytes:
        return self._seal.seal(msgspec.json.encode(kept), f"hook {tenant_id} {hook_id}")

    def _open(self, tenant_id: int, hook_id: UUID, sealed: bytes) -> Kept:
        return msgspec.json.decode(self._seal.open(sealed, f"hook {tenant_id} {hook_id}"), type=Kept)


def _fresh() -> str:
    return "hbk_" + secrets.token_urlsafe(32)


def _delivery(row: Any) -> Delivery:
    return Delivery(**{name: row[name] for name in Delivery.__struct_fields__})


def _named(job: Job) -> tuple[int, UUID]:
    data = job.data if isinstance(job.data, dict) else {}
    try:
        delivery_id = UUID(str(data.get("delivery_id")))
    except ValueError:
        raise Unrecoverable("the job names no delivery") from None
    if job.tenant_id is None:
        raise Unrecoverable("the job names no tenant")
    return job.tenant_id, delivery_id
