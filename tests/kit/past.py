"""A tenant that brings its history: everything from intake to ClickHouse in one process, and a clock to move years."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from handbill.events.capture import Capture
from handbill.events.capture_limits import Allowance
from handbill.events.dialects.canon import Dialect
from handbill.events.history import History
from handbill.events.history_intake import HistoryIntake
from handbill.events.policy import ConsumerPolicy
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.clock import from_ms
from handbill.kit.errors import Busy
from handbill.kit.fast import FastReply, FastRequest
from tests.kit.captured import Sender, new_sender
from tests.kit.clocks import FakeClock
from tests.kit.loop import Loop, loop
from tests.kit.shipping import shipped, shipping

KEYS = Sql("select count(*)::int from events.event_keys where tenant_id = $1", "test_key_count")
EXPORTED = Sql(
    "update events.ch_batches set done_at = now(), audited_at = now() where done_at is null",
    "test_exported",
    "tests",
    "of all",
)
ROWS = (
    "select event_id, event, distinct_id, toUnixTimestamp64Milli(at), micros, properties from events"
    " where tenant_id = {t:UInt32} order by at, micros, sequence, event_id"
)
OWN_MONTHS = (
    "select _partition_id from events group by _partition_id"
    " having uniqExact(tenant_id) = 1 and any(tenant_id) = {t:UInt32}"
)
PROPERTIES = Sql("select distinct_id, properties from people.properties where tenant_id = $1 order by 1", "test_facts")
_pages = itertools.count(64)
SMALL = ConsumerPolicy(batch_events=40, batch_wait_ms=0)


@dataclass
class Past:
    app: Loop
    clickhouse: ClickHouse
    capture: Capture
    intake: HistoryIntake
    sender: Sender
    clock: FakeClock
    days: dict[int, int]
    """For how many days each tenant's events are kept."""

    @property
    def tenant(self) -> int:
        return self.sender.tenant

    async def send(self, dialect: Dialect, path: str, body: Mapping[str, Any], **headers: str) -> FastReply:
        named = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
        asked = FastRequest("POST", path, b"", named, json.dumps(body).encode(), "203.0.113.77", uuid.uuid4().hex)
        return await self.capture.take(dialect, asked)

    async def own(self, events: Sequence[Mapping[str, Any]], *, history: bool = True) -> FastReply:
        body = {"events": list(events), "api_key": self.sender.write_key, "historical_migration": history}
        if not history:
            body["sent_at"] = self.clock.now().isoformat()
        return await self.send(Dialect.OWN, "/v1/events", body)

    async def posthog(self, events: Sequence[Mapping[str, Any]], *, history: bool = True) -> FastReply:
        body = {"batch": list(events), "api_key": self.sender.write_key, "historical_migration": history}
        return await self.send(Dialect.POSTHOG, "/batch/", body)

    async def segment(self, messages: Sequence[Mapping[str, Any]], path: str = "/v1/import") -> FastReply:
        return await self.send(Dialect.SEGMENT, path, {"batch": list(messages), "writeKey": self.sender.write_key})

    async def settle(self) -> None:
        """Until everything is counted and exported."""
        await self.app.drained()
        await shipped(self.app)

    async def pass_days(self, days: int) -> None:
        """So many days later, and every night's retention has run."""
        await self.settle()
        self.clock.advance(days=days)
        async with self.app.database.worker() as tx:
            await tx.execute(EXPORTED)  # batches that other tests left
        # What is noted about ranges of pages holds for one clock: ranges of another length have notes of their own.
        await self.app.events.forget_keys(self.clock.now(), pages=next(_pages))

    async def keys(self) -> int:
        async with self.app.database.worker() as tx:
            return int(await tx.fetchval(KEYS, self.tenant))

    async def rows(self) -> list[tuple[Any, ...]]:
        return await self.clickhouse.query(ROWS, {"t": self.tenant})

    async def ids(self) -> list[str]:
        return [row[0] for row in await self.rows()]

    async def properties(self) -> dict[str, Any]:
        async with self.app.database.worker() as tx:
            return {row["distinct_id"]: row["properties"] for row in await tx.fetch(PROPERTIES, self.tenant)}

    async def drops(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for drop in await self.app.events.drops(self.tenant, _day(self.clock, -9_000), _day(self.clock, 2)):
            found[drop.reason] = found.get(drop.reason, 0) + drop.events
        return found

    async def drop_months(self, now: datetime | None = None) -> list[str]:
        return await History(self.clickhouse, self.clock).drop(now or self.clock.now())


def _day(clock: FakeClock, days: int) -> Any:
    return from_ms(clock.now_ms() + days * 86_400_000).date()


@asynccontextmanager
async def past(
    database: Database, redis: Redis, clickhouse: ClickHouse, tenant: int, *, start: datetime | None = None
) -> AsyncIterator[Past]:
    clock = FakeClock(start) if start else FakeClock()
    days: dict[int, int] = {}

    async def classes(tenants: Iterable[int]) -> Mapping[int, int]:
        return {each: days[each] for each in tenants if days.get(each)}

    sender = await new_sender(database, redis, tenant)
    intake = HistoryIntake(clickhouse, classes, clock)
    async with loop(database, redis, clock=clock, history=intake) as app:
        capture = Capture(app.edge, app.tenants.directory, Allowance(redis, app.keys, clock), intake, clock)
        await app.consumer(SMALL, shipping=shipping(database, clickhouse, app.journal, classes=classes))
        await capture.start()
        try:
            yield Past(app, clickhouse, capture, intake, sender, clock, days)
        finally:
            await capture.stop()
    with suppress(Busy):
        await drop_own_months(clickhouse, tenant)


async def drop_own_months(clickhouse: ClickHouse, tenant: int) -> None:
    """Months in which nobody else has events: each mutation of a later test would go through them."""
    for (partition,) in await clickhouse.query(OWN_MONTHS, {"t": tenant}):
        await clickhouse.command(f"alter table events drop partition id '{partition}'")


def write_lines(file: Path, records: Iterable[Mapping[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    return file
