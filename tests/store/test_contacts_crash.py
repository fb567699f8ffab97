"""Death in the middle of an import and of its undoing: run on, it ends in the same table as if nobody had died.

The points are counted, then every EACH-th of them is died at: enough to meet every statement's neighbourhood in the
time that the gate has.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from handbill.contacts.service import ContactsService
from handbill.infra.postgres import Database, derive
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from tests.conftest import MakeTenant
from tests.kit import messy
from tests.kit.address_book import ACTOR, contacts, imported, run, table, uploaded
from tests.kit.crashes import Died, dying_at
from tests.kit.engines import Engines

SMALL: dict[str, Any] = {"chunk_bytes": 1_200, "slice_rows": 20}
EACH = 11
COPY = Sql(
    "insert into contacts.contacts select $2, contact_id, phone, whatsapp, email, external_id, name, locale,"
    " attributes, tags, granted, denied, version, created_at, updated_at from contacts.contacts where tenant_id = $1",
    "copy_contacts",
)


@asynccontextmanager
async def a_process(engines: Engines, folder: Path) -> AsyncIterator[ContactsService]:
    """Adapters of its own, which die with it."""
    database = Database(derive(engines.postgres_url), app_size=2, worker_size=2, direct_size=1)
    redis = Redis(engines.redis_url, timeout=30)
    await database.start()
    await redis.start()
    try:
        yield contacts(database, redis, folder, **SMALL)
    finally:
        await redis.stop()
        await database.stop()


async def die_here_and_there(attempt: Callable[[], Awaitable[None]], check: Callable[[str], Awaitable[None]]) -> int:
    with dying_at(0) as points:
        await attempt()
    await check("nobody died")
    for number in range(3, len(points), EACH):
        with dying_at(number) as seen, contextlib.suppress(Died):
            await attempt()
        await check(f"died at {number}: {seen[-1]}")
    return len(points)


async def test_an_import_may_die_anywhere(
    engines: Engines, database: Database, redis: Redis, make_tenant: MakeTenant, tmp_path: Path
) -> None:
    folder = tmp_path / "uploads"
    service = contacts(database, redis, folder, **SMALL)
    older, newer = tmp_path / "older.csv", tmp_path / "newer.csv"
    messy.write(older, messy.rows(5, 12))
    messy.write(newer, messy.rows(5, 25))
    plan: dict[str, Any] = {"tags": ["new"], "consent": {"channels": ["whatsapp"], "source": "form"}}
    template = await make_tenant()
    await imported(service, template, older, region=messy.REGION)
    before = plain(await table(database, template))

    async def begun() -> tuple[int, UUID]:
        tenant = await make_tenant()
        async with database.worker() as tx:
            await tx.execute(COPY, template, tenant)
        made = await uploaded(service, tenant, newer, region=messy.REGION, **plan)
        await service.imports.start(tenant, made.import_id, actor=ACTOR)
        return tenant, made.import_id

    async def whole() -> tuple[int, UUID]:
        made = await begun()
        await run(service, *made)
        return made

    ended = await whole()
    wanted = (await service.imports.read(*ended)).info.counts
    expected = plain(await table(database, ended[0]))
    assert min(wanted.updated, wanted.created, wanted.rejected, wanted.unchanged + wanted.duplicates) > 0
    at = await begun()

    async def attempt() -> None:
        async with a_process(engines, folder) as dying:
            await run(dying, *at)

    async def same(how: str) -> None:
        nonlocal at
        done = await run(service, *at)
        assert (done.status, done.counts) == ("done", wanted), how
        assert plain(await table(database, at[0])) == expected, how
        at = await begun()

    points = await die_here_and_there(attempt, same)
    at = await whole()

    async def undo() -> None:
        async with a_process(engines, folder) as dying:
            await dying.imports.undo(*at, actor=ACTOR)
            await run(dying, *at)

    async def as_before(how: str) -> None:
        nonlocal at
        await service.imports.undo(*at, actor=ACTOR)
        assert (await run(service, *at)).status == "undone", how
        assert plain(await table(database, at[0])) == before, how
        at = await whole()

    print(f"crash points of an import: {points}, of an undo: {await die_here_and_there(undo, as_before)}")


def plain(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Without the ids and the times, which belong to each import."""
    return sorted((row[1:-1] for row in rows), key=str)
