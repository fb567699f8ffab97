"""Workers killed in the middle of an import: others go on, and the table is the same as if nobody had died."""

from __future__ import annotations

import random
from contextlib import AsyncExitStack
from pathlib import Path

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.kit import messy
from tests.kit.address_book import ACTOR, contacts, people, table, uploaded
from tests.kit.import_fire import through_fire
from tests.kit.processes import Process, process

ROWS = 6_000


async def test_killed_workers_change_nothing(
    handbill_env: dict[str, str], database: Database, redis: Redis, tenant: int, tmp_path: Path
) -> None:
    folder = tmp_path / "uploads"
    env = handbill_env | {
        "HANDBILL_CONTACTS__UPLOAD_DIR": str(folder),
        "HANDBILL_CONTACTS__CHUNK_BYTES": "32768",
        "HANDBILL_CONTACTS__SLICE_ROWS": "500",
        "HANDBILL_CONTACTS__PARSERS": "1",
        "HANDBILL_JOBS__LOCK_MS": "1000",
        "HANDBILL_JOBS__STALLED_MS": "1000",
    }
    service = contacts(database, redis, folder)
    expected: dict[str, messy.Person] = {}
    path = tmp_path / "people.csv"
    messy.write(path, messy.rows(9, ROWS), lambda row: messy.apply(expected, row, "update", set()) and None)

    async def begin(doors: AsyncExitStack) -> Process:
        running = await doors.enter_async_context(process("worker", "--only", "jobs,relay", env=env))
        await running.log(event="worker-ready")
        return running

    made = await uploaded(service, tenant, path, region=messy.REGION)
    await service.imports.start(tenant, made.import_id, actor=ACTOR)
    await through_fire(service, tenant, made.import_id, begin, random.Random(4), kills=3)
    assert await people(database, tenant) == expected
    await service.imports.undo(tenant, made.import_id, actor=ACTOR)
    await through_fire(service, tenant, made.import_id, begin, random.Random(5), kills=0, until="undone")
    assert await table(database, tenant) == []
