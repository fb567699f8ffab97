"""During an upgrade older code runs on the newer schema for a while: a migration may add, and must not take away."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import asyncpg
import pytest

from handbill.infra.migrations import migrate, shipped
from handbill.ops.backup.restore import unpack
from tests.kit.engines import Engines
from tests.kit.schema import described, empty_database

ROOT = Path(__file__).resolve().parents[2]
FOLDER = "src/handbill/migrations/postgres"
NEWEST = 3  # so many migrations back; older code than that is not run beside today's

# What a migration took away after no release used it any more: `kind name` -> since when, and why.
GONE_ON_PURPOSE: dict[str, str] = {}

_DEMANDING = """
select n.nspname || '.' || c.relname || '.' || a.attname
from pg_attribute a join pg_class c on c.oid = a.attrelid join pg_namespace n on n.oid = c.relnamespace
where a.attnum > 0 and not a.attisdropped and a.attnotnull and not a.atthasdef and a.attidentity = ''
  and c.relkind in ('r', 'p') and n.nspname !~ '^pg_' and n.nspname <> 'information_schema'
"""


async def test_each_migration_only_adds(engines: Engines) -> None:
    files = shipped()
    before: dict[str, str] = {}
    needed: set[str] = set()
    async with empty_database(engines.postgres_url) as url:
        for number in range(1, len(files) + 1):
            await migrate_up_to(url, number)
            after = await described(url)
            named = {name for name in before if name.partition(" ")[0] in ("schema", "table", "column", "function")}
            assert sorted(named - after.keys() - GONE_ON_PURPOSE.keys()) == [], files[number - 1].label
            now_needed = await demanding(url)
            tables = {name.partition(" ")[2] for name in before if name.startswith("table ")}
            fresh = {name for name in now_needed - needed if name.rpartition(".")[0] in tables}
            assert fresh == set(), (
                f"{files[number - 1].label}: older code does not fill these, and they have no default"
            )
            before, needed = after, now_needed


async def migrate_up_to(url: str, number: int) -> None:
    await migrate(url, files=shipped()[:number])


async def demanding(url: str) -> set[str]:
    connection = await asyncpg.connect(url)
    try:
        return {row[0] for row in await connection.fetch(_DEMANDING)}
    finally:
        await connection.close()


SMOKE = """
import asyncio, sys
from handbill.infra.postgres import Database, derive, prepare_all
async def main():
    database = Database(derive(sys.argv[1]))
    await database.start()
    try:
        print("statements", await prepare_all(database))
    finally:
        await database.stop()
asyncio.run(main())
"""


def git(*args: str) -> bytes:
    done = subprocess.run(["git", "-C", str(ROOT), *args], capture_output=True, check=False)
    return done.stdout if done.returncode == 0 else b""


def older_trees() -> list[tuple[str, str]]:
    """(migration, the commit before the one that added it), newest first."""
    found = []
    for migration in reversed(shipped()[1:]):
        added = git("log", "--diff-filter=A", "--format=%H", "--", f"{FOLDER}/{migration.label}.sql").decode().split()
        before = git("rev-parse", "--verify", "--quiet", f"{added[-1]}^").decode().strip() if added else ""
        if before and git("cat-file", "-t", f"{before}:src/handbill/infra/postgres/prepare.py"):
            found.append((migration.label, before))
    return found[:NEWEST]


def test_the_code_before_each_migration_still_fits(engines: Engines, tmp_path: Path) -> None:
    trees = older_trees()
    if not trees:
        line = "no history with code older than a migration here: test skipped"
        print(line, file=sys.stderr)
        pytest.skip(line)
    for label, commit in trees:
        home = tmp_path / label
        with tarfile.open(fileobj=io.BytesIO(git("archive", commit, "src"))) as archive:
            unpack(archive, home)
        environment = {**os.environ, "PYTHONPATH": str(home / "src")}
        done = subprocess.run(
            [sys.executable, "-c", SMOKE, engines.postgres_url],
            env=environment,
            cwd=home,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"the code before {label} on today's schema: {done.stderr[-2000:]}"
        print(f"before {label}: {done.stdout.strip()}")
