"""The verbs of an import: upload, plan, preview, start, pause, resume, cancel, undo, report."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

from msgspec import UNSET, structs

from handbill.contacts import import_store as store
from handbill.contacts import planning, progress, report
from handbill.contacts.admission import UploadAdmission
from handbill.contacts.import_store import Stored
from handbill.contacts.inspection import FileInspector
from handbill.contacts.model import (
    OPEN,
    Cause,
    Counts,
    Import,
    ImportView,
    Kept,
    Plan,
    PlanPatch,
    Preview,
    Report,
)
from handbill.contacts.reasons import REASONS
from handbill.contacts.running import Runner
from handbill.contacts.uploads import Incoming, Received, Uploads, drained
from handbill.infra.postgres import Database
from handbill.kit import etags, pages
from handbill.kit.clock import Clock
from handbill.kit.errors import Conflict, EngineRefused, Fault, HandbillError, Invalid, NotFound
from handbill.kit.ids import Ids
from handbill.kit.pages import Page
from handbill.tenants.service import Audit

DefaultRegion = Callable[[int], Awaitable[str | None]]
"""Where a tenant's phone numbers in national form are dialled, if it has said so."""
PREVIEW_ROWS = 50
REPORT_ROWS = 2_000


class Imports:
    def __init__(
        self,
        database: Database,
        audit: Audit,
        runner: Runner,
        uploads: Uploads,
        clock: Clock,
        ids: Ids,
        *,
        inspector: FileInspector,
        admission: UploadAdmission,
        default_region: DefaultRegion,
    ) -> None:
        self._database = database
        self._audit = audit
        self._runner = runner
        self._uploads = uploads
        self._clock = clock
        self._ids = ids
        self._inspector = inspector
        self._admission = admission
        self._default_region = default_region

    # --- upload and plan

    async def upload(
        self,
        tenant_id: int,
        chunks: AsyncIterator[bytes],
        *,
        actor: str,
        content_type: str = "",
        name: str = "upload.csv",
        length: int | None = None,
        region: str | None = None,
        fixes: UUID | None = None,
        member: str | None = None,
    ) -> Import:
        """The file is on disk, and looked at: the answer holds the proposal. Nothing is imported before `start`."""
        try:
            planning.check_region(region)
            async with self._admission.admit(tenant_id, length) as room:
                like = await self._stored(tenant_id, fixes) if fixes is not None else None
                region = region or await self._default_region(tenant_id)
                incoming = Incoming(chunks, room.reserve, content_type, name, length)
                import_id = self._ids.new()
                received = await self._uploads.receive(import_id, incoming)
                plan = await self._propose(tenant_id, received, region, like, member)
                return await self._insert(tenant_id, import_id, received, plan, actor=actor, fixes=fixes)
        except HandbillError:
            await drained(chunks)
            raise

    async def _propose(
        self, tenant_id: int, received: Received, region: str | None, like: Stored | None, member: str | None
    ) -> Plan:
        plan = like.info.plan if like is not None else None
        path = self._uploads.path(received.file)
        try:
            return await self._inspector.propose(tenant_id, path, received.name, region, plan, member)
        except BaseException:  # also when the client has left
            await self._uploads.discard(received.file)
            raise

    async def _insert(
        self, tenant_id: int, import_id: UUID, received: Received, plan: Plan, *, actor: str, fixes: UUID | None
    ) -> Import:
        new = Import(
            import_id=import_id, file_name=received.name, size=received.size, status="ready", paused=False,
            plan=plan, counts=Counts(), created_at=self._clock.now(), version=1, created_by=actor,
            sha256=received.sha256, fixes=fixes,
        )  # fmt: skip
        try:
            async with self._database.tenant(tenant_id) as tx:
                await self._admission.check_stored(tx, tenant_id, received.size)
                made = await store.insert_import(tx, tenant_id, new, received.file)
                await self._note(tx, tenant_id, actor, "import.upload", made.info)
        except (HandbillError, EngineRefused):  # if it was cancelled, the row may be there; the clean-up looks
            await self._uploads.discard(received.file)
            raise
        return made.info

    async def change(
        self, tenant_id: int, import_id: UUID, patch: PlanPatch, *, actor: str, if_version: int | None = None
    ) -> Import:
        """Edits the plan while the import is ready."""
        before = await self._stored(tenant_id, import_id)
        plan = before.info.plan
        header = plan.reading.header if patch.header is UNSET else patch.header
        skip_rows = plan.reading.skip_rows if patch.skip_rows is UNSET else patch.skip_rows
        if (header, skip_rows) != (plan.reading.header, plan.reading.skip_rows):
            path = self._uploads.path(before.file)
            try:
                plan = await self._inspector.change_header(tenant_id, path, plan, header, skip_rows)
            except FileNotFoundError:
                raise _gone() from None
        plan = planning.patched(plan, patch)
        async with self._database.tenant(tenant_id) as tx:
            one = _there(await store.read_import(tx, tenant_id, import_id, lock=True))
            etags.check(if_version, one.info.version)
            if one.info.status != "ready" or one.info.version != before.info.version:
                raise Conflict(
                    "The import has been started or changed meanwhile; nothing was changed.", code="IMPORT_STATE"
                )
            changed = await store.change_plan(tx, tenant_id, import_id, plan)
            await self._note(tx, tenant_id, actor, "import.plan", changed.info)
        return changed.info

    async def preview(self, tenant_id: int, import_id: UUID, rows: int = 20) -> Preview:
        """The first rows and what would become of each. Nothing is changed."""
        one = await self._stored(tenant_id, import_id)
        plan = one.info.plan
        path = self._uploads.path(one.file)
        try:
            head, read = await self._inspector.read_head(tenant_id, path, plan, min(rows, PREVIEW_ROWS))
        except FileNotFoundError:
            raise _gone() from None
        keys = [str(getattr(fields, plan.key)) for fields in read if fields is not None and fields.reject is None]
        async with self._database.tenant(tenant_id) as tx:
            known = await store.known_keys(tx, tenant_id, plan.key, keys)
        first = 1 if plan.reading.format == "jsonl" else 1 + plan.reading.skip_rows + plan.reading.header
        return Preview(plan, list(planning.previewed(plan, head, read, known, first)))

    # --- start, pause, resume, cancel, undo

    async def start(self, tenant_id: int, import_id: UUID, *, actor: str) -> Import:
        """From here on the worker has it. Starting it again changes nothing."""
        async with self._database.tenant(tenant_id) as tx:
            one = _there(await store.read_import(tx, tenant_id, import_id, lock=True))
            if one.info.status != "ready":
                if one.info.status in OPEN or one.info.status == "done":
                    return one.info
                raise _state(one.info, "started")
            planning.check_ready(one.info.plan)
            queued = structs.replace(one.info, status="queued")
            moved = await store.move_import(tx, tenant_id, queued)
            await self._runner.enqueue(tx, tenant_id, moved)
            await self._note(tx, tenant_id, actor, "import.start", moved.info)
        return moved.info

    async def pause(self, tenant_id: int, import_id: UUID, *, actor: str) -> Import:
        """What is being done is finished, nothing new is begun."""
        return await self._held(tenant_id, import_id, True, actor)

    async def resume(self, tenant_id: int, import_id: UUID, *, actor: str) -> Import:
        return await self._held(tenant_id, import_id, False, actor)

    async def _held(self, tenant_id: int, import_id: UUID, paused: bool, actor: str) -> Import:
        async with self._database.tenant(tenant_id) as tx:
            await store.hold_table(tx, tenant_id)
            one = _there(await store.read_import(tx, tenant_id, import_id, lock=True))
            if one.info.status not in OPEN:
                raise _state(one.info, "paused" if paused else "resumed")
            if one.info.paused == paused:
                return one.info
            moved = await store.move_import(tx, tenant_id, structs.replace(one.info, paused=paused))
            if not paused:
                await self._runner.go_on(tx, tenant_id, moved)
            await self._note(tx, tenant_id, actor, "import.pause" if paused else "import.resume", moved.info)
        return (await self._stored(tenant_id, import_id)).info

    async def cancel(self, tenant_id: int, import_id: UUID, *, actor: str) -> Import:
        """No more of it is done. What was merged stays, and can be undone."""
        async with self._database.tenant(tenant_id) as tx:
            await store.hold_table(tx, tenant_id)
            one = _there(await store.read_import(tx, tenant_id, import_id, lock=True))
            if one.info.status == "cancelled":
                return one.info
            if one.info.status not in (*OPEN, "ready") or one.info.status == "undoing":
                raise _state(one.info, "cancelled")
            moved = await self._runner.end(tx, tenant_id, one, "cancelled")
            if one.info.status == "ready":  # nobody will need it: there is nothing to report, and nothing to undo
                await store.file_gone(tx, tenant_id, import_id)
                tx.after_commit(lambda: self._uploads.discard(one.file))
            await self._note(tx, tenant_id, actor, "import.cancel", moved.info)
        return moved.info

    async def undo(self, tenant_id: int, import_id: UUID, *, actor: str) -> Import:
        """Fields that still are as the import left them go back; the rest is listed as kept."""
        async with self._database.tenant(tenant_id) as tx:
            await store.hold_table(tx, tenant_id)
            one = _there(await store.read_import(tx, tenant_id, import_id, lock=True))
            if one.info.status in ("undoing", "undone"):
                return one.info
            if one.info.status not in ("done", "failed", "cancelled"):
                raise _state(one.info, "undone")
            if await store.table_taken(tx, tenant_id, import_id):
                raise Conflict(
                    "Another import is writing contacts now; nothing was changed. Try again when it is done.",
                    code="IMPORT_STATE",
                )
            moved = await store.move_import(tx, tenant_id, structs.replace(one.info, status="undoing", error=None))
            await self._runner.enqueue(tx, tenant_id, moved)
            await self._note(tx, tenant_id, actor, "import.undo", moved.info)
        return moved.info

    # --- looking

    async def read(self, tenant_id: int, import_id: UUID) -> ImportView:
        async with self._database.tenant(tenant_id) as tx:
            one = _there(await store.read_import(tx, tenant_id, import_id))
            sums = await store.sum_counts(tx, tenant_id, import_id)
        counts = (
            one.info.counts if one.info.status in ("done", "undone") else progress.counted(sums, one.info.plan.policy)
        )
        return ImportView(structs.replace(one.info, counts=counts), progress.progress(one, sums, self._clock.now()))

    async def all(self, tenant_id: int, cursor: str | None, limit: int) -> Page[Import]:
        async with self._database.tenant(tenant_id) as tx:
            rows = await store.page_imports(tx, tenant_id, after_id(cursor), limit + 1)
        return pages.page([row.info for row in rows], limit, lambda row: (str(row.import_id),))

    async def report(self, tenant_id: int, import_id: UUID) -> Report:
        """Counts, and every cause with how many rows it met."""
        view = await self.read(tenant_id, import_id)
        async with self._database.tenant(tenant_id) as tx:
            causes = await store.causes(tx, tenant_id, import_id)
            sums = await store.sum_counts(tx, tenant_id, import_id)
        for key, rows in sorted(sums["chunk"].items()):
            if key.startswith("repair:"):
                code = key.removeprefix("repair:")
                causes.append(Cause("repair", code, "phone", rows, *REASONS[code]))
        return Report(view.info, causes)

    async def rejected_csv(self, tenant_id: int, import_id: UUID, *, notes: bool = False) -> AsyncIterator[str]:
        """The rejected rows with their own columns, a page at a time; with `notes`, also rows that lost a field."""
        one = await self._stored(tenant_id, import_id)
        yield report.head(one.info.plan)
        after = (0, 0)
        while True:
            async with self._database.tenant(tenant_id) as tx:
                found = await store.findings_page(
                    tx, tenant_id, import_id, after, REPORT_ROWS, None if notes else "reject"
                )
            if not found:
                return
            yield report.body(one.info.plan, found)
            after = (found[-1].row, found[-1].number)

    async def kept(self, tenant_id: int, import_id: UUID, cursor: str | None, limit: int) -> Page[Kept]:
        """What an undo could not put back."""
        await self._stored(tenant_id, import_id)
        async with self._database.tenant(tenant_id) as tx:
            rows = await store.page_kept(tx, tenant_id, import_id, after_id(cursor), limit + 1)
        return pages.page(rows, limit, lambda row: (str(row.contact_id),))

    # --- inside

    async def _stored(self, tenant_id: int, import_id: UUID) -> Stored:
        async with self._database.tenant(tenant_id) as tx:
            return _there(await store.read_import(tx, tenant_id, import_id))

    async def _note(self, tx: Any, tenant_id: int, actor: str, action: str, one: Import) -> None:
        after = {"status": one.status, "paused": one.paused, "policy": one.plan.policy, "key": one.plan.key}
        await self._audit.write(
            tx, tenant_id, actor=actor, action=action, object=f"import {one.import_id}", after=after
        )


async def file_chunks(path: Path, size: int = 1 << 18) -> AsyncIterator[bytes]:
    """A file on this machine, as an upload would bring it."""
    with path.open("rb") as file:
        while block := file.read(size):
            yield block


def _there(found: Stored | None) -> Stored:
    if found is None:
        raise NotFound("There is no such import in this tenant.", code="IMPORT_NOT_FOUND")
    return found


def _state(one: Import, verb: str) -> Conflict:
    return Conflict(f"An import that is {one.status} cannot be {verb}; nothing was changed.", code="IMPORT_STATE")


def _gone() -> Conflict:
    return Conflict("The file has been removed; upload it again.", code="IMPORT_FILE_GONE")


def after_id(cursor: str | None) -> UUID | None:
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
