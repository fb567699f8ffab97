"""An import under way: cut into chunks, chunks into staged rows, slices of the keys into the table; and the way back.

Every step is done in one transaction with the mark that it is done, so that a step which is run again finds nothing
left to do. What starts the next phase looks anew after its own commit: whoever commits last sees that all is done.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from msgspec import structs

from handbill.contacts import chunks, parse, split
from handbill.contacts import import_store as store
from handbill.contacts import undo as back
from handbill.contacts.chunks import Cpu
from handbill.contacts.import_store import Stored
from handbill.contacts.mapping import ATTRIBUTE
from handbill.contacts.model import Counts, Import, Kept, Plan, Status
from handbill.contacts.progress import counted
from handbill.contacts.sources import Bounds
from handbill.contacts.uploads import Uploads
from handbill.infra.postgres import Database, Tx
from handbill.jobs.model import Backoff, CpuLimitExceeded, JobOptions
from handbill.jobs.service import Outbox
from handbill.kit.clock import Clock
from handbill.kit.errors import Invalid, TooLarge
from handbill.kit.telemetry import logs, metrics

UPLOADS, CHUNKS, PERSIST = "upload_jobs", "upload_chunks", "import_persistence"
PROCESS_UPLOAD, PROCESS_CHUNK = "process-upload", "process-chunk"
PERSIST_SLICE, UNDO_IMPORT = "persist-contacts", "undo-import"

OFTEN = JobOptions(attempts=10, backoff=Backoff("exponential", delay_ms=1_000, jitter=0.2))
"""A worker that is restarted takes an attempt of every job it held; a long import must outlive several restarts."""
SLICE_ROWS = 25_000
UNDO_ROWS = 2_000
PATIENCE_S = 300.0

SLOW_CHUNKS = 5
"""Chunks of one import that may exceed a limit; with more it fails, so that it does not hold processes for hours."""
SPLIT_BYTES = 64 << 20
"""For each of these of a file, cutting it into chunks may take as long as parsing one chunk."""

Told = Callable[[Tx, int, dict[str, Any]], Awaitable[object]]
"""Hears of an import that has ended, in the transaction that ends it; handed in by the wiring."""

LIMIT = "IMPORT_LIMIT: the file could not be read within the limits of time and memory"

log = logs.get("contacts")


class NotNow(Exception):
    """The import must wait for another of the same tenant."""


class Runner:
    def __init__(
        self,
        database: Database,
        outbox: Outbox,
        uploads: Uploads,
        clock: Clock,
        *,
        bounds: Bounds,
        at_once: int,
        chunk_bytes: int = split.CHUNK,
        slice_rows: int = SLICE_ROWS,
        chunk_seconds: float = 60.0,
    ) -> None:
        self._database = database
        self._outbox = outbox
        self._uploads = uploads
        self._clock = clock
        self._bounds = bounds
        self._at_once = at_once
        self._chunk = chunk_bytes
        self._slice_rows = slice_rows
        self._chunk_seconds = chunk_seconds
        self.told: Told | None = None

    # --- process-upload

    async def upload(self, tenant_id: int, import_id: UUID, cpu: Cpu) -> str:
        """The file becomes chunks."""
        async with self._database.worker() as tx:
            one = await store.read_import(tx, tenant_id, import_id, lock=True)
            waiting = one is not None and not one.info.paused and one.info.status in ("queued", "splitting")
            if waiting and one is not None and one.info.status == "queued":
                if await store.number(tx, "running_imports", tenant_id, import_id) >= self._at_once:
                    raise NotNow
                one = await self._move(tx, tenant_id, one.info, "splitting", started=True)
        if one is None or not waiting:
            await self.advance(tenant_id, import_id)
            return "nothing to do"
        source, target = self._uploads.path(one.file), self._uploads.canonical(import_id)
        try:
            cut: split.Cut = await cpu(
                split.prepare, str(source), str(target), one.info.plan.reading, self._bounds, self._chunk,
                cpu_s=self._chunk_seconds * (1 + one.info.size // SPLIT_BYTES),
            )  # fmt: skip
        except CpuLimitExceeded:
            await self.fail(tenant_id, import_id, LIMIT)
            return "refused"
        except (Invalid, TooLarge) as error:
            await self.fail(tenant_id, import_id, f"{error.code}: {error.detail}")
            return "refused"
        except FileNotFoundError:
            await self.fail(tenant_id, import_id, "IMPORT_FILE_GONE: the file is not in the uploads' directory")
            return "refused"
        slices = max(1, math.ceil(cut.rows / self._slice_rows))
        async with self._database.worker() as tx:
            again = await store.read_import(tx, tenant_id, import_id, lock=True)
            if again is None or again.info.status != "splitting":
                return "nothing to do"
            await store.save_cut(tx, tenant_id, import_id, cut.file, cut.ranges, slices)
            moved = await self._move(tx, tenant_id, again.info, "parsing")
            await self.enqueue(tx, tenant_id, moved)
        await self.advance(tenant_id, import_id)
        return f"{len(cut.ranges)} chunks"

    # --- process-chunk

    async def chunk(self, tenant_id: int, import_id: UUID, no: int, cpu: Cpu) -> str:
        """A chunk becomes staged rows and findings."""
        async with self._database.worker() as tx:
            one = await store.read_import(tx, tenant_id, import_id)
            part = await store.read_part(tx, tenant_id, import_id, "chunk", no)
        if one is None or part is None or one.info.paused or one.info.status != "parsing":
            return "nothing to do"
        if not part.done:
            file = str(self._uploads.path(one.canonical or one.file))
            plan, slices = one.info.plan, one.slices
            task = parse.Task(file, part.start, part.end, part.first, plan, tenant_id, import_id, slices)
            try:
                parsed, exceeded = await chunks.parse_within_limits(cpu, task, part.rows, self._chunk_seconds)
            except CpuLimitExceeded:
                await self.fail(tenant_id, import_id, LIMIT)
                return "refused"
            except FileNotFoundError:
                await self.fail(tenant_id, import_id, "IMPORT_FILE_GONE: the file is not in the uploads' directory")
                return "refused"
            await self._stage(tenant_id, import_id, no, parsed, exceeded)
            if exceeded and await self._is_too_slow(tenant_id, import_id, no):
                await self.fail(tenant_id, import_id, LIMIT)
                return "refused"
        await self.advance(tenant_id, import_id)
        return "done"

    async def _is_too_slow(self, tenant_id: int, import_id: UUID, no: int) -> bool:
        log.warning("import.chunk_limit_exceeded", tenant=tenant_id, import_id=str(import_id), chunk=no)
        async with self._database.worker() as tx:
            sums = await store.sum_counts(tx, tenant_id, import_id)
        return sums["chunk"].get("slow", 0) > SLOW_CHUNKS

    async def _stage(self, tenant_id: int, import_id: UUID, no: int, parsed: parse.Parsed, exceeded: int) -> None:
        counts = {
            "rows": parsed.rows,
            "valid": parsed.valid,
            "rejected": parsed.rejected,
            "blank": parsed.blank,
            "noted": parsed.noted,
            **{f"repair:{code}": number for code, number in parsed.repairs.items()},
            **({"slow": 1} if exceeded else {}),
        }
        async with self._database.worker() as tx:
            one = await store.share_import(tx, tenant_id, import_id)
            if one is None or one.info.status != "parsing":
                return
            if not await store.claim_part(tx, tenant_id, import_id, "chunk", no, counts):
                return
            if parsed.staged:
                await tx.copy_text("contacts.import_rows", parse.STAGED, parsed.staged)
            if parsed.found:
                await tx.copy_text("contacts.import_findings", parse.FOUND, parsed.found)
        metrics.IMPORT_ROWS.labels("parsed").inc(parsed.valid)
        metrics.IMPORT_ROWS.labels("rejected").inc(parsed.rejected)

    # --- persist-contacts

    async def persist(self, tenant_id: int, import_id: UUID, no: int) -> str:
        """A slice of the staged keys is merged by the import's policy."""
        async with self._database.worker() as tx:
            await tx.patient(PATIENCE_S)
            one = await store.share_import(tx, tenant_id, import_id)
            if one is None or one.info.paused or one.info.status != "merging":
                return "nothing to do"
            if await store.claim_part(tx, tenant_id, import_id, "slice", no, {}):
                attributes, fields = mapped(one.info.plan)
                row = await store.merge_slice(tx, tenant_id, one, no, attributes, fields)
                await store.close_part(tx, tenant_id, import_id, "slice", no, dict(row))
                metrics.IMPORT_ROWS.labels("merged").inc(row["rows"])
        await self.advance(tenant_id, import_id)
        return "done"

    # --- from phase to phase

    async def advance(self, tenant_id: int, import_id: UUID) -> None:
        """Begin the next phase if this one is over. Safe to call at any time, from anywhere."""
        async with self._database.worker() as tx:
            one = await store.read_import(tx, tenant_id, import_id)
            if one is None or one.info.paused or not await self._over(tx, tenant_id, one):
                return
        async with self._database.worker() as tx:
            await store.hold_table(tx, tenant_id)
            one = await store.read_import(tx, tenant_id, import_id, lock=True)
            if one is not None and not one.info.paused and await self._over(tx, tenant_id, one):
                await self._next(tx, tenant_id, one)

    async def _over(self, tx: Tx, tenant_id: int, one: Stored) -> bool:
        status, number = one.info.status, one.info.import_id
        if status == "parsed":
            return True
        phase = {"parsing": "chunk", "merging": "slice"}.get(status)
        return phase is not None and not await store.open_parts(tx, tenant_id, number, phase)

    async def _next(self, tx: Tx, tenant_id: int, one: Stored) -> None:
        number = one.info.import_id
        if one.info.status == "merging":
            await self._finish(tx, tenant_id, one)
        elif await store.table_taken(tx, tenant_id, number):
            await self._move(tx, tenant_id, one.info, "parsed")
        else:
            await store.insert_slices(tx, tenant_id, number, one.slices)
            moved = await self._move(tx, tenant_id, one.info, "merging")
            await self.enqueue(tx, tenant_id, moved)

    async def _finish(self, tx: Tx, tenant_id: int, one: Stored) -> None:
        number = one.info.import_id
        sums = await store.sum_counts(tx, tenant_id, number)
        counts = counted(sums, one.info.plan.policy)
        await store.save_counts(tx, tenant_id, number, counts)
        await self._move(tx, tenant_id, one.info, "done", finished=True)
        await self._tell(tx, tenant_id, one, "done", counts)
        log.info("import-done", tenant=tenant_id, import_id=str(number), rows=one.rows)
        await self.release(tx, tenant_id)

    async def _tell(
        self, tx: Tx, tenant_id: int, one: Stored, status: Status, counts: Counts, error: str | None = None
    ) -> None:
        """Whoever wants to know of the end, in the transaction of the end: done, failed or cancelled."""
        if self.told is not None:
            said = {"import_id": str(one.info.import_id), "status": status, "rows": one.rows, "counts": counts}
            await self.told(tx, tenant_id, said if error is None else {**said, "error": error})

    async def release(self, tx: Tx, tenant_id: int) -> None:
        """The tenant's table is free: the import that has waited longest takes it. Call it holding the table."""
        if (waiting := await store.next_parsed(tx, tenant_id)) is not None:
            one = await store.read_import(tx, tenant_id, waiting, lock=True)
            if one is not None and one.info.status == "parsed":
                await self._next(tx, tenant_id, one)

    async def go_on(self, tx: Tx, tenant_id: int, one: Stored) -> None:
        """After a pause: the phase may have ended meanwhile. Call it holding the table."""
        if await self._over(tx, tenant_id, one):
            await self._next(tx, tenant_id, one)
        else:
            await self.enqueue(tx, tenant_id, one)

    async def enqueue(self, tx: Tx, tenant_id: int, one: Stored) -> None:
        """The jobs that the import's phase still needs, recorded in the transaction of the change."""
        status, number = one.info.status, one.info.import_id
        jobs: list[tuple[str, str, dict[str, Any]]] = []
        if status in ("queued", "splitting"):
            jobs = [(UPLOADS, PROCESS_UPLOAD, {})]
        elif status == "parsing":
            parts = await store.open_parts(tx, tenant_id, number, "chunk")
            jobs = [(CHUNKS, PROCESS_CHUNK, {"no": no}) for no in parts]
        elif status == "merging":
            parts = await store.open_parts(tx, tenant_id, number, "slice")
            jobs = [(PERSIST, PERSIST_SLICE, {"no": no}) for no in parts]
        elif status == "undoing":
            jobs = [(PERSIST, UNDO_IMPORT, {})]
        for queue, name, extra in jobs:
            data = {"importId": str(number), **extra}
            await self._outbox.put(tx, queue, name, data, tenant_id=tenant_id, opts=OFTEN)

    async def fail(self, tenant_id: int, import_id: UUID, reason: str) -> None:
        """It cannot go on. What was merged stays, and can be undone."""
        async with self._database.worker() as tx:
            await store.hold_table(tx, tenant_id)
            one = await store.read_import(tx, tenant_id, import_id, lock=True)
            if one is None or one.info.status not in ("queued", "splitting", "parsing", "parsed", "merging", "undoing"):
                return
            await self.end(tx, tenant_id, one, "failed", reason[:500])
        log.warning("import-failed", tenant=tenant_id, import_id=str(import_id), reason=reason.partition(":")[0])

    async def end(self, tx: Tx, tenant_id: int, one: Stored, status: Status, error: str | None = None) -> Stored:
        """Failed or cancelled: staged rows go, counts say what was done. Call it holding the table."""
        number = one.info.import_id
        await tx.patient(PATIENCE_S)
        await store.drop_staged(tx, tenant_id, number)
        sums = await store.sum_counts(tx, tenant_id, number)
        counts = counted(sums, one.info.plan.policy)
        await store.save_counts(tx, tenant_id, number, counts)
        moved = await self._move(
            tx, tenant_id, structs.replace(one.info, paused=False), status, finished=True, error=error
        )
        await self._tell(tx, tenant_id, one, status, counts, error)
        await self.release(tx, tenant_id)
        return moved

    # --- undo-import

    async def undo(self, tenant_id: int, import_id: UUID) -> str:
        """Changed fields go back, created contacts go; both in small steps, each of which is done once."""
        while await self._undo_changes(tenant_id, import_id):
            pass
        first, last = parse.id_range(import_id)
        while True:
            async with self._database.worker() as tx:
                if not await self._undoing(tx, tenant_id, import_id):
                    return "nothing to do"
                if await store.undo_created(tx, tenant_id, first, last, UNDO_ROWS) == 0:
                    break
        async with self._database.worker() as tx:
            await store.hold_table(tx, tenant_id)
            one = await store.read_import(tx, tenant_id, import_id, lock=True)
            if one is None or one.info.status != "undoing":
                return "nothing to do"
            await store.keep_created(tx, tenant_id, import_id, first, last)
            kept = await store.number(tx, "count_kept", tenant_id, import_id)
            await tx.execute(store.S.set_kept, tenant_id, import_id, kept)
            await self._move(tx, tenant_id, one.info, "undone", finished=True)
            await self.release(tx, tenant_id)
        return f"{kept} kept"

    async def _undo_changes(self, tenant_id: int, import_id: UUID) -> bool:
        async with self._database.worker() as tx:
            if not await self._undoing(tx, tenant_id, import_id):
                return False
            changes = await store.take_changes(tx, tenant_id, import_id, UNDO_ROWS)
            rows, kept = [], []
            for contact_id, before, after, now in changes:
                if now is None:
                    kept.append(Kept(contact_id, [], "GONE"))
                    continue
                fields, differing = back.put_back(before, after, now)
                rows.append({"contact_id": contact_id, **fields})
                if differing:
                    kept.append(Kept(contact_id, differing, "CHANGED_SINCE"))
            if rows:
                await store.put_back(tx, tenant_id, rows, self._clock.now())
            if kept:
                await store.keep_changed(tx, tenant_id, import_id, kept)
        return bool(changes)

    async def _undoing(self, tx: Tx, tenant_id: int, import_id: UUID) -> bool:
        one = await store.share_import(tx, tenant_id, import_id)
        return one is not None and one.info.status == "undoing" and not one.info.paused

    async def _move(
        self,
        tx: Tx,
        tenant_id: int,
        one: Import,
        status: Status,
        *,
        started: bool = False,
        finished: bool = False,
        error: str | None = None,
    ) -> Stored:
        now = self._clock.now()
        moved = structs.replace(one, status=status, error=error)
        return await store.move_import(
            tx, tenant_id, moved, started=now if started else None, finished=now if finished else None
        )


def mapped(plan: Plan) -> tuple[list[str], list[str]]:
    """The attributes and the fields that the file speaks about: what `replace` may empty."""
    targets = {column.target for column in plan.columns if column.target}
    attributes = {target.removeprefix(ATTRIBUTE) for target in targets if target.startswith(ATTRIBUTE)}
    names = targets & {"first_name", "last_name"}
    fields = targets & {"phone", "email", "external_id", "name", "locale"}
    return sorted(attributes | names), sorted(fields | ({"name"} if names else set()))
