"""Messaging inside a test: a stand-in for the address book, the room on real engines, its workers."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from handbill.infra.postgres import Database, Tx
from handbill.infra.redis import Keys, Redis
from handbill.infra.safe_http import SafeHttpClient
from handbill.infra.sqlfiles import Sql
from handbill.jobs.chores import LedgerChore, RelayChore
from handbill.jobs.service import JobsService
from handbill.jobs.worker import JobWorker
from handbill.kit.clock import Clock, SystemClock
from handbill.kit.ids import Ids
from handbill.kit.public_url import PublicUrl
from handbill.messaging.links import NewConnection
from handbill.messaging.plan import AudienceSpec, Campaign, NewCampaign, UsedTemplate
from handbill.messaging.ports import AudiencePage, Recipient, Why
from handbill.messaging.providers.graph import Graph as GraphClient
from handbill.messaging.providers.vault import Vault
from handbill.messaging.providers.whatsapp import WhatsApp
from handbill.messaging.service import MessagingPolicy, MessagingService, load_sealed
from handbill.messaging.tasks import MessagingTasks
from handbill.tenants.audit import Audit
from handbill.tenants.seals import Sealer
from tests.kit.graph import NUMBER, WABA
from tests.kit.sockets import LOCAL

SECRET = "app-secret"
_SUPPRESS = Sql(
    "insert into contacts.suppressions (tenant_id, channel, address, reason, until, note, created_at)"
    " values ($1, $2, $3, $4, $5, $6, now())"
    " on conflict (tenant_id, channel, address) do update set reason = excluded.reason, until = excluded.until",
    "suppress",
)
_END = Sql("update messaging.campaigns set state = 'cancelled' where tenant_id = any ($1::int[])", "end_campaigns")
_LIFT = Sql("delete from contacts.suppressions where tenant_id = $1 and channel = $2 and address = $3", "lift")


class Book:
    """An address book in memory; suppressions go to the table, where the claim sees them."""

    def __init__(self, people: Iterable[Recipient] = ()) -> None:
        self.people: dict[int, list[Recipient]] = {}
        self.default = list(people)
        self.asked = 0

    async def audience(
        self, tenant_id: int, channel: str, spec: AudienceSpec, after: UUID | None, limit: int
    ) -> AudiencePage:
        self.asked += 1
        everybody = self.people.get(tenant_id, self.default)
        start = 0 if after is None else after.int
        page = everybody[start : start + limit]
        ends = start + limit >= len(everybody)
        return AudiencePage(page, None if ends else UUID(int=start + limit))

    async def recipient(
        self, tenant_id: int, channel: str, *, address: str | None, contact_id: UUID | None
    ) -> Recipient | None:
        everybody = self.people.get(tenant_id, self.default)
        if contact_id is not None:
            return next((one for one in everybody if one.contact_id == contact_id), None)
        wanted = self.address(channel, address or "")
        return next((one for one in everybody if one.address == wanted), Recipient(None, wanted))

    async def suppress(
        self, tx: Tx, tenant_id: int, channel: str, address: str, why: Why, until: datetime | None, note: str
    ) -> None:
        await tx.execute(_SUPPRESS, tenant_id, channel, address, why, until, note)

    async def opt_out(self, tx: Tx, tenant_id: int, channel: str, address: str, *, source: str, proof: str) -> None:
        await self.suppress(tx, tenant_id, channel, address, "opt_out", None, source)

    async def opt_in(self, tx: Tx, tenant_id: int, channel: str, address: str, *, source: str, proof: str) -> bool:
        await tx.execute(_LIFT, tenant_id, channel, address)
        return True

    def address(self, channel: str, wire: str) -> str:
        return "+" + wire.lstrip("+")

    def spellings(self, channel: str, address: str) -> tuple[str, ...]:
        return (address,)


async def free_numbers(postgres_url: str) -> None:
    """Let go of the numbers of earlier tests, since a number has one tenant."""
    connection = await asyncpg.connect(postgres_url)
    try:
        await connection.execute("delete from messaging.numbers")
    finally:
        await connection.close()


def people(count: int, first: int = 0, **fields: Any) -> list[Recipient]:
    return [Recipient(None, f"+4917{first + place:08d}", {"name": f"P{place}", **fields}) for place in range(count)]


class Room:
    """The messaging room of one test, with queues of its own."""

    def __init__(
        self, database: Database, redis: Redis, graph_url: str, book: Book, policy: MessagingPolicy, clock: Clock,
        prefix: str, connections: int = 256, public_url: str | None = None,
    ) -> None:  # fmt: skip
        self.database = database
        self.redis = redis
        self.book = book
        self.clock = clock
        ids = Ids(clock)
        self.audit = Audit(clock, ids)
        self.jobs = JobsService(database, redis, audit=self.audit, prefix=prefix, clock=clock, slots=lambda queue: 64)
        self.prefix = prefix
        sealer = Sealer(b"k" * 32)
        vault = Vault(sealer, load_sealed(database), clock)
        client = GraphClient(graph_url, connections=connections, answer_s=10, insecure=True)
        self.service = MessagingService(
            database, redis, self.jobs.outbox, self.audit, WhatsApp(client, vault), vault, book, clock,
            verify_key=b"v" * 32, seal=sealer, http=SafeHttpClient(LOCAL), policy=policy,
            public_url=PublicUrl(public_url),

            keys=Keys(prefix.replace("-", "")), ids=ids,
        )  # fmt: skip
        self.tasks = MessagingTasks(self.service)
        self.tenants: set[int] = set()

    async def connect(
        self, tenant_id: int, numbers: Iterable[str] = (NUMBER,), pace: int | None = 0, waba: str = WABA
    ) -> UUID:
        self.tenants.add(tenant_id)
        new = NewConnection("Main", waba, list(numbers), "good", SECRET)
        made = await self.service.connections.connect(tenant_id, new, actor="test")
        if pace is not None:
            await self.service.connections.set_pace(tenant_id, pace, actor="test")
        return made.connection_id

    async def started(self, tenant_id: int, connection_id: UUID, **options: Any) -> Campaign:
        options.setdefault("content", UsedTemplate("hello_world", "en_US"))
        options.setdefault("purpose", "utility")
        made = await self.service.campaigns.create(
            tenant_id, NewCampaign("Spring", connection_id, **options), actor="test"
        )
        return await self.service.campaigns.start(tenant_id, made.campaign_id, at=None, actor="test")

    @contextlib.asynccontextmanager
    async def running(self, concurrency: int = 32, sweep_s: float = 0.25) -> AsyncIterator[None]:
        """Relay, ledger, workers, and what comes by the clock, as often as the test likes."""
        queues = ("message_dispatch", "message_retry", "webhooks")

        async def known() -> list[str]:
            return list(queues)

        handlers = self.tasks.handlers()
        chores: list[Any] = [
            RelayChore(self.jobs.relay, self.redis),
            LedgerChore(self.jobs.ledger, self.redis, known, prefix=self.prefix),
        ]
        for queue in queues:
            if queue in handlers:
                chores.append(JobWorker(self.jobs.queues, queue, dict(handlers[queue]), concurrency=concurrency))
        for chore in chores:
            await chore.start()
        clockwork = asyncio.create_task(self._clockwork(sweep_s))
        try:
            yield
        finally:
            clockwork.cancel()
            await asyncio.gather(clockwork, return_exceptions=True)
            for chore in reversed(chores):
                await chore.stop()

    async def _clockwork(self, every_s: float) -> None:
        while True:
            await self.service.keeper.poll()
            await self.service.keeper.sweep()
            await self.service.incoming.work()
            await asyncio.sleep(every_s)

    async def state(self, tenant_id: int, campaign_id: UUID) -> str:
        return (await self.service.campaigns.read(tenant_id, campaign_id)).state

    async def states(self, tenant_id: int, campaign_id: UUID) -> dict[str, int]:
        return (await self.service.campaigns.outcomes(tenant_id, campaign_id)).states


@contextlib.asynccontextmanager
async def room(
    database: Database, redis: Redis, postgres_url: str, graph_url: str, book: Book | None = None,
    policy: MessagingPolicy | None = None, clock: Clock | None = None, **more: Any,
) -> AsyncIterator[Room]:  # fmt: skip
    await free_numbers(postgres_url)
    prefix = f"t{uuid.uuid4().hex[:10]}"
    made = Room(
        database, redis, graph_url, book or Book(), policy or MessagingPolicy(), clock or SystemClock(), prefix, **more
    )
    try:
        yield made
    finally:
        async with database.worker() as tx:  # the next test's workers must find nothing of ours to send
            await tx.execute(_END, list(made.tenants))
        await made.service.stop()


def status_hook(facts: Iterable[dict[str, Any]], number: str = NUMBER, waba: str = WABA) -> bytes:
    """A webhook's body with these statuses."""
    value = {"messaging_product": "whatsapp", "metadata": {"phone_number_id": number}, "statuses": list(facts)}
    entry = {"id": waba, "changes": [{"field": "messages", "value": value}]}
    return msgspec.json.encode({"object": "whatsapp_business_account", "entry": [entry]})
