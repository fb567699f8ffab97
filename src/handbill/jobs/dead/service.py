"""The way back: look at dead letters, redrive them, purge them. By one, by many, or by a filter counted first."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol
from uuid import UUID

import msgspec

from handbill.infra.postgres import Database, ForeignKeyViolation, Tx
from handbill.jobs import store
from handbill.jobs.dead import letters
from handbill.jobs.outbox.producer import Outbox
from handbill.jobs.queue import Queues
from handbill.jobs.records import DeadLetter, Entry, Filter
from handbill.kit import pages
from handbill.kit.errors import Conflict, Fault, Invalid, NotFound
from handbill.kit.pages import Page
from handbill.kit.telemetry import logs

_log = logs.get("dead")
BATCH = 200


class Audit(Protocol):
    """Writes one row into the tenant's audit log, in the given transaction. The wiring hands it in."""

    async def write(
        self,
        tx: Tx,
        tenant_id: int,
        *,
        actor: str,
        action: str,
        object: str,
        before: msgspec.Struct | dict[str, Any] | None = None,
        after: msgspec.Struct | dict[str, Any] | None = None,
    ) -> None: ...


class DeadLetters:
    def __init__(self, database: Database, queues: Queues, outbox: Outbox, audit: Audit) -> None:
        self._database = database
        self._queues = queues
        self._outbox = outbox
        self._audit = audit

    async def page(self, wanted: Filter, cursor: str | None, limit: int) -> Page[DeadLetter]:
        """Newest first."""
        async with self._scope(wanted.tenant_id) as tx:
            rows = await store.list_dead(tx, wanted, _before(cursor), limit + 1)
        return pages.page(rows, limit, lambda row: (str(row.id),))

    async def get(self, letter_id: UUID, tenant_id: int | None) -> DeadLetter:
        async with self._scope(tenant_id) as tx:
            rows = await store.list_dead(tx, Filter(tenant_id=tenant_id, ids=(letter_id,)), None, 1)
        if not rows:
            raise NotFound(f"There is no dead letter {letter_id}.", code="DEAD_LETTER_NOT_FOUND")
        return rows[0]

    async def count(self, wanted: Filter) -> int:
        """How many a redrive or purge by this filter would touch."""
        async with self._scope(wanted.tenant_id) as tx:
            return await store.count_dead(tx, wanted)

    async def redrive(self, wanted: Filter, *, actor: str, most: int = 100_000) -> int:
        """Give the work back to its queue through the outbox. The effect keeps its identity, so none is done twice."""
        wanted = msgspec.structs.replace(wanted, status="dead")
        total = 0
        while total < most:
            count = await self._redrive_some(wanted, actor, min(BATCH, most - total))
            total += count
            if count == 0:
                break
        return total

    async def purge(self, wanted: Filter, *, actor: str, most: int = 100_000) -> int:
        """Delete for good, from Redis' failed set too, or the next reconciliation would find them again."""
        total = 0
        while total < most:
            async with self._scope(wanted.tenant_id) as tx:
                rows = await store.list_dead(tx, wanted, None, min(BATCH, most - total))
                if not rows:
                    break
                for row in rows:
                    await self._make_way(row)
                ids = tuple(row.id for row in rows)
                purged = await store.purge_dead(tx, Filter(tenant_id=wanted.tenant_id, ids=ids), BATCH)
                await self._write(tx, rows, actor, "dead-letter.purge")
            total += purged
            if purged == 0:
                break  # another operator holds them at this moment
        return total

    async def _redrive_some(self, wanted: Filter, actor: str, most: int) -> int:
        async with self._scope(wanted.tenant_id) as tx:
            rows = await store.take_dead(tx, wanted, most)
            if not rows:
                return 0
            back = [row for row in rows if await self._make_way(row)]
            await self._outbox.put_many(tx, [_entry(row) for row in back])
            await store.mark_redriven(tx, [row.id for row in rows], wanted.tenant_id)
            await self._write(tx, rows, actor, "dead-letter.redrive")
        return len(rows)

    async def _make_way(self, row: DeadLetter) -> bool:
        """Take the failed job out of the queue; False when somebody has set it going again already."""
        queue = self._queues.queue(row.queue)
        state = await queue.state(row.job_id)
        if state == "unknown":
            return True
        if state not in ("failed", "completed"):
            return False
        try:
            await queue.remove(row.job_id)
        except (NotFound, Conflict) as error:
            _log.info("dead-letter-job-not-removed", queue=row.queue, job=row.job_id, reason=error.code)
        return True

    async def _write(self, tx: Tx, rows: list[DeadLetter], actor: str, action: str) -> None:
        """One audit row per tenant touched. System letters have no tenant to tell."""
        tenants: dict[int, list[DeadLetter]] = {}
        for row in rows:
            if row.tenant_id is not None:
                tenants.setdefault(row.tenant_id, []).append(row)
        for tenant_id, own in sorted(tenants.items()):
            after = {"count": len(own), "ids": [str(row.id) for row in own[:20]]}
            try:
                async with tx.savepoint():
                    await self._audit.write(
                        tx, tenant_id, actor=actor, action=action, object="dead-letters", after=after
                    )
            except ForeignKeyViolation:  # another program put a number into its job that is no tenant's
                _log.warning("dead-letter-tenant-unknown", tenant=tenant_id, action=action)

    def _scope(self, tenant_id: int | None) -> AbstractAsyncContextManager[Tx]:
        """A tenant works behind its wall; the operator (no tenant) sees all."""
        return self._database.worker() if tenant_id is None else self._database.tenant(tenant_id)


def _entry(row: DeadLetter) -> Entry:
    return Entry(
        queue=row.queue,
        name=row.name,
        data=row.data,
        tenant_id=row.tenant_id,
        job_id=letters.job_id_again(row.job_id),
        opts=letters.options_again(row.opts),
        effect_id=row.effect_id,
    )


def _before(cursor: str | None) -> UUID | None:
    if cursor is None:
        return None
    (text,) = pages.decode(cursor, [str])
    try:
        return UUID(str(text))
    except ValueError:
        raise Invalid(
            "The cursor is not one of ours; start again without it.",
            code="BAD_CURSOR",
            faults=[Fault("cursor", "not a cursor of this list")],
        ) from None
