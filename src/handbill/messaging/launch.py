"""Writing an audience down: one row per address, in pages, from where the last page ended. Repeating does nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from handbill.infra.postgres import Database, Tx
from handbill.jobs.model import JobOptions
from handbill.jobs.service import Outbox
from handbill.kit.clock import Clock
from handbill.kit.errors import Conflict
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs
from handbill.messaging import store
from handbill.messaging.consequences import Consequences
from handbill.messaging.dispatch import CAMPAIGN_PRIORITY, QUEUE, Dispatcher
from handbill.messaging.plan import Campaign
from handbill.messaging.ports import AudiencePage, Contacts, Recipient
from handbill.messaging.store import OPEN_FOR, S

_log = logs.get("messaging")
PAGE = 1_000
PAGES = 20
"""Pages of one job: then the next job goes on, and other tenants have their turn in between."""


class _Overtaken(Exception):
    """Another worker wrote this page. What we wrote goes back with us: it would stand in no count."""


class Launcher:
    def __init__(
        self,
        database: Database,
        outbox: Outbox,
        contacts: Contacts,
        dispatcher: Dispatcher,
        consequences: Consequences,
        clock: Clock,
        ids: Ids,
        page: int = PAGE,
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._contacts = contacts
        self._dispatcher = dispatcher
        self._consequences = consequences
        self._clock = clock
        self._ids = ids
        self._page = page

    async def write(self, tenant_id: int, campaign_id: UUID) -> int:
        """Some pages of the audience. How many rows were new."""
        made = 0
        for _ in range(PAGES):
            count, done = await self._one(tenant_id, campaign_id)
            made += count
            if done:
                return made
        async with self._database.worker() as tx:
            await self._outbox.put(
                tx, QUEUE, "launch", {"campaign_id": str(campaign_id)}, tenant_id=tenant_id,
                opts=JobOptions(priority=CAMPAIGN_PRIORITY),
            )  # fmt: skip
        return made

    async def _one(self, tenant_id: int, campaign_id: UUID) -> tuple[int, bool]:
        async with self._database.worker() as tx:
            campaign = await store.read_campaign(tx, tenant_id, campaign_id)
            after = await tx.fetchval(S.audience_cursor, tenant_id, campaign_id)
        if campaign is None or campaign.state not in ("running", "paused") or campaign.audience_done:
            return 0, True
        try:
            page = await self._contacts.audience(tenant_id, campaign.channel, campaign.audience, after, self._page)
        except Conflict as error:  # the segment is gone, or its rules ask for what is not there
            async with self._database.worker() as tx:
                await self._consequences.pause_campaign(tx, tenant_id, campaign_id, f"audience_{error.code.lower()}")
            return 0, True
        try:
            return await self._keep(tenant_id, campaign, page, after), page.after is None
        except _Overtaken:
            return 0, False

    async def _keep(self, tenant_id: int, campaign: Campaign, page: AudiencePage, after: UUID | None) -> int:
        """The page's rows and how far we are, or none of it."""
        people = unique_addresses(page.recipients)
        now = self._clock.now()
        async with self._database.worker() as tx:
            senders = await assign_senders(tx, tenant_id, campaign, people, now)
            rows = [(self._ids.new(), sender, person) for sender, person in zip(senders, people, strict=True)]
            made = await store.insert_messages(tx, tenant_id, campaign, rows, now) if rows else 0
            moved = await tx.fetchval(
                S.audience_written, tenant_id, campaign.campaign_id, page.after, page.after is None, made, now, after
            )
            if moved is None:
                raise _Overtaken
            await self._dispatcher.ring(tx, tenant_id)
        return made


async def assign_senders(
    tx: Tx, tenant_id: int, campaign: Campaign, people: Sequence[Recipient], now: datetime
) -> list[str]:
    """The number that each of them is written to from. Free text goes from the one that the person wrote to last."""
    open_at: dict[str, str] = {}
    if campaign.is_free_text and len(campaign.numbers) > 1 and people:
        addresses = [person.address for person in people]
        rows = await tx.fetch(S.last_written_to, tenant_id, addresses, campaign.numbers, now - OPEN_FOR)
        open_at = {row["address"]: row["number_id"] for row in rows}
    return [open_at.get(person.address) or number_of(campaign, person.address) for person in people]


def number_of(campaign: Campaign, address: str) -> str:
    """The same person hears from the same number of a campaign, and the numbers share the people evenly."""
    digest = hashlib.blake2b(address.encode(), digest_size=8).digest()
    return campaign.numbers[int.from_bytes(digest, "big") % len(campaign.numbers)]


def unique_addresses(people: list[Recipient]) -> list[Recipient]:
    """Sorted by address, each address once: two contacts may share one."""
    return sorted({person.address: person for person in reversed(people)}.values(), key=lambda one: one.address)
