"""A million messy rows by workers that are killed at random: the table is what the generator's own table says, and
empty again after the undo. And a million numbers by the short way and by the library: not one differs.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from handbill import settings
from handbill.tenants.model import NewTenant
from handbill.wiring.house import build
from tests.kit import messy
from tests.kit.address_book import ACTOR, people, table, uploaded
from tests.kit.import_fire import through_fire
from tests.kit.processes import Process
from tests.kit.stack import Stack
from tests.soak.context import Context
from tests.unit.test_contacts_addresses import mismatches

ROWS = 1_000_000
NUMBERS = 1_000_000
KILLS = 12


class Expected:
    def __init__(self) -> None:
        self.people: dict[str, messy.Person] = {}
        self.corruptions: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()

    def keep(self, row: messy.Row) -> None:
        messy.apply(self.people, row, "update", {"soak"})
        self.corruptions[row.corruption] += 1
        self.codes.update(code for code in (row.code, row.noted) if code)


async def run(ctx: Context) -> dict[str, Any]:
    ctx.settings = {"rows": ROWS, "kills": KILLS, "numbers": NUMBERS, "policy": "update"}
    quick = {"HANDBILL_JOBS__LOCK_MS": "2000", "HANDBILL_JOBS__STALLED_MS": "2000"}
    async with ctx.stack(settings=quick) as built:
        house = build(settings.load(built.env(HANDBILL_REDIS__TIMEOUT_MS="60000")))
        await house.start("tool")
        try:
            counts = await _fire(ctx, built, house)
        finally:
            await house.stop()
    ctx.say("the short way against the library")
    assert await asyncio.to_thread(mismatches, random.Random(ctx.seed), NUMBERS) == []
    return counts


async def _fire(ctx: Context, built: Stack, house: Any) -> dict[str, Any]:
    expected, path = Expected(), Path(built.home) / "messy.csv"
    messy.write(path, messy.rows(ctx.seed, ROWS), expected.keep)
    tenant = (await house.tenants.create_tenant(NewTenant(name="Soak", slug="soak"), actor=ACTOR)).tenant_id
    service = house.contacts

    async def begin(doors: AsyncExitStack) -> Process:
        worker: Process = await doors.enter_async_context(built.worker("--only", "jobs,relay"))
        return worker

    made = await uploaded(service, tenant, path, region=messy.REGION, tags=["soak"])
    await service.imports.start(tenant, made.import_id, actor=ACTOR)
    kills = await through_fire(service, tenant, made.import_id, begin, ctx.random, KILLS, timeout=1_200)
    ctx.say(f"imported, {kills} workers killed")
    done = (await service.imports.read(tenant, made.import_id)).info
    found = await people(house.database, tenant)
    assert found == expected.people, "the table is not what the corruptions' table says"
    report = await service.imports.report(tenant, made.import_id)
    causes = Counter({cause.code: cause.rows for cause in report.causes if cause.severity != "repair"})
    assert causes == expected.codes, (causes, expected.codes)
    await service.imports.undo(tenant, made.import_id, actor=ACTOR)
    undo_kills = await through_fire(service, tenant, made.import_id, begin, ctx.random, 0, "undone", timeout=1_200)
    assert await table(house.database, tenant) == []
    return {
        "rows": done.counts.rows,
        "contacts": len(found),
        "rejected": done.counts.rejected,
        "repaired": done.counts.repaired,
        "duplicates": done.counts.duplicates,
        "corruptions": len(expected.corruptions),
        "workers_killed": kills + undo_kills,
        "differences": 0,
        "numbers_compared": NUMBERS,
    }
