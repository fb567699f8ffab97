"""A tenant with keys for the tests of capturing, and what of its events stands in the journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import aiohttp
import msgspec

from handbill.events.history_intake import HistoryIntake
from handbill.events.model import CapturedEvent, Counted, Dropped, Event, Reason, decode
from handbill.infra.journal.lanes import Lanes
from handbill.infra.journal.port import START
from handbill.infra.journal.streams import StreamsJournal
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.tenants.model import NewKey, Privacy, SettingsPatch, TenantPatch
from handbill.tenants.service import TenantService
from tests.kit.http import Api
from tests.kit.processes import process

SEAL = "a seal key for tests"


class NothingStored(HistoryIntake):
    """Here is no event store: all history is new."""

    def __init__(self) -> None: ...

    async def refusals(self, tenant_id: int, events: Sequence[Counted]) -> Mapping[int, Reason]:
        return {}


class Sender:
    """One tenant: its keys, and its events as the journal has them."""

    def __init__(self, tenant: int, write_key: str, secret_key: str, redis: Redis) -> None:
        self.tenant, self.write_key, self.secret_key = tenant, write_key, secret_key
        self._journal = StreamsJournal(redis)

    async def journal(self) -> list[tuple[str, Event]]:
        """(lane, event) of this tenant, lane by lane in order."""
        found: list[tuple[str, Event]] = []
        for lane, _ in Lanes().all():
            after = START
            while entries := await self._journal.read(lane, after, events=10_000):
                after = entries[-1].id
                for body in (body for entry in entries for body in entry.bodies):
                    try:
                        event = decode(body)
                    except msgspec.DecodeError:
                        continue  # another test's poison
                    if event.tenant == self.tenant:
                        found.append((lane, event))
        return found

    async def events(self) -> list[CapturedEvent]:
        return [event for _, event in await self.journal() if isinstance(event, CapturedEvent)]

    async def event(self) -> CapturedEvent:
        """The only one."""
        (found,) = await self.events()
        return found

    async def drops(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for _, event in await self.journal():
            if isinstance(event, Dropped):
                assert event.of == "capture"
                found[event.reason] += event.n
        return dict(found)


async def new_sender(
    database: Database, redis: Redis, tenant: int, *, limits: dict[str, float] | None = None, **privacy: Any
) -> Sender:
    tenants = TenantService(database, redis, seal_key=sha256(SEAL.encode()).digest())
    try:
        write = await tenants.create_key(tenant, NewKey(kind="write", name="site"), actor="test")
        secret = await tenants.create_key(tenant, NewKey(kind="secret", name="all", scopes=["*"]), actor="test")
        if limits is not None:
            await tenants.set_limits(tenant, limits, actor="test")
        if privacy:
            patch = TenantPatch(settings=SettingsPatch(privacy=Privacy(**privacy)))
            await tenants.change_tenant(tenant, patch, actor="test")
        return Sender(tenant, write.key, secret.key, redis)
    finally:
        await tenants.stop()


@asynccontextmanager
async def capturing(env: dict[str, str], **settings: str) -> AsyncIterator[Api]:
    """A running API process."""
    whole = {**env, "HANDBILL_TENANTS__SEAL_KEY": SEAL, "HANDBILL_API__KILL_TIMEOUT_S": "2", **settings}
    async with process("api", env=whole) as running, aiohttp.ClientSession() as client:
        await running.log(event="api-ready")
        yield Api(running, f"http://127.0.0.1:{whole['HANDBILL_API__PORT']}", client)
