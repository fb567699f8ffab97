"""Contacts for a test: the service over real engines, and an import run to its end without queues."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from handbill.contacts import import_store as store
from handbill.contacts.chunks import Cpu
from handbill.contacts.model import Import, PlanPatch
from handbill.contacts.service import ContactsPolicy, ContactsService, file_chunks
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.jobs.service import JobsService
from handbill.kit.clock import SystemClock
from handbill.kit.ids import Ids
from handbill.tenants.service import Audit
from handbill.tenants.store import read_settings

TABLE = Sql(
    "select contact_id, phone, whatsapp, email, external_id, name, locale, attributes, tags, granted, denied,"
    " created_at from contacts.contacts where tenant_id = $1 order by contact_id",
    "whole_table",
)
ACTOR = "test"


async def inline(
    function: Callable[..., Any], *args: Any, cpu_s: float | None = None, wall_s: float | None = None
) -> Any:
    """In place of the pool of processes: without limits, in this process."""
    return function(*args)


def contacts(database: Database, redis: Redis, folder: Path, *, cpu: Cpu = inline, **policy: Any) -> ContactsService:
    clock = SystemClock()
    audit = Audit(clock, Ids(clock))
    jobs = JobsService(database, redis, audit=audit)
    chosen = ContactsPolicy(folder, **{"chunk_bytes": 100_000, "slice_rows": 2_000, **policy})

    async def default_region(tenant_id: int) -> str | None:
        async with database.tenant(tenant_id) as tx:
            return (await read_settings(tx, tenant_id)).shown.default_region

    return ContactsService(database, jobs, audit, clock, chosen, cpu, default_region)


async def uploaded(
    service: ContactsService, tenant: int, path: Path, *, region: str | None = None, **plan: Any
) -> Import:
    made = await service.imports.upload(tenant, file_chunks(path), actor=ACTOR, name=path.name, region=region)
    if plan:
        made = await service.imports.change(tenant, made.import_id, msgspec.convert(plan, PlanPatch), actor=ACTOR)
    return made


async def imported(
    service: ContactsService, tenant: int, path: Path, *, region: str | None = None, **plan: Any
) -> Import:
    made = await uploaded(service, tenant, path, region=region, **plan)
    await service.imports.start(tenant, made.import_id, actor=ACTOR)
    return await run(service, tenant, made.import_id)


async def run(service: ContactsService, tenant: int, import_id: UUID, cpu: Cpu = inline) -> Import:
    """Every job of the import, one after the other, until there is none."""
    runner = service.runner
    while True:
        info = (await service.imports.read(tenant, import_id)).info
        if info.paused or info.status in ("ready", "parsed", "done", "failed", "cancelled", "undone"):
            return info
        if info.status in ("queued", "splitting"):
            await runner.upload(tenant, import_id, cpu)
        elif info.status == "undoing":
            await runner.undo(tenant, import_id)
        else:
            phase = "chunk" if info.status == "parsing" else "slice"
            async with service._database.worker() as tx:
                parts = await store.open_parts(tx, tenant, import_id, phase)
            if not parts:  # a job that died behind its commit is delivered again, and goes on from there
                await runner.advance(tenant, import_id)
            for no in parts:
                if phase == "chunk":
                    await runner.chunk(tenant, import_id, no, cpu)
                else:
                    await runner.persist(tenant, import_id, no)


async def table(database: Database, tenant: int) -> list[tuple[Any, ...]]:
    """Every contact, every column but versions and times of change."""
    async with database.worker() as tx:
        return [tuple(row) for row in await tx.fetch(TABLE, tenant)]


async def people(database: Database, tenant: int) -> dict[str, dict[str, Any]]:
    """The table in the words of the generator, by phone."""
    found = {}
    async with database.worker() as tx:
        for row in await tx.fetch(TABLE, tenant):
            attributes = msgspec.json.decode(row["attributes"])
            found[row["phone"]] = {
                **{name: row[name] for name in ("external_id", "name", "phone", "email")},
                "City": attributes.get("City"),
                "Birthday": attributes.get("Birthday"),
                "tags": set(row["tags"]),
            }
    return found
