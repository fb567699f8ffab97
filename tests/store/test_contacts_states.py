"""The states of an import: paused, resumed, cancelled, waiting for its turn, undone in part; and fixes."""

from __future__ import annotations

import asyncio
import csv
import io
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from handbill.contacts import import_store as store
from handbill.contacts.model import ContactFilter, ContactPatch, PlanPatch
from handbill.contacts.running import NotNow
from handbill.contacts.service import ContactsService, UploadLimits, file_chunks
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.errors import Busy, Conflict, Invalid, NotFound, Throttled
from tests.kit import messy
from tests.kit.address_book import ACTOR, contacts, imported, inline, people, run, table, uploaded
from tests.kit.waiting import eventually

SAYS_NO = Sql(
    "update contacts.contacts set denied = '{whatsapp}', granted = '{}', version = version + 1 where tenant_id = $1",
    "says_no",
)
WAITED_FOR = Sql(
    "select exists (select from pg_locks where not granted and pg_backend_pid() = any (pg_blocking_pids(pid)))",
    "waited_for",
)
WISHES = Sql("select name, granted, denied from contacts.contacts where tenant_id = $1", "wishes")
LIMITS = UploadLimits(open_imports=3)
AGED = Sql("update contacts.imports set created_at = now() - interval '1 year' where tenant_id = $1", "aged")


@pytest.fixture
def service(database: Database, redis: Redis, tmp_path: Path) -> ContactsService:
    return contacts(database, redis, tmp_path / "uploads", chunk_bytes=8_192, slice_rows=100, uploads=LIMITS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "people.csv"
    messy.write(path, messy.rows(3, 300))
    return path


async def test_pause_and_resume_in_every_phase(
    service: ContactsService, database: Database, tenant: int, file: Path
) -> None:
    made = await uploaded(service, tenant, file, region=messy.REGION)
    number, imports = made.import_id, service.imports
    await imports.start(tenant, number, actor=ACTOR)
    seen: list[str] = []
    while (info := (await imports.read(tenant, number)).info).status != "done":
        seen.append(info.status)
        await imports.pause(tenant, number, actor=ACTOR)
        assert (await imports.pause(tenant, number, actor=ACTOR)).paused
        await service.runner.upload(tenant, number, inline)
        await service.runner.chunk(tenant, number, 0, inline)
        await service.runner.persist(tenant, number, 0)
        held = (await imports.read(tenant, number)).info
        assert (held.status, held.paused, held.counts) == (info.status, True, info.counts)
        await imports.resume(tenant, number, actor=ACTOR)
        if info.status == "queued":
            await service.runner.upload(tenant, number, inline)
            continue
        phase = "chunk" if info.status == "parsing" else "slice"
        async with database.worker() as tx:
            parts = await store.open_parts(tx, tenant, number, phase)
        if phase == "chunk":
            await service.runner.chunk(tenant, number, parts[0], inline)
            await service.runner.chunk(tenant, number, parts[0], inline)  # delivered twice
        else:
            await service.runner.persist(tenant, number, parts[0])
    assert {"queued", "parsing", "merging"} <= set(seen)
    expected: dict[str, messy.Person] = {}
    for row in messy.rows(3, 300):
        messy.apply(expected, row, "update", set())
    assert await people(database, tenant) == expected
    view = await imports.read(tenant, number)
    assert (view.progress.parsed, view.progress.merged, view.progress.eta_s) == (300, 300, None)


async def test_a_cancelled_import_can_be_undone(
    service: ContactsService, database: Database, tenant: int, file: Path
) -> None:
    made = await uploaded(service, tenant, file, region=messy.REGION)
    number, imports = made.import_id, service.imports
    await imports.start(tenant, number, actor=ACTOR)
    while (await imports.read(tenant, number)).info.status != "merging":
        if (await imports.read(tenant, number)).info.status == "queued":
            await service.runner.upload(tenant, number, inline)
        for no in range(20):
            await service.runner.chunk(tenant, number, no, inline)
    await service.runner.persist(tenant, number, 0)
    with pytest.raises(Conflict):
        await imports.undo(tenant, number, actor=ACTOR)
    ended = await imports.cancel(tenant, number, actor=ACTOR)
    assert ended.status == "cancelled"
    assert await service.runner.persist(tenant, number, 1) == "nothing to do"
    assert 0 < len(await table(database, tenant)) < 270
    async with database.worker() as tx:
        assert await store.drop_staged(tx, tenant, number) == 0
    await imports.undo(tenant, number, actor=ACTOR)
    assert (await run(service, tenant, number)).status == "undone"
    assert await table(database, tenant) == []


async def test_an_undo_leaves_alone_what_changed_since(
    service: ContactsService, database: Database, tenant: int, tmp_path: Path
) -> None:
    file = tmp_path / "a.csv"
    file.write_text("phone,name,city\n+5511987654321,Ann,Rio\n+5511987650000,Bob,Rio\n")
    await imported(service, tenant, file)
    file.write_text("phone,name,city\n+5511987654321,Anna,São Paulo\n+5511987651111,Cid,\n+5511987652222,Dan,\n")
    second = await imported(service, tenant, file, tags=["new"])
    book = service.book
    by_phone = {one.phone: one for one in (await book.search(tenant, None, 9, ContactFilter())).items}
    ann, cid = by_phone["+5511987654321"].contact_id, by_phone["+5511987651111"].contact_id
    await book.change(tenant, ann, ContactPatch(name="Annie", add_tags=["vip"]), actor=ACTOR)
    await book.change(tenant, cid, ContactPatch(name="Cyd"), actor=ACTOR)
    await service.imports.undo(tenant, second.import_id, actor=ACTOR)
    undone = await run(service, tenant, second.import_id)
    assert undone.undo_kept == 2
    kept = await service.imports.kept(tenant, second.import_id, None, 9)
    assert {one.contact_id: (one.fields, one.why) for one in kept.items} == {
        ann: (["name"], "CHANGED_SINCE"),
        cid: ([], "CHANGED_SINCE"),
    }
    left = {one.name: (one.attributes, one.tags) for one in (await book.search(tenant, None, 9, ContactFilter())).items}
    assert left == {"Annie": ({"city": "Rio"}, ["vip"]), "Bob": ({"city": "Rio"}, []), "Cyd": ({}, ["new"])}


async def test_imports_of_one_tenant_take_turns_at_the_table(
    service: ContactsService, database: Database, redis: Redis, tenant: int, file: Path
) -> None:
    first = await uploaded(service, tenant, file, region=messy.REGION)
    second = await uploaded(service, tenant, file, region=messy.REGION, policy="skip")
    third = await uploaded(service, tenant, file, region=messy.REGION, policy="skip")
    for one in (first, second, third):
        await service.imports.start(tenant, one.import_id, actor=ACTOR)
    runner = service.runner
    for one in (first, second):
        await runner.upload(tenant, one.import_id, inline)
        for no in range(20):
            await runner.chunk(tenant, one.import_id, no, inline)
    waiting = await service.imports.read(tenant, second.import_id)
    assert waiting.info.status == "parsed"
    narrow = contacts(database, redis, service.uploads.folder, at_once=1)
    with pytest.raises(NotNow):
        await narrow.runner.upload(tenant, third.import_id, inline)
    with pytest.raises(Throttled):
        await uploaded(service, tenant, file)
    assert (await run(service, tenant, first.import_id)).status == "done"
    done = await run(service, tenant, second.import_id)
    assert (done.status, done.counts.created) == ("done", 0)
    assert (await run(service, tenant, third.import_id)).counts.skipped == done.counts.skipped > 200


async def test_only_the_fixes_come_back(
    service: ContactsService, database: Database, tenant: int, file: Path, tmp_path: Path
) -> None:
    done = await imported(service, tenant, file, region=messy.REGION, tags=["spring"])
    text = "".join([part async for part in service.imports.rejected_csv(tenant, done.import_id)])
    head, *rows = list(csv.reader(io.StringIO(text)))
    assert len(rows) == done.counts.rejected
    assert tuple(head[:6]) == messy.COLUMNS
    assert not any(cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row)
    for number, row in enumerate(rows):
        row[2] = f"'+5511976{number:06d}"
    path = tmp_path / "fixes.csv"
    with path.open("w", newline="") as out:
        csv.writer(out).writerows([head, *rows])
    fixed = await service.imports.upload(tenant, file_chunks(path), actor=ACTOR, name="fixes.csv", fixes=done.import_id)
    assert [column.target for column in fixed.plan.columns[6:]] == [None] * 5
    await service.imports.start(tenant, fixed.import_id, actor=ACTOR)
    after = await run(service, tenant, fixed.import_id)
    assert (after.counts.created, after.counts.rejected) == (len(rows), 0)


async def test_what_cannot_be_planned_is_refused(
    service: ContactsService, tenant: int, file: Path, tmp_path: Path
) -> None:
    imports = service.imports
    made = await uploaded(service, tenant, file)
    for bad in (
        {"columns": [{"index": 99, "target": "name"}]},
        {"columns": [{"index": 0, "target": "phone"}]},
        {"columns": [{"index": 2, "target": None}]},
        {"columns": [{"index": 4, "target": "nonsense"}]},
        {"region": "XX"},
    ):
        with pytest.raises(Invalid):
            await uploaded(service, tenant, file, **bad)
    changed = await imports.change(tenant, made.import_id, PlanPatch(header=False, key="email"), actor=ACTOR)
    assert changed.plan.columns[0].name == "column 1"
    preview = await imports.preview(tenant, made.import_id, 5)
    assert [row.row for row in preview.rows] == [1, 2, 3, 4, 5]
    await imports.cancel(tenant, made.import_id, actor=ACTOR)
    with pytest.raises(Conflict):
        await imports.start(tenant, made.import_id, actor=ACTOR)
    empty = tmp_path / "empty.csv"
    empty.write_text("phone,name\n")
    assert (await imported(service, tenant, empty)).status == "done"
    with pytest.raises(NotFound):
        await imports.read(tenant, uuid4())


async def test_old_files_and_reports_go(
    service: ContactsService, database: Database, redis: Redis, tenant: int, file: Path
) -> None:
    done = await imported(service, tenant, file, region=messy.REGION)
    waiting = await uploaded(service, tenant, file)
    dropped = await uploaded(service, tenant, file)
    stored = service.uploads.path(f"{dropped.import_id}.bin")
    assert stored.exists()
    await service.imports.cancel(tenant, dropped.import_id, actor=ACTOR)
    assert not stored.exists()
    await service.sweep()
    assert service.uploads.path(f"{done.import_id}.bin").exists()
    assert "reject" in {cause.severity for cause in (await service.imports.report(tenant, done.import_id)).causes}
    async with database.worker() as tx:
        await tx.execute(AGED, tenant)
    await service.sweep()
    assert not service.uploads.path(f"{done.import_id}.bin").exists()
    assert not any(
        cause.severity == "reject" for cause in (await service.imports.report(tenant, done.import_id)).causes
    )
    with pytest.raises(Conflict):
        await service.imports.preview(tenant, waiting.import_id)
    expired = (await service.imports.read(tenant, waiting.import_id)).info
    assert (expired.status, (expired.error or "").partition(":")[0]) == ("cancelled", "UPLOAD_EXPIRED")
    with pytest.raises(Conflict):
        await service.imports.start(tenant, waiting.import_id, actor=ACTOR)


async def test_a_no_said_during_a_merge_or_an_undo_is_kept(
    service: ContactsService, database: Database, tenant: int, tmp_path: Path
) -> None:
    """Whoever says no while their row is about to be written is not written over: the import waits, and looks again."""
    file = tmp_path / "one.csv"
    consent = {"channels": ["whatsapp"], "source": "shop"}

    async def patiently(import_id: UUID) -> None:
        while True:
            try:
                await run(service, tenant, import_id)
            except Busy:  # the lock was not free in time: the queue would try again
                continue
            return

    async def beside(import_id: UUID, said: Sql) -> None:
        async with database.worker() as tx:
            await tx.execute(said, tenant)
            running = asyncio.create_task(patiently(import_id))
            await eventually(lambda: tx.fetchval(WAITED_FOR))
        await running

    async def wishes() -> list[tuple[str, list[str], list[str]]]:
        async with database.worker() as tx:
            return [tuple(row) for row in await tx.fetch(WISHES, tenant)]

    file.write_text("name,phone\nAna,+447911123456\n")
    await imported(service, tenant, file, consent=consent)
    file.write_text("name,phone\nAnna,+447911123456\n")
    made = await uploaded(service, tenant, file, policy="update", consent=consent)
    await service.imports.start(tenant, made.import_id, actor=ACTOR)
    await beside(made.import_id, SAYS_NO)
    assert await wishes() == [("Anna", [], ["whatsapp"])]

    await service.imports.undo(tenant, made.import_id, actor=ACTOR)
    await beside(made.import_id, Sql("update contacts.contacts set name = 'Anne' where tenant_id = $1", "renamed"))
    assert await wishes() == [("Anne", [], ["whatsapp"])]
