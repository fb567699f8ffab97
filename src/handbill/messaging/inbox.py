"""Webhooks: kept before they are answered, worked on afterwards, each counted once however often it comes.

Nothing here depends on order: statuses join in a lattice, of two wishes the later counts,
an inbound message has one id.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra.postgres import Database, PostgresError, Tx
from handbill.kit.clock import Clock, from_ms
from handbill.kit.errors import HandbillError, NotFound
from handbill.kit.telemetry import logs, metrics
from handbill.messaging import webhooks
from handbill.messaging.connections import Connections, Safe
from handbill.messaging.consequences import About, Consequences
from handbill.messaging.errors import Action, by_code
from handbill.messaging.facts import AlertFact, Fact, InboundFact, Odd, PreferenceFact, StatusFact, TemplateFact
from handbill.messaging.hooks_out import Hooks
from handbill.messaging.lattice import Standing, Status, join
from handbill.messaging.model import Account
from handbill.messaging.optout import Words
from handbill.messaging.ports import Contacts
from handbill.messaging.store import S

_log = logs.get("messaging")
BATCH = 100
TRIES = 5
WHATSAPP = "whatsapp"
DEAD_TEMPLATES = frozenset({"REJECTED", "PAUSED", "DISABLED", "PENDING_DELETION", "DELETED"})


class Kept(msgspec.Struct, frozen=True):
    """One kept webhook, to be worked on."""

    tenant_id: int
    connection_id: UUID
    digest: bytes
    facts: tuple[Fact, ...]


class Inbox:
    def __init__(
        self,
        database: Database,
        contacts: Contacts,
        connections: Connections,
        consequences: Consequences,
        hooks: Hooks,
        safe: Safe,
        clock: Clock,
        words: Words | None = None,
    ) -> None:
        self._database = database
        self._contacts = contacts
        self._connections = connections
        self._consequences = consequences
        self._hooks = hooks
        self._safe = safe
        self._clock = clock
        self._words = words or Words()

    # --- at the door

    async def handshake(self, connection_id: UUID, query: Mapping[str, str]) -> str | None:
        """What to repeat to a provider that subscribes with our token; None refuses it."""
        await self._tenant(connection_id)
        return webhooks.handshake(query, self._connections.verify_token(connection_id))

    async def keep(self, connection_id: UUID, body: bytes, signature: str | None) -> bool:
        """True once the webhook is kept, or known already; False when nobody we know signed it."""
        tenant_id = await self._tenant(connection_id)
        credentials = await self._safe.credentials(Account(tenant_id, "0", "0", str(connection_id)))
        if not webhooks.signed([credentials.app_secret or ""], body, signature):
            metrics.WEBHOOKS_KEPT.labels("refused").inc()
            return False
        digest = hashlib.blake2b(connection_id.bytes + body, digest_size=16).digest()
        async with self._database.tenant(tenant_id) as tx:
            new = await tx.fetchval(S.keep_webhook, tenant_id, digest, connection_id, self._clock.now(), body)
        metrics.WEBHOOKS_KEPT.labels("copy" if new is None else "new").inc()
        return True

    async def _tenant(self, connection_id: UUID) -> int:
        async with self._database.lookup() as tx:
            found = await tx.fetchval(S.find_connection, connection_id)
        if found is None:
            raise NotFound("There is no such connection.", code="CONNECTION_NOT_FOUND")
        return int(found)

    # --- afterwards

    async def work(self, limit: int = BATCH) -> int:
        """A batch in one transaction. If one cannot be worked on, each is tried alone, and that one is parked."""
        try:
            return await self._batch(limit)
        except (PostgresError, HandbillError) as error:
            if getattr(error, "busy", False) or type(error).__name__ in ("PostgresAway", "Busy"):
                raise
            _log.warning("webhooks-one-by-one", reason=f"{type(error).__name__}: {error}")
        worked = 0
        for _ in range(limit):
            done = await self._alone()
            if done == 0:
                break
            worked += done
        return worked

    async def _batch(self, limit: int) -> int:
        async with self._database.worker() as tx:
            kept = _parsed(await tx.fetch(S.take_webhooks, limit))
            if not kept:
                return 0
            await self._apply(tx, kept)
            await tx.execute(S.webhooks_done, [one.tenant_id for one in kept], [one.digest for one in kept])
        return len(kept)

    async def _alone(self) -> int:
        async with self._database.worker() as tx:
            kept = _parsed(await tx.fetch(S.take_webhooks, 1))
            if not kept:
                return 0
            (one,) = kept
            try:
                async with tx.savepoint():
                    await self._apply(tx, kept)
                await tx.execute(S.webhooks_done, [one.tenant_id], [one.digest])
            except PostgresError as error:
                state = await tx.fetchval(
                    S.webhook_failed, one.tenant_id, one.digest, f"{type(error).__name__}: {error}"[:500], TRIES
                )
                _log.error("webhook-failed", tenant=one.tenant_id, digest=one.digest.hex(), state=state)
        return 1

    async def _apply(self, tx: Tx, kept: Sequence[Kept]) -> None:
        facts = [(one, fact) for one in kept for fact in one.facts]
        for kind, count in Counter(type(fact).__name__ for _, fact in facts).items():
            metrics.WEBHOOK_FACTS.labels(kind.removesuffix("Fact").lower()).inc(count)
        await self._statuses(tx, [(one.tenant_id, fact) for one, fact in facts if isinstance(fact, StatusFact)])
        for one, fact in facts:
            if isinstance(fact, InboundFact):
                await self._inbound(tx, one, fact)
            elif isinstance(fact, PreferenceFact):
                await self._preference(tx, one, fact)
            elif isinstance(fact, TemplateFact):
                await self._template(tx, one, fact)
            elif isinstance(fact, AlertFact):
                await self._alert(tx, one, fact.key, fact.at_ms, fact.field, fact.event, fact.raw)
            elif isinstance(fact, Odd):
                await self._alert(tx, one, fact.key, 0, fact.field or "odd", fact.reason, fact.raw)

    async def _statuses(self, tx: Tx, facts: Iterable[tuple[int, StatusFact]]) -> None:
        folded: dict[tuple[int, UUID, str], Standing] = {}
        for tenant_id, fact in facts:
            message_id = _uuid(fact.opaque)
            if message_id is None:  # not sent by us
                continue
            key = (tenant_id, message_id, fact.wamid)
            folded[key] = join(folded.get(key, Standing()), fact.standing)
        if not folded:
            return
        keys = sorted(folded)
        # One row per message and name: a message that was sent twice by a person's wish has two names.
        for place in _rounds(keys):
            await self._joined(tx, {key: folded[key] for key in place})

    async def _joined(self, tx: Tx, folded: Mapping[tuple[int, UUID, str], Standing]) -> None:
        now = self._clock.now()
        keys = list(folded)
        marks = [dict(folded[key].marks) for key in keys]

        def times(status: Status) -> list[datetime | None]:
            return [from_ms(found[status].at_ms) if status in found else None for found in marks]

        failed = [found.get(Status.FAILED) for found in marks]
        rows = await tx.fetch(
            S.apply_statuses, [key[0] for key in keys], [key[1] for key in keys], [key[2] for key in keys],
            times(Status.SENT), times(Status.FAILED), times(Status.DELIVERED), times(Status.READ),
            [mark.code if mark else None for mark in failed], [mark.details if mark else None for mark in failed], now,
        )  # fmt: skip
        arrived = sorted(
            {
                (row["tenant_id"], row["channel"], row["address"])
                for row in rows
                if row["state"] in ("delivered", "read")
            }
        )
        if arrived:
            tenants, channels, addresses = zip(*arrived, strict=True)
            await tx.execute(S.arrived, list(tenants), list(channels), list(addresses))
        for row in rows:
            if row["newly"] and row["state"] == "failed" and row["error_code"]:
                await self._failed(tx, row)

    async def _failed(self, tx: Tx, row: Any) -> None:
        """Failed after it was taken: final for this message. What the code says about others holds all the same."""
        code, hits = row["error_code"], 1
        if code == 131026:
            hits = int(await tx.fetchval(
                S.undeliverable_hit, row["tenant_id"], row["channel"], row["address"], self._clock.now()
            ))  # fmt: skip
        verdict = by_code(code, hits=hits, attempt=row["attempts"])
        about = About(row["tenant_id"], row["campaign_id"], row["number_id"], row["channel"], row["address"], code)
        if verdict.action in (Action.PAUSE_NUMBER, Action.PAUSE_CAMPAIGN, Action.PAUSE_TENANT, Action.SUPPRESS):
            await self._consequences.apply(tx, verdict, about)

    async def _inbound(self, tx: Tx, one: Kept, fact: InboundFact) -> None:
        address = self._contacts.address(WHATSAPP, fact.sender)
        heard = self._words.hear(fact.text) or (self._words.hear(fact.payload) if fact.payload else None)
        wish = heard.wish if heard else None
        at = from_ms(fact.at_ms) if fact.at_ms else self._clock.now()
        new = await tx.fetchval(
            S.keep_inbound, one.tenant_id, fact.wamid, one.connection_id, fact.number_id, address, fact.name, at,
            fact.kind, fact.text, fact.payload, fact.media_id, fact.reply_to, wish,
        )  # fmt: skip
        if new is None or heard is None:
            return
        later = await tx.fetchval(S.latest_wish, one.tenant_id, address, at)
        if later is None:
            await self._wished(tx, one.tenant_id, address, wish or "", f"wrote {heard.word!r}", fact.wamid)

    async def _preference(self, tx: Tx, one: Kept, fact: PreferenceFact) -> None:
        address = self._contacts.address(WHATSAPP, fact.address)
        at = from_ms(fact.at_ms) if fact.at_ms else self._clock.now()
        kept = await tx.fetchval(S.keep_preference, one.tenant_id, WHATSAPP, address, fact.wish, at)
        if kept is not None:
            wish = "stop" if fact.wish == "stop" else "start"
            await self._wished(tx, one.tenant_id, address, wish, "the provider's own button", fact.key)

    async def _wished(self, tx: Tx, tenant_id: int, address: str, wish: str, source: str, proof: str) -> None:
        if wish == "stop":
            await self._contacts.opt_out(tx, tenant_id, WHATSAPP, address, source=source, proof=proof)
        else:
            await self._contacts.opt_in(tx, tenant_id, WHATSAPP, address, source=source, proof=proof)

    async def _template(self, tx: Tx, one: Kept, fact: TemplateFact) -> None:
        await self._alert(tx, one, fact.key, fact.at_ms, fact.field, f"{fact.name} {fact.event}", fact.raw)
        if fact.field != "message_template_status_update":
            return
        at = from_ms(fact.at_ms) if fact.at_ms else self._clock.now()
        state = fact.event if fact.event != "FLAGGED" else "PAUSED"
        changed = await tx.fetch(
            S.template_said, one.tenant_id, fact.waba_id, fact.name, fact.language, state, fact.reason[:500], at
        )
        if state not in DEAD_TEMPLATES:
            return
        for row in changed:
            told = {"name": row["name"], "language": row["language"], "state": state, "reason": fact.reason}
            await self._hooks.announce(tx, one.tenant_id, "template.rejected", told)
            used = await tx.fetch(
                S.campaigns_of_template, one.tenant_id, row["connection_id"], row["name"], row["language"]
            )
            for campaign in used:
                reason = f"template_{state.lower()}"
                await self._consequences.pause_campaign(tx, one.tenant_id, campaign["campaign_id"], reason)

    async def _alert(self, tx: Tx, one: Kept, key: str, at_ms: int, field: str, event: str, raw: bytes) -> None:
        at = from_ms(at_ms) if at_ms else self._clock.now()
        await tx.fetchval(
            S.keep_alert, one.tenant_id, key, one.connection_id, at, field[:100], event[:500], raw[:65536]
        )


def _parsed(rows: Iterable[Any]) -> list[Kept]:
    return [Kept(row["tenant_id"], row["connection_id"], row["digest"], webhooks.parse(row["body"])) for row in rows]


def _uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text is not None and len(text) == 36 else None
    except ValueError:
        return None


def _rounds(keys: Sequence[tuple[int, UUID, str]]) -> list[list[tuple[int, UUID, str]]]:
    """Groups in which each message stands once: a statement changes a row once only."""
    rounds: list[list[tuple[int, UUID, str]]] = []
    seen: Counter[tuple[int, UUID]] = Counter()
    for key in keys:
        place = seen[key[:2]]
        seen[key[:2]] += 1
        if place == len(rounds):
            rounds.append([])
        rounds[place].append(key)
    return rounds
