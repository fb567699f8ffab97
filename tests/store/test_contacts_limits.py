"""A chunk that takes for ever costs its own rows: the import ends, and other tenants' imports are not stopped."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from handbill.contacts import running
from handbill.contacts.service import ContactsService
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from tests.kit.address_book import ACTOR, contacts, people, run, uploaded
from tests.kit.slow_files import MARK, SpinningPool
from tests.kit.waiting import eventually

ROWS = 40


def write(path: Path, marked: set[int]) -> Path:
    lines = [f"person {n}{MARK if n in marked else ''},+5511987654{n:03d}" for n in range(ROWS)]
    path.write_text("\n".join(["name,phone", *lines]) + "\n")
    return path


@pytest.fixture
async def spinning() -> AsyncIterator[SpinningPool]:
    made = SpinningPool(2)
    yield made
    await made.pool.stop()


@pytest.fixture
def service(database: Database, redis: Redis, tmp_path: Path) -> ContactsService:
    return contacts(database, redis, tmp_path / "uploads", chunk_seconds=2)


async def test_a_row_that_never_ends_is_rejected_alone(
    service: ContactsService, database: Database, tenant: int, tmp_path: Path, spinning: SpinningPool
) -> None:
    made = await uploaded(service, tenant, write(tmp_path / "people.csv", {7}))
    await service.imports.start(tenant, made.import_id, actor=ACTOR)
    done = await run(service, tenant, made.import_id, spinning.run)
    assert (done.status, done.counts.rejected, done.counts.created) == ("done", 1, ROWS - 1), done.error
    report = await service.imports.report(tenant, made.import_id)
    assert [(cause.code, cause.rows) for cause in report.causes] == [("ROW_TOO_SLOW", 1)]
    assert "+5511987654007" not in await people(database, tenant)
    assert all(limit is not None for limit in spinning.limits), "every call has a limit"


async def test_another_import_ends_while_a_chunk_spins(
    service: ContactsService, tenant: int, tmp_path: Path, spinning: SpinningPool, database: Database, redis: Redis
) -> None:
    hanging = contacts(database, redis, tmp_path / "uploads", chunk_seconds=600)
    bad = await uploaded(hanging, tenant, write(tmp_path / "bad.csv", {7}))
    good = await uploaded(service, tenant, write(tmp_path / "good.csv", set()))
    for one in (bad, good):
        await service.imports.start(tenant, one.import_id, actor=ACTOR)
    slow = asyncio.create_task(run(hanging, tenant, bad.import_id, spinning.run))
    await eventually(lambda: next((tmp_path / "uploads").glob("*.spinning"), None))
    done = await run(service, tenant, good.import_id, spinning.run)
    assert (done.status, done.counts.created) == ("done", ROWS)
    assert not slow.done()
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow


async def test_an_import_of_many_slow_chunks_fails_with_a_reason(
    service: ContactsService, tenant: int, tmp_path: Path, spinning: SpinningPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "SLOW_CHUNKS", 0)
    made = await uploaded(service, tenant, write(tmp_path / "people.csv", {7}))
    await service.imports.start(tenant, made.import_id, actor=ACTOR)
    done = await run(service, tenant, made.import_id, spinning.run)
    assert done.status == "failed"
    assert done.error is not None
    assert done.error.startswith("IMPORT_LIMIT")
