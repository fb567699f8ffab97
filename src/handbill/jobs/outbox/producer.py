"""Writing to the outbox, and the one question a handler asks of it: has this effect been done?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from handbill.infra.postgres import Tx
from handbill.infra.redis import Redis
from handbill.jobs import options, store
from handbill.jobs.model import JobOptions
from handbill.jobs.records import Entry
from handbill.kit.errors import Busy
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs

WAKE_CHANNEL = "handbill:outbox"
_log = logs.get("outbox")


class Outbox:
    """Records work in the transaction of the change it belongs to; a relay takes it from there."""

    def __init__(self, redis: Redis, ids: Ids | None = None) -> None:
        self._redis = redis
        self._ids = ids or Ids()

    async def put(
        self,
        tx: Tx,
        queue: str,
        name: str,
        data: Any,
        *,
        tenant_id: int | None,
        job_id: str | None = None,
        opts: JobOptions | None = None,
    ) -> UUID:
        """Record one job. Without an id of the producer's own, the job is known by the outbox id that is returned."""
        entry = Entry(queue, name, data, tenant_id, job_id, opts)
        return (await self.put_many(tx, [entry]))[0]

    async def put_many(self, tx: Tx, entries: Sequence[Entry]) -> list[UUID]:
        """Record many jobs in one statement, in their order."""
        if not entries:
            return []
        for entry in entries:  # refuse here, in the producer's transaction, what the queue would refuse later
            opts = entry.opts or JobOptions()
            options.check(entry.name, msgspec.structs.replace(opts, job_id=entry.job_id) if entry.job_id else opts)
        rows = [(self._ids.new(), entry) for entry in entries]
        await store.put_outbox(tx, rows)
        queues = sorted({entry.queue for entry in entries})
        tx.after_commit(lambda: self.wake(queues))
        return [id for id, _ in rows]

    async def wake(self, queues: Sequence[str]) -> None:
        """Tell the relays that there is work. Only a hint: they look by themselves every second or so."""
        try:
            await self._redis.many([("PUBLISH", WAKE_CHANNEL, queue) for queue in queues])
        except Busy as error:
            _log.debug("outbox-wake-unheard", reason=error.code)


async def handled_once(tx: Tx, outbox_id: UUID | str, *, tenant_id: int | None = None) -> bool:
    """True for the first caller only. Call it in the transaction of the effect: both are kept, or neither is."""
    identity = outbox_id if isinstance(outbox_id, UUID) else UUID(outbox_id)
    return await store.handled_once(tx, identity, tx.tenant_id if tenant_id is None else tenant_id)
