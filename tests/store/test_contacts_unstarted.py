"""Uploads that nobody starts: limited in number and bytes for each tenant, and removed when they expire."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from handbill.contacts.model import Import
from handbill.contacts.service import ContactsService, UploadLimits
from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from handbill.kit.errors import HandbillError, Throttled
from tests.conftest import MakeTenant
from tests.kit.address_book import ACTOR, contacts
from tests.kit.waiting import eventually

FILE = b"name,phone\nAna,+5511987654321\n"
AGED = Sql(
    "update contacts.imports set created_at = now() - interval '49 hours' where tenant_id = $1 and import_id = $2",
    "aged_one",
)
DAY = 86_400


@pytest.fixture
def service(database: Database, redis: Redis, tmp_path: Path) -> ContactsService:
    return limited(database, redis, tmp_path, files=3, size=10_000)


def limited(database: Database, redis: Redis, folder: Path, *, files: int, size: int) -> ContactsService:
    limits = UploadLimits(unstarted_files=files, unstarted_bytes=size)
    return contacts(database, redis, folder / "uploads", uploads=limits)


async def parts(*bodies: bytes) -> AsyncIterator[bytes]:
    for body in bodies:
        yield body


async def upload(service: ContactsService, tenant_id: int, *bodies: bytes, length: int | None = None) -> Import:
    return await service.imports.upload(tenant_id, parts(*bodies), actor=ACTOR, name="a.csv", length=length)


async def refusal(service: ContactsService, tenant_id: int, *bodies: bytes, length: int | None = None) -> Throttled:
    with pytest.raises(Throttled) as caught:
        await upload(service, tenant_id, *bodies, length=length)
    assert caught.value.code == "UPLOADS_WAITING"
    assert caught.value.retry_after
    return caught.value


async def test_a_body_is_read_to_its_end_whatever_the_upload_is_refused_for(
    service: ContactsService, tenant: int
) -> None:
    for refused in ({"fixes": uuid4()}, {"region": "nowhere"}, {"length": 1 << 50}):
        bodies = parts(FILE, FILE)
        with pytest.raises(HandbillError):
            await service.imports.upload(tenant, bodies, actor=ACTOR, name="a.csv", **refused)
        assert [part async for part in bodies] == []
    assert not service.uploads.folder.exists() or files(service) == 0


def files(service: ContactsService) -> int:
    return len(list(service.uploads.folder.iterdir()))


async def test_their_number_is_limited_for_each_tenant(service: ContactsService, make_tenant: MakeTenant) -> None:
    tenant, other = await make_tenant(), await make_tenant()
    first, *_ = [await upload(service, tenant, FILE) for _ in range(3)]
    error = await refusal(service, tenant, FILE)
    assert "4 uploads of 90 bytes wait to be started; 3 uploads of 10000 bytes may" in error.detail
    assert "cancel" in error.detail
    assert files(service) == 3
    await upload(service, other, FILE)
    await service.imports.cancel(tenant, first.import_id, actor=ACTOR)
    again = await upload(service, tenant, FILE)
    await service.imports.start(tenant, again.import_id, actor=ACTOR)
    await upload(service, tenant, FILE)


async def test_their_bytes_are_limited_before_they_are_kept(service: ContactsService, make_tenant: MakeTenant) -> None:
    tenant, other = await make_tenant(), await make_tenant()
    row = b"Ana,+5511987654321\n" * 100
    await upload(service, tenant, FILE, *[row] * 4)
    error = await refusal(service, tenant, FILE, *[row] * 4, length=len(FILE) + 4 * len(row))
    assert f"2 uploads of {2 * (len(FILE) + 4 * len(row))} bytes" in error.detail
    await refusal(service, tenant, FILE, *[row] * 4)
    assert files(service) == 1
    await upload(service, other, FILE, *[row] * 4)
    await upload(service, tenant, FILE)


async def test_uploads_that_come_at_once_do_not_exceed_the_limits(
    database: Database, redis: Redis, tenant: int, tmp_path: Path
) -> None:
    """Two services are as two API processes: neither sees what the other is receiving."""
    services = [limited(database, redis, tmp_path, files=1, size=10_000) for _ in range(2)]
    both_came, coming = asyncio.Event(), 0

    async def body() -> AsyncIterator[bytes]:
        nonlocal coming
        yield FILE
        coming += 1
        await both_came.wait()

    uploading = [asyncio.create_task(one.imports.upload(tenant, body(), actor=ACTOR, name="a.csv")) for one in services]
    await eventually(lambda: coming == 2)
    await refusal(services[0], tenant, FILE)
    both_came.set()
    results = await asyncio.gather(*uploading, return_exceptions=True)
    assert sorted(type(one).__name__ for one in results) == ["Import", "Throttled"], results
    assert files(services[0]) == 1
    assert not services[0].imports._admission._incoming


async def test_an_unstarted_upload_expires(
    service: ContactsService, database: Database, make_tenant: MakeTenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, tenant = await make_tenant(), await make_tenant()
    bad, old, young = [await upload(service, one, FILE) for one in (broken, tenant, tenant)]
    async with database.worker() as tx:
        await tx.execute(AGED, broken, bad.import_id)
        await tx.execute(AGED, tenant, old.import_id)
    end = service.runner.end

    async def fail_for_one(tx: object, tenant_id: int, *args: object) -> object:
        if tenant_id == broken:
            raise RuntimeError("injected")
        return await end(tx, tenant_id, *args)  # type: ignore[arg-type] # handed on as it came

    monkeypatch.setattr(service.runner, "end", fail_for_one)
    await service.sweep()
    expired = (await service.imports.read(tenant, old.import_id)).info
    assert (expired.status, (expired.error or "").partition(":")[0]) == ("cancelled", "UPLOAD_EXPIRED")
    assert (await service.imports.read(tenant, young.import_id)).info.status == "ready"
    assert not service.uploads.path(f"{old.import_id}.bin").exists()
    assert service.uploads.path(f"{young.import_id}.bin").exists()
    assert (await service.imports.read(broken, bad.import_id)).info.status == "ready"
    assert service.uploads.path(f"{bad.import_id}.bin").exists(), "it is tried again in the next run"


async def test_what_a_crash_left_behind_is_removed(service: ContactsService, tenant: int) -> None:
    kept = await upload(service, tenant, FILE)
    folder = service.uploads.folder
    names = [f"{uuid4()}.part", f"{uuid4()}.bin", f"{uuid4()}.utf8", f"{uuid4()}.123.part"]
    for name in [*names, "notes.txt"]:
        (folder / name).write_bytes(FILE)
    young = folder / f"{uuid4()}.part"
    young.write_bytes(FILE)
    for path in folder.iterdir():
        if path != young:
            written = path.stat().st_mtime - DAY - 60
            os.utime(path, (written, written))
    await service.sweep()
    assert {path.name for path in folder.iterdir()} == {f"{kept.import_id}.bin", "notes.txt", young.name}
