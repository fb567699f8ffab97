"""The provider's webhooks: proved, kept, answered at once; worked on afterwards, each once, the poison apart.

Kept before it is answered: after a 200 nothing is lost, whoever dies. Requests that come together share a commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal
from uuid import UUID

import msgspec

from handbill.infra.postgres import Database
from handbill.kit import pages
from handbill.kit.batcher import Batcher, BatchLimits
from handbill.kit.bounds import CONNECTIONS
from handbill.kit.caches import LruCache, TtlCache
from handbill.kit.clock import Clock, from_ms, to_ms
from handbill.kit.errors import Broken, Busy, Fault, Forbidden, Invalid, NotFound, TooLarge
from handbill.kit.pages import Page
from handbill.kit.telemetry import logs, metrics
from handbill.messaging import checks, webhooks
from handbill.messaging.hearing import Hearing, Kept
from handbill.messaging.links import Safe
from handbill.messaging.model import Account
from handbill.messaging.store import S
from handbill.tenants.service import Audit

_log = logs.get("messaging")
LARGEST = 3 * 1024 * 1024
"""What the provider sends at most in one request."""
WAITING = BatchLimits(waiting_items=1_000, waiting_bytes=32 << 20, batch_items=500, batch_bytes=8 << 20)
"""Webhooks of one tenant that wait for their commit. Beyond it the provider is told to send them again."""
AT_ONCE = 100
MAX_BATCH_BYTES = 8 << 20
"""A batch of work ends with the webhook that reaches it."""
TRIES = 5
FRESH_S = 30.0
RENEW_S = 1.0
ABSENT_S = 1.0
"""A connection that is not there is not looked for again at once, however often somebody knocks."""
NOBODY = 0
Verify = Callable[[UUID], str]


class Inbound(msgspec.Struct, frozen=True):
    """What a person wrote. `wish`: stop or start, where the whole message is one of the words."""

    wamid: str
    """WhatsApp's id of the message."""
    connection_id: UUID
    number_id: str
    """The provider's id of your number that it was sent to."""
    address: str
    """The number of the person who wrote, with its country code."""
    name: str
    """The person's name as WhatsApp shows it."""
    at: datetime
    """When the person wrote it."""
    kind: str
    """The type of message at the provider, e.g. text, button or image."""
    text: str
    """What the person wrote, or what the chosen button or list row says."""
    payload: str
    """What the button carries along, as the template or message set it."""
    media_id: str | None
    """The provider's id of the picture, sound or file; null without one."""
    reply_to: str | None
    """WhatsApp's id of the message that it answers; null if none."""
    wish: Literal["stop", "start"] | None
    """Whether the whole message asks to stop or to start messages; null if neither."""


class InboxFilter(msgspec.Struct, frozen=True):
    address: str | None = None
    number_id: str | None = None
    wishes: bool = False
    """Only messages that ask to stop or to start."""
    since: datetime | None = None


class Alert(msgspec.Struct, frozen=True):
    """What the provider said about an account, a number or a template, or what nobody understood."""

    alert_key: str
    """Names the notice: the same notice sent again is one row."""
    connection_id: UUID
    at: datetime
    """When the provider sent it."""
    field: str
    """The provider's name of what it is about."""
    event: str
    """What happened, in the provider's words."""
    body: str
    """The notice as the provider sent it."""


class Parked(msgspec.Struct, frozen=True):
    """A webhook that could not be worked on. Its bytes are kept."""

    digest: str
    """Names the webhook: a hash of its connection and body."""
    connection_id: UUID
    received_at: datetime
    """When it was received."""
    tries: int
    """How often it was worked on so far."""
    error: str | None
    size: int
    """The size of its body in bytes."""


class Replayed(msgspec.Struct, frozen=True):
    replayed: int
    """How many webhooks were tried again."""


class Incoming:
    def __init__(
        self,
        database: Database,
        audit: Audit,
        safe: Safe,
        verify_token: Verify,
        hearing: Hearing,
        clock: Clock,
        *,
        tries: int = TRIES,
    ) -> None:
        self._database = database
        self._audit = audit
        self._safe = safe
        self._verify_token = verify_token
        self._hearing = hearing
        self._clock = clock
        self._tries = tries
        self._homes: LruCache[UUID, tuple[float, int]] = LruCache(CONNECTIONS)
        self._renewed: TtlCache[UUID, bool] = TtlCache(CONNECTIONS, RENEW_S, clock.monotonic)
        self._batchers: dict[int, Batcher[tuple[bytes, UUID, bytes], bool]] = {}

    # --- the door

    async def handshake(self, connection_id: UUID, query: Mapping[str, str]) -> str:
        """The provider subscribes: the challenge, if it knows the connection's verify token."""
        await self._home(connection_id)
        challenge = webhooks.handshake(query, self._verify_token(connection_id))
        if challenge is None:
            metrics.WEBHOOKS_KEPT.labels("refused").inc()
            raise Forbidden("The verify token is not this connection's.", code="WEBHOOK_VERIFY_TOKEN")
        return challenge

    async def keep(self, connection_id: UUID, body: bytes, signature: str | None) -> bool:
        """True when it was new. It is durable when this returns."""
        if len(body) > LARGEST:
            raise TooLarge(f"A webhook has at most {LARGEST} bytes; nothing was kept.")
        tenant_id = await self._home(connection_id)
        if not await self._is_signed(tenant_id, connection_id, body, signature):
            metrics.WEBHOOKS_KEPT.labels("refused").inc()
            raise Forbidden(
                "The signature is not made with this connection's app secret; nothing was kept.",
                code="WEBHOOK_SIGNATURE",
            )
        digest = hashlib.blake2b(connection_id.bytes + body, digest_size=32).digest()
        batcher = self._batchers.get(tenant_id)
        if batcher is None:
            batcher = self._batchers[tenant_id] = Batcher(partial(self._write, tenant_id), _size_of, WAITING)
        try:
            new = await batcher.submit((digest, connection_id, body))
        finally:
            if batcher.is_idle and self._batchers.get(tenant_id) is batcher:
                del self._batchers[tenant_id]
        metrics.WEBHOOKS_KEPT.labels("new" if new else "copy").inc()
        return new

    async def _write(self, tenant_id: int, asked: Sequence[tuple[bytes, UUID, bytes]]) -> list[bool]:
        unique = {digest: (connection_id, body) for digest, connection_id, body in asked}
        digests = sorted(unique)
        async with self._database.tenant(tenant_id) as tx:
            rows = await tx.fetch(
                S.keep_webhooks, tenant_id, self._clock.now(), digests, [unique[digest][0] for digest in digests],
                [unique[digest][1] for digest in digests],
            )  # fmt: skip
        new = {bytes(row["digest"]) for row in rows}
        answers = []
        for digest, _, _ in asked:
            answers.append(digest in new)
            new.discard(digest)
        return answers

    async def _home(self, connection_id: UUID) -> int:
        """Whose connection it is, remembered for a short while."""
        now = self._clock.monotonic()
        known: tuple[float, int] | None = self._homes.get(connection_id)
        if known is None or now - known[0] >= (FRESH_S if known[1] else ABSENT_S):
            async with self._database.lookup() as tx:
                known = (now, await tx.fetchval(S.find_connection, connection_id) or NOBODY)
            self._homes[connection_id] = known
        if known[1] == NOBODY:
            raise NotFound("There is no such connection.", code="CONNECTION_NOT_FOUND")
        return known[1]

    async def _is_signed(self, tenant_id: int, connection_id: UUID, body: bytes, signature: str | None) -> bool:
        """A secret changed a moment ago in another process: looked up again, at most once a second."""
        account = Account(tenant_id, "", "", str(connection_id))
        if webhooks.signed(await self._secrets(account), body, signature):
            return True
        if signature is None or connection_id in self._renewed:
            return False
        self._renewed[connection_id] = True
        self._safe.forget(tenant_id, account.secret)
        return webhooks.signed(await self._secrets(account), body, signature)

    async def _secrets(self, account: Account) -> list[str]:
        """The app's secret, and the one before it while it is being changed."""
        kept = await self._safe.credentials(account)
        old = kept.old_app_secret if self._clock.now_ms() < kept.old_until_ms else None
        return [secret for secret in (kept.app_secret, old) if secret]

    # --- the work behind it

    async def work(self, limit: int = AT_ONCE) -> int:
        """One batch of what waits, of all tenants. When something in it cannot be worked on, each is tried alone."""
        rows: list[Kept] = []
        try:
            async with self._database.worker() as tx:
                rows = [_kept(row) for row in await tx.fetch(S.take_webhooks, limit, MAX_BATCH_BYTES)]
                if not rows:
                    return 0
                await self._hearing.hear(tx, rows)
                await tx.execute(S.webhooks_done, [row.tenant_id for row in rows], [row.digest for row in rows])
        except (Busy, Broken):
            raise
        except Exception as error:  # noqa: BLE001 - one webhook's fault must not stop its neighbours
            _log.warning("webhooks-apart", count=len(rows), error=type(error).__name__)
            for row in rows:
                await self._alone(row)
        return len(rows)

    async def _alone(self, row: Kept) -> None:
        try:
            async with self._database.worker() as tx:
                found = await tx.fetchrow(S.take_webhook, row.tenant_id, row.digest)
                if found is not None:
                    await self._hearing.hear(tx, [_kept(found)])
                    await tx.execute(S.webhooks_done, [row.tenant_id], [row.digest])
        except (Busy, Broken):
            raise
        except Exception as error:  # noqa: BLE001 - parked with its bytes after a few tries
            why = f"{type(error).__name__}: {error}"[:500].replace("\0", "").encode("utf-8", "replace").decode()
            async with self._database.worker() as tx:
                state = await tx.fetchval(S.webhook_failed, row.tenant_id, row.digest, why, self._tries)
            if state == "parked":
                metrics.WEBHOOKS_PARKED.inc()
            name = type(error).__name__  # the whole of it may quote a person's words: it stays in the tenant's row
            _log.error("webhook-failed", tenant=row.tenant_id, digest=row.digest.hex(), state=state, error=name)

    # --- for people to read

    async def inbox(self, tenant_id: int, cursor: str | None, limit: int, chosen: InboxFilter) -> Page[Inbound]:
        """What people wrote, the newest first."""
        checks.refuse(checks.plain("address", chosen.address) + checks.plain("number_id", chosen.number_id))
        if chosen.since is not None and chosen.since.tzinfo is None:
            raise Invalid("The time has no zone.", faults=[Fault("since", "needs its zone")])
        at, wamid = _position(cursor)
        async with self._database.tenant(tenant_id) as tx:
            rows = await tx.fetch(
                S.list_inbound, tenant_id, chosen.address, at, wamid, limit + 1, chosen.number_id, chosen.wishes,
                chosen.since,
            )  # fmt: skip
        return pages.page([Inbound(**dict(row)) for row in rows], limit, lambda row: (_micros(row.at), row.wamid))

    async def alerts(self, tenant_id: int, cursor: str | None, limit: int) -> Page[Alert]:
        at, key = _position(cursor)
        async with self._database.tenant(tenant_id) as tx:
            rows = await tx.fetch(S.list_alerts, tenant_id, at, key, limit + 1)
        found = [Alert(**{**dict(row), "body": bytes(row["body"]).decode(errors="replace")}) for row in rows]
        return pages.page(found, limit, lambda row: (_micros(row.at), row.alert_key))

    async def parked(self, tenant_id: int, cursor: str | None, limit: int) -> Page[Parked]:
        at, text = _position(cursor)
        try:
            digest = bytes.fromhex(text)
        except ValueError:
            raise _bad_cursor() from None
        async with self._database.tenant(tenant_id) as tx:
            rows = await tx.fetch(S.list_webhooks, tenant_id, "parked", at, digest, limit + 1)
        found = [Parked(**{**dict(row), "digest": bytes(row["digest"]).hex()}) for row in rows]
        return pages.page(found, limit, lambda row: (_micros(row.received_at), row.digest))

    async def replay(self, tenant_id: int, *, actor: str) -> Replayed:
        """Everything parked is tried again from the beginning."""
        async with self._database.tenant(tenant_id) as tx:
            count = await tx.execute(S.replay_parked, tenant_id)
            await self._audit.write(
                tx, tenant_id, actor=actor, action="webhooks.replay", object="webhook inbox", after={"count": count}
            )
        return Replayed(count)


def _size_of(webhook: tuple[bytes, UUID, bytes]) -> int:
    return 500 + len(webhook[2])


def _kept(row: Any) -> Kept:
    return Kept(row["tenant_id"], bytes(row["digest"]), row["connection_id"], row["received_at"], bytes(row["body"]))


def _micros(at: datetime) -> int:
    return to_ms(at) * 1000 + at.microsecond % 1000


def _position(cursor: str | None) -> tuple[datetime | None, str]:
    """(time, key) of the last row; times have microseconds, and every one counts."""
    if cursor is None:
        return None, ""
    micros, key = pages.decode(cursor, [int, str])
    if not isinstance(micros, int) or not 0 <= micros < 253_402_300_799_000_000 or checks.plain("cursor", str(key)):
        raise _bad_cursor()
    return from_ms(micros // 1000).replace(microsecond=micros % 1_000_000), str(key)


def _bad_cursor() -> Invalid:
    return Invalid(
        "The cursor is not one of ours; start again without it.",
        code="BAD_CURSOR",
        faults=[Fault("cursor", "not a cursor of this list")],
    )
