"""What webhooks say becomes rows, in one transaction with the mark that they were heard.

Every effect is kept by its own key, so that copies change nothing; statuses join (lattice.py), wishes and template
states are decided by the time they carry. So neither the order nor the number of copies matters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra.postgres import Tx
from handbill.jobs.service import Outbox
from handbill.kit.clock import Clock, from_ms
from handbill.kit.errors import Invalid
from handbill.kit.telemetry import metrics
from handbill.messaging import errors, lattice
from handbill.messaging.consequences import About, Consequences
from handbill.messaging.facts import AlertFact, Fact, InboundFact, Odd, PreferenceFact, StatusFact, TemplateFact
from handbill.messaging.hooks_out import QUEUE, Hooks
from handbill.messaging.lattice import Standing, Status
from handbill.messaging.opt_out_words import DEFAULTS, OptOutWordService
from handbill.messaging.ports import Contacts
from handbill.messaging.single_outcomes import SingleOutcomes
from handbill.messaging.store import S
from handbill.messaging.webhooks import parse

CHANNEL = "whatsapp"
THROTTLED, UNDELIVERABLE = 130429, 131026
GOOD = ("APPROVED", "PENDING", "IN_APPEAL")
"""A template in one of these is not at fault."""
TEMPLATE_STATES = {
    "APPROVED": "APPROVED", "REINSTATED": "APPROVED", "PENDING": "PENDING", "IN_APPEAL": "IN_APPEAL",
    "REJECTED": "REJECTED", "PAUSED": "PAUSED", "DISABLED": "DISABLED", "PENDING_DELETION": "PENDING_DELETION",
    "DELETED": "DELETED",
}  # fmt: skip
"""Events that say how a template stands. Others (FLAGGED...) are kept for a person and change nothing."""
_LIMITS = frozenset({"phone_number_quality_update", "business_capability_update", "account_update"})
"""After these the numbers' limits may have changed: they are asked for again."""
DETAILS = 500
LAST_MS = 253_402_300_799_000
"""The end of the year 9999: no calendar of ours goes further."""


class Kept(msgspec.Struct, frozen=True):
    """One webhook as it was kept."""

    tenant_id: int
    digest: bytes
    connection_id: UUID
    received_at: datetime
    body: bytes


class Wish(msgspec.Struct, frozen=True, order=True):
    """A person's yes or no. In the order of time; of two at once the no comes last and stands."""

    tenant_id: int
    address: str
    at: datetime
    wish: str
    source: str
    proof: str


class Named(msgspec.Struct, frozen=True):
    """Which send of which message a status is about."""

    tenant_id: int
    message_id: UUID
    wamid: str


Told = tuple[Kept, Any]


class Hearing:
    def __init__(
        self,
        contacts: Contacts,
        consequences: Consequences,
        hooks: Hooks,
        outbox: Outbox,
        outcomes: SingleOutcomes,
        clock: Clock,
        words: OptOutWordService,
        pause_after: int,
    ) -> None:
        self._contacts = contacts
        self._consequences = consequences
        self._hooks = hooks
        self._outbox = outbox
        self._outcomes = outcomes
        self._clock = clock
        self._words = words
        self._pause_after = pause_after

    async def hear(self, tx: Tx, kept: Sequence[Kept]) -> None:
        """All facts of all of these, in the caller's transaction, which sees every tenant."""
        told: dict[type[Any], dict[tuple[int, str], Told]] = {}
        for one in kept:
            for fact in parse(one.body):
                told.setdefault(type(fact), {}).setdefault((one.tenant_id, fact.key), (one, fact))
        for kind, facts in told.items():
            metrics.WEBHOOK_FACTS.labels(kind.__name__.removesuffix("Fact").lower()).inc(len(facts))
        await self._statuses(tx, told.get(StatusFact, {}).values())
        wishes = [self._pressed(*one) for one in told.get(PreferenceFact, {}).values()]
        wishes += await self._inbound(tx, told.get(InboundFact, {}).values())
        await self._wishes(tx, wishes)
        await self._templates(tx, told.get(TemplateFact, {}).values())
        await self._alerts(tx, told.get(AlertFact, {}).values())
        for one, odd in _sorted(told.get(Odd, {}).values()):
            await self._keep_alert(tx, one, odd, f"odd:{odd.field}"[:100], odd.reason[:300])

    # --- statuses

    async def _statuses(self, tx: Tx, told: Iterable[Told]) -> None:
        standings: dict[Named, Standing] = {}
        for name, fact in await self._named(tx, list(told)):
            standings[name] = lattice.join(standings.get(name, lattice.NOTHING), fact.standing)
        rounds: list[dict[tuple[int, UUID], Named]] = []
        for name in sorted(standings, key=lambda name: (name.tenant_id, name.message_id, name.wamid)):
            key = (name.tenant_id, name.message_id)  # one send a round: a message may have been sent again by hand
            home = next((one for one in rounds if key not in one), None)
            if home is None:
                home = {}
                rounds.append(home)
            home[key] = name
        for one in rounds:
            await self._apply(tx, [(name, standings[name]) for name in one.values()])

    async def _named(self, tx: Tx, told: list[Told]) -> list[tuple[Named, StatusFact]]:
        """By our own note; by the provider's name and the address where the note is missing or not ours."""
        found: list[tuple[Named, StatusFact]] = []
        bare: list[tuple[int, str, StatusFact]] = []
        for one, fact in told:
            message_id = _uuid(fact.opaque)
            if message_id is not None:
                found.append((Named(one.tenant_id, message_id, fact.wamid), fact))
            elif fact.address:
                bare.append((one.tenant_id, self._address(fact.address), fact))
        if bare:
            rows = await tx.fetch(
                S.find_by_wamid, [tenant for tenant, _, _ in bare], [CHANNEL] * len(bare),
                [address for _, address, _ in bare], [fact.wamid for _, _, fact in bare],
            )  # fmt: skip
            known = {(row["tenant_id"], row["wamid"]): row["message_id"] for row in rows}
            for tenant_id, _, fact in bare:
                message_id = known.get((tenant_id, fact.wamid))
                if message_id is not None:
                    found.append((Named(tenant_id, message_id, fact.wamid), fact))
        return found

    async def _apply(self, tx: Tx, said: Sequence[tuple[Named, Standing]]) -> None:
        marks = [dict(standing.marks) for _, standing in said]
        failed = [one.get(Status.FAILED) for one in marks]
        times = [
            [_when(one[status].at_ms) if status in one else None for one in marks]
            for status in (Status.SENT, Status.FAILED, Status.DELIVERED, Status.READ)
        ]
        rows = await tx.fetch(
            S.apply_statuses, [name.tenant_id for name, _ in said], [name.message_id for name, _ in said],
            [name.wamid for name, _ in said], *times, [mark and mark.code for mark in failed],
            [mark and mark.details[:DETAILS] for mark in failed], self._clock.now(),
        )  # fmt: skip
        singles = [(row["tenant_id"], row["message_id"]) for row in rows if row["campaign_id"] is None]
        await self._outcomes.report(tx, singles)
        arrived = [row for row in rows if row["state"] in ("delivered", "read")]
        if arrived:
            await tx.execute(
                S.arrived, [row["tenant_id"] for row in arrived], [row["channel"] for row in arrived],
                [row["address"] for row in arrived],
            )  # fmt: skip
        failed_now = [row for row in rows if row["fresh"] and row["state"] == "failed"]
        for row in sorted(failed_now, key=lambda row: (row["tenant_id"], row["message_id"])):
            await self._failed(tx, row)
        await self._count_failures_in_row(tx, arrived, failed_now)

    async def _failed(self, tx: Tx, row: Any) -> None:
        """What a failure means for others. The message itself is not sent again by a machine: it was taken once."""
        code, tenant_id = row["error_code"] or 0, row["tenant_id"]
        hits = 1
        if code == UNDELIVERABLE:
            hits = await tx.fetchval(S.undeliverable_hit, tenant_id, row["channel"], row["address"], self._clock.now())
        elif code == THROTTLED:
            hits = await tx.fetchval(S.throttled, tenant_id, row["number_id"], True) or 1
        about = About(tenant_id, row["campaign_id"], row["number_id"], row["channel"], row["address"], code)
        await self._consequences.apply(tx, errors.by_code(code, hits=hits), about)

    async def _count_failures_in_row(self, tx: Tx, arrived: Sequence[Any], failed: Sequence[Any]) -> None:
        """A campaign whose messages fail one after the other with a code that everybody else would get is paused.

        What arrived begins the count again. Campaigns are taken in one order, as their rows are locked.
        """
        counts = Counter(
            (row["tenant_id"], row["campaign_id"], row["error_code"])
            for row in failed
            if row["campaign_id"] is not None and errors.is_hopeless(row["error_code"] or 0)
        )
        reached = {(row["tenant_id"], row["campaign_id"]) for row in arrived if row["campaign_id"] is not None}
        if reached:
            await tx.execute(S.clear_failures_in_row, *map(list, zip(*sorted(reached), strict=True)))
        for (tenant_id, campaign_id, code), count in sorted(counts.items()):
            if (tenant_id, campaign_id) in reached:
                continue
            in_row = await tx.fetchval(S.add_failures_in_row, tenant_id, campaign_id, code, count)
            if (in_row or 0) >= self._pause_after:
                await self._consequences.pause_campaign(tx, tenant_id, campaign_id, f"provider_{code}")

    # --- people

    async def _inbound(self, tx: Tx, told: Iterable[Told]) -> list[Wish]:
        """Keeps what was written; gives back the wishes among it that are new."""
        wishes: list[Wish] = []
        messages = sorted(told, key=lambda pair: (pair[0].tenant_id, pair[1].wamid))
        keywords = await self._words.keywords_of(tx, {one.tenant_id for one, _ in messages})
        for one, fact in messages:
            match = keywords.get(one.tenant_id, DEFAULTS).match_reply(fact.kind, fact.text, fact.payload)
            address, at = self._address(fact.sender), _at(fact.at_ms, one)
            new = await tx.fetchval(
                S.keep_inbound, one.tenant_id, fact.wamid, one.connection_id, fact.number_id, address, fact.name, at,
                fact.kind, fact.text, fact.payload, fact.media_id, fact.reply_to, match and match.preference,
            )  # fmt: skip
            if new is None:
                continue
            body = {"wamid": fact.wamid, "address": address, "number_id": fact.number_id, "kind": fact.kind}
            await self._hooks.announce(tx, one.tenant_id, "message.received", body | {"text": fact.text})
            if match is not None:
                wish = "stop" if match.preference == "stop" else "resume"
                wishes.append(Wish(one.tenant_id, address, at, wish, "whatsapp message", fact.wamid))
        return wishes

    async def _wishes(self, tx: Tx, wishes: Iterable[Wish]) -> None:
        """The latest word counts, whether it was written or pressed: one row per person, locked in one order.

        The address book hears one word of each person: a stop and a start in one transaction would meet there.
        """
        stands: dict[tuple[int, str], Wish] = {}
        for one in sorted(wishes, key=lambda one: (one.tenant_id, one.address, one.at, one.wish == "stop", one.proof)):
            if await tx.fetchval(S.keep_preference, one.tenant_id, CHANNEL, one.address, one.wish, one.at) is not None:
                stands[one.tenant_id, one.address] = one
        for one in stands.values():
            body = {"channel": CHANNEL, "address": one.address}
            how = {"source": one.source, "proof": one.proof}
            if one.wish == "stop":
                await self._contacts.opt_out(tx, one.tenant_id, CHANNEL, one.address, **how)
                await self._hooks.announce(tx, one.tenant_id, "contact.opted_out", body)
            elif await self._contacts.opt_in(tx, one.tenant_id, CHANNEL, one.address, **how):
                await self._hooks.announce(tx, one.tenant_id, "contact.opted_in", body)

    def _pressed(self, one: Kept, fact: PreferenceFact) -> Wish:
        address = self._address(fact.address)
        return Wish(one.tenant_id, address, _at(fact.at_ms, one), fact.wish, "whatsapp preference", fact.key)

    def _address(self, wire: str) -> str:
        """As the address book spells it; as it came where the book cannot read it: not every id is a phone number."""
        try:
            return self._contacts.address(CHANNEL, wire)
        except Invalid:
            return wire

    # --- templates and accounts

    async def _templates(self, tx: Tx, told: Iterable[Told]) -> None:
        for one, fact in _sorted(told):
            if not await self._keep_alert(tx, one, fact, fact.field, f"{fact.name} {fact.language} {fact.event}"[:300]):
                continue
            state = TEMPLATE_STATES.get(fact.event.upper()) if fact.field == "message_template_status_update" else None
            if state is not None:
                await self._template(tx, one, fact, state)

    async def _template(self, tx: Tx, one: Kept, fact: TemplateFact, state: str) -> None:
        rows = await tx.fetch(
            S.template_said, one.tenant_id, fact.waba_id, fact.name, fact.language, state, fact.reason[:300],
            _at(fact.at_ms, one), state not in GOOD, list(GOOD),
        )  # fmt: skip
        for row in rows:
            await template_changed(
                tx, self._hooks, self._consequences, one.tenant_id, row["connection_id"], row["name"], row["language"],
                state, fact.reason[:300],
            )  # fmt: skip

    async def _alerts(self, tx: Tx, told: Iterable[Told]) -> None:
        for one, fact in _sorted(told):
            if not await self._keep_alert(tx, one, fact, fact.field, fact.event[:300]):
                continue
            await self._hooks.announce(
                tx, one.tenant_id, "account.alert", {"field": fact.field, "event": fact.event[:300]}
            )
            if fact.field in _LIMITS:
                data = {"connection_id": str(one.connection_id)}
                await self._outbox.put(tx, QUEUE, "refresh", data, tenant_id=one.tenant_id)

    async def _keep_alert(self, tx: Tx, one: Kept, fact: Fact, field: str, event: str) -> bool:
        at = _at(getattr(fact, "at_ms", 0), one)
        row = await tx.fetchval(S.keep_alert, one.tenant_id, fact.key, one.connection_id, at, field, event, fact.raw)
        return row is not None


async def template_changed(
    tx: Tx, hooks: Hooks, consequences: Consequences, tenant_id: int, connection_id: UUID, name: str, language: str,
    state: str, reason: str,
) -> None:  # fmt: skip
    """A template that cannot be sent any more pauses its campaigns, before they meet its error one by one."""
    body = {"name": name, "language": language, "state": state, "reason": reason}
    if state == "APPROVED":
        await hooks.announce(tx, tenant_id, "template.approved", body)
    elif state not in GOOD:
        await hooks.announce(tx, tenant_id, "template.rejected", body)
        for row in await tx.fetch(S.campaigns_of_template, tenant_id, connection_id, name, language):
            await consequences.pause_campaign(tx, tenant_id, row["campaign_id"], f"template_{state.lower()}")


def _sorted(told: Iterable[Told]) -> list[Told]:
    """By time, then by key: locks are taken in one order."""
    return sorted(told, key=lambda pair: (pair[0].tenant_id, getattr(pair[1], "at_ms", 0), pair[1].key))


def _at(at_ms: int, one: Kept) -> datetime:
    return _when(at_ms) if at_ms else one.received_at


def _when(at_ms: int) -> datetime:
    return from_ms(min(at_ms, LAST_MS))


def _uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None
