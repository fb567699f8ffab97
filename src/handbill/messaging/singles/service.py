"""Single messages: accept one request under its key, once; show what became of it.

Accepted means kept: both rows and the job that sends them are committed before the caller has an answer. Then the row
goes the way of every message (docs/states/message.md). A request that must not be sent is refused before it is kept.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from uuid import UUID

import msgspec

from handbill.infra.postgres import Database, Tx
from handbill.kit import pages
from handbill.kit.clock import Clock
from handbill.kit.errors import Conflict, Fault, NotFound, Throttled, Unprocessable
from handbill.kit.ids import Ids
from handbill.kit.pages import Page
from handbill.messaging import checks
from handbill.messaging.limits import window_open
from handbill.messaging.plan import MessageState
from handbill.messaging.ports import Contacts, Recipient
from handbill.messaging.single_outcomes import SingleOutcomes
from handbill.messaging.singles import store
from handbill.messaging.singles.checks import check_request, check_template, digest_of, no_sender, refused
from handbill.messaging.singles.model import (
    NewMessage,
    NewReply,
    Purpose,
    SingleMessage,
    Source,
    VerifiedSingles,
)
from handbill.messaging.singles.sending import SingleDispatcher
from handbill.messaging.store import S, read_template
from handbill.tenants.service import Audit

CHANNEL = "whatsapp"
RETRY_AFTER_S = 10.0
BY_PEOPLE = ("inbox", "cli")
"""What the audit log has: of programs each message says itself who asked for it."""


class Request(msgspec.Struct, frozen=True):
    """Who asks, how, and under which key."""

    key: str
    source: Source
    actor: str
    keep_refused: bool = False
    """For a producer that reads no answer: what must not be sent is kept as skipped, with its reason."""


class SingleMessages:
    """Accepts and shows single messages. `waiting`: how many of a tenant may be without an outcome."""

    def __init__(
        self,
        database: Database,
        audit: Audit,
        contacts: Contacts,
        dispatcher: SingleDispatcher,
        outcomes: SingleOutcomes,
        clock: Clock,
        ids: Ids,
        waiting: int,
    ) -> None:
        self._database = database
        self._audit = audit
        self._contacts = contacts
        self._dispatcher = dispatcher
        self._outcomes = outcomes
        self._clock = clock
        self._ids = ids
        self._waiting = waiting

    # --- accepting

    async def send(self, tenant_id: int, new: NewMessage, request: Request) -> SingleMessage:
        """Keep the message and queue it; the same request again is answered with the message that it made.

        Raises Invalid (400) for a request that cannot be read, Unprocessable (422) for names that are not there,
        Conflict (409) for what must not be sent or a key of another message, Throttled (429) when too many wait.
        """
        check_request(new)
        digest = digest_of(new)
        async with self._database.tenant(tenant_id) as tx:
            if (message_id := await self._repeated(tx, tenant_id, request.key, digest)) is not None:
                return await self._shown(tx, tenant_id, message_id)
        person = await self._person(tenant_id, new)
        async with self._database.tenant(tenant_id) as tx:
            sender = await self._sender(tx, tenant_id, new, person.address)
            purpose = await self._purpose(tx, tenant_id, new, sender.connection_id)
            refusal = await self._refusal(tx, tenant_id, new, person, sender, purpose)
            if refusal is not None and not request.keep_refused:
                raise refused(refusal)
            await self._check_waiting(tx, tenant_id)
            now = self._clock.now()
            one = store.Accept(
                message_id=self._ids.new(), key=request.key, digest=digest, channel=CHANNEL, address=person.address,
                contact_id=person.contact_id, connection_id=sender.connection_id, number_id=sender.number_id, new=new,
                purpose=purpose, source=request.source, actor=request.actor, refusal=refusal,
                expires_at=now + timedelta(seconds=new.ttl_s),
            )  # fmt: skip
            if await store.insert_single(tx, tenant_id, one, now):
                await self._accepted(tx, tenant_id, one)
                return await self._shown(tx, tenant_id, one.message_id)
        async with self._database.tenant(tenant_id) as tx:  # the same key at the same moment: the other one is kept
            message_id = await self._repeated(tx, tenant_id, request.key, digest)
            assert message_id is not None
            return await self._shown(tx, tenant_id, message_id)

    async def reply(self, tenant_id: int, new: NewReply, request: Request) -> SingleMessage:
        """Answer a message of the inbox: to its sender, from the number that it came to."""
        checks.refuse(checks.plain("wamid", new.wamid), "nothing was sent")
        async with self._database.tenant(tenant_id) as tx:
            row = await tx.fetchrow(S.inbound_sender, tenant_id, new.wamid)
        if row is None:
            raise Unprocessable(
                "The inbox has no such message; nothing was sent.", code="INBOUND_UNKNOWN",
                faults=[Fault("wamid", "is no message of the inbox")],
            )  # fmt: skip
        message = NewMessage(
            to=row["address"], text=new.text, template=new.template, connection_id=row["connection_id"],
            number_id=row["number_id"], reply_to=new.wamid if new.quote else None, ttl_s=new.ttl_s,
        )  # fmt: skip
        return await self.send(tenant_id, message, request)

    async def _accepted(self, tx: Tx, tenant_id: int, one: store.Accept) -> None:
        """What belongs to an accepted message, in the transaction that keeps it."""
        if one.refusal is None:
            await self._dispatcher.queue(tx, tenant_id, one.number_id)
        else:
            await self._outcomes.report(tx, [(tenant_id, one.message_id)])
        if one.source in BY_PEOPLE:
            await self._audit.write(
                tx, tenant_id, actor=one.actor, action="message.send", object=f"message {one.message_id}",
                after={"purpose": one.purpose, "source": one.source},
            )  # fmt: skip

    async def _repeated(self, tx: Tx, tenant_id: int, key: str, digest: bytes) -> UUID | None:
        row = await tx.fetchrow(S.single_by_key, tenant_id, key)
        if row is None:
            return None
        if row["digest"] != digest:
            raise Conflict(
                "This idempotency key belongs to another message; nothing was sent. Choose a new key.",
                code="IDEMPOTENCY_KEY_REUSED", faults=[Fault("idempotency_key", "belongs to another message")],
            )  # fmt: skip
        found: UUID = row["message_id"]
        return found

    async def _person(self, tenant_id: int, new: NewMessage) -> Recipient:
        found = await self._contacts.recipient(tenant_id, CHANNEL, address=new.to, contact_id=new.contact_id)
        if found is None:
            raise Unprocessable(
                "There is no such contact with a number on this channel; nothing was sent.", code="CONTACT_UNKNOWN",
                faults=[Fault("contact_id", "is no contact with a number on this channel")],
            )  # fmt: skip
        return found

    async def _sender(self, tx: Tx, tenant_id: int, new: NewMessage, address: str) -> store.SenderRow:
        """The number that the person wrote to last; without one, always the same of the connection's numbers."""
        rows = await store.senders_for(tx, tenant_id, address, new.connection_id, new.number_id)
        wrote = [row for row in rows if row.wrote_at is not None]
        if wrote:
            return max(wrote, key=lambda row: (row.wrote_at, row.number_id))
        if not rows:
            field = "number_id" if new.number_id is not None else "connection_id"
            raise no_sender(field, "names nothing of yours that could send")
        if len({row.connection_id for row in rows}) > 1:
            raise no_sender("connection_id", "is needed: there are several connections")
        place = int.from_bytes(hashlib.blake2b(address.encode(), digest_size=8).digest(), "big")
        return rows[place % len(rows)]

    async def _purpose(self, tx: Tx, tenant_id: int, new: NewMessage, connection_id: UUID) -> Purpose:
        """What the template's category says; raises where template or values are not there."""
        if new.template is None:
            return new.purpose or "utility"
        used = new.template
        template = await read_template(tx, tenant_id, connection_id, used.name, used.language)
        if template is None:
            raise Unprocessable(
                f"The connection has no template {used.name} in {used.language}; nothing was sent.",
                code="TEMPLATE_UNKNOWN", faults=[Fault("template.name", f"no template {used.name} in {used.language}")],
            )  # fmt: skip
        check_template(template, used)
        if template.category.upper() != "MARKETING":
            return new.purpose or "utility"
        if new.purpose == "utility":
            raise Unprocessable(
                "A template of the category MARKETING is marketing; nothing was sent.", code="PURPOSE_MARKETING",
                faults=[Fault("purpose", "is marketing for this template")],
            )  # fmt: skip
        return "marketing"

    async def _refusal(
        self, tx: Tx, tenant_id: int, new: NewMessage, person: Recipient, sender: store.SenderRow, purpose: Purpose
    ) -> str | None:
        """Why it must not be sent now; the claim asks the same again."""
        now = self._clock.now()
        reason: str | None = await tx.fetchval(
            S.may_not_send_single, tenant_id, CHANNEL, person.address, person.contact_id, purpose, now
        )
        if reason is None and purpose == "marketing" and person.contact_id is None:
            reason = "consent_missing"
        if reason is None and new.text is not None:
            wrote_ms = None if sender.wrote_at is None else int(sender.wrote_at.timestamp() * 1000)
            reason = None if window_open(wrote_ms, self._clock.now_ms()) else "window_closed"
        return reason

    async def _check_waiting(self, tx: Tx, tenant_id: int) -> None:
        count = await tx.fetchval(S.count_open_singles, tenant_id, self._waiting)
        if count >= self._waiting:
            raise Throttled(
                f"{self._waiting} single messages wait already; nothing was kept. Send it again later.",
                code="MESSAGES_WAITING", retry_after=RETRY_AFTER_S,
            )  # fmt: skip

    # --- looking

    async def read(self, tenant_id: int, message_id: UUID) -> SingleMessage:
        async with self._database.tenant(tenant_id) as tx:
            return await self._shown(tx, tenant_id, message_id)

    async def list(
        self, tenant_id: int, cursor: str | None, limit: int, *, state: MessageState | None = None,
        key: str | None = None, address: str | None = None,
    ) -> Page[SingleMessage]:  # fmt: skip
        """The newest first."""
        checks.refuse(checks.plain("idempotency_key", key) + checks.plain("to", address), "nothing was read")
        async with self._database.tenant(tenant_id) as tx:
            rows = await store.list_singles(tx, tenant_id, checks.after_id(cursor), limit + 1, state, key, address)
        return pages.page(rows, limit, lambda row: (str(row.message_id),))

    async def verify(self, tenant_id: int) -> VerifiedSingles:
        """Each accepted key has exactly one message, and each that was not sent a reason: counted from the rows."""
        async with self._database.tenant(tenant_id) as tx:
            row = await tx.fetchrow(S.verify_singles, tenant_id)
        assert row is not None
        words = {
            "without_message": "keys have no message",
            "without_reason": "messages were not sent and do not say why",
            "without_attempt": "messages are sent without an attempt",
            "skipped_though_sent": "messages are skipped and were sent",
        }
        faults = [f"{row[name]} {text}" for name, text in words.items() if row[name]]
        figures = {name: row[name] for name in ("messages", "sent", "failed", "skipped", "unknown", "open")}
        if sum(figures.values()) != 2 * figures["messages"]:
            faults.append("the outcomes do not add up to the messages")
        return VerifiedSingles(**figures, holds=not faults, faults=faults)

    async def _shown(self, tx: Tx, tenant_id: int, message_id: UUID) -> SingleMessage:
        found = await store.read_single(tx, tenant_id, message_id)
        if found is None:
            raise NotFound("There is no such message.", code="MESSAGE_NOT_FOUND")
        return found
