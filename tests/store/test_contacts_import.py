"""An import ends as if its rows had been applied one by one, whatever is wrong with them; and can be undone."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from handbill.infra.postgres import Database
from handbill.infra.redis import Redis
from handbill.infra.sqlfiles import Sql
from tests.kit import messy
from tests.kit.address_book import ACTOR, contacts, imported, people, run, table

BEFORE, ROWS = 1_500, 6_000


@pytest.mark.parametrize("policy", ["skip", "update", "update_blanks", "replace"])
async def test_every_policy_equals_the_rows_applied_in_order(
    database: Database, redis: Redis, tenant: int, tmp_path: Path, policy: str
) -> None:
    service = contacts(database, redis, tmp_path / "uploads")
    expected: dict[str, dict[str, Any]] = {}
    older, newer = tmp_path / "older.csv", tmp_path / "newer.csv"
    messy.write(older, messy.rows(1, BEFORE), lambda row: messy.apply(expected, row, "update", {"old"}) and None)
    first = await imported(service, tenant, older, region=messy.REGION, tags=["old"])
    assert first.status == "done", first.error
    assert await people(database, tenant) == expected
    before = await table(database, tenant)

    codes: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    keys = set(expected)

    def keep(row: messy.Row) -> None:
        outcomes[messy.apply(expected, row, policy, {"new", "spring"})] += 1
        codes.update(code for code in (row.code, row.noted) if code)

    # the second file speaks of half of the first one's people again
    made = [*messy.rows(1, BEFORE // 2), *messy.rows(2, ROWS, first=10_000)]
    messy.write(newer, iter(made), keep)
    done = await imported(service, tenant, newer, region=messy.REGION, policy=policy, tags=["spring", "new"])
    assert done.status == "done", done.error
    assert await people(database, tenant) == expected

    counts = done.counts
    assert counts.rows == len(made)
    assert (counts.rejected, counts.blank, counts.created) == tuple(
        outcomes[name] for name in ("rejected", "blank", "created")
    )
    assert counts.created == len(set(expected) - keys)
    others = counts.updated + counts.unchanged + counts.skipped + counts.duplicates
    assert counts.rows == counts.created + others + counts.rejected + counts.blank
    report = await service.imports.report(tenant, done.import_id)
    found = Counter({cause.code: cause.rows for cause in report.causes if cause.severity != "repair"})
    assert found == codes

    await service.imports.undo(tenant, done.import_id, actor=ACTOR)
    undone = await run(service, tenant, done.import_id)
    assert (undone.status, undone.undo_kept) == ("undone", 0)
    assert await table(database, tenant) == before


async def test_a_copied_chunk_is_let_go_without_the_collector(database: Database) -> None:
    """Held until a cycle is collected, every chunk of a file would stay in memory: 865 MB for three million rows."""
    text = b"".join(b"%d\n" % number for number in range(20_000))
    gc.disable()
    try:
        async with database.worker() as tx:
            await tx.execute(Sql("create temporary table copied (a text) on commit drop", "made"))
            before = sys.getrefcount(text)
            assert await tx.copy_text("copied", ["a"], text) == 20_000
            assert sys.getrefcount(text) == before
    finally:
        gc.enable()
