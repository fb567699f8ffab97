"""Messy contacts from an uploaded file into the table: every check on, a real worker, its processes and its queues.

The limit is COPY of the same contacts, clean, into a bare table. Each round imports into a tenant of its own, and the
table must then be what the generator's own table of corruptions says.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import time
from pathlib import Path
from typing import Any

import asyncpg
import msgspec

from benches._bench import Options, Result, alternating, main, require, rounded, say
from benches._shop import ACTOR, house
from handbill.contacts.model import PlanPatch
from handbill.contacts.service import file_chunks
from handbill.tenants.model import NewTenant
from handbill.wiring.house import House
from tests.kit import messy
from tests.kit.address_book import people
from tests.kit.stack import stack

BAR = "ratio >= 0.03, goal 50k rows/s; RSS <= 300 MB"
PATIENCE_S = 1_200.0
_COLUMNS = ("phone", "whatsapp", "email", "external_id", "name", "attributes")


class Made:
    """The file, and what must be in the table after it."""

    def __init__(self, path: Path, rows: int) -> None:
        self.path = path
        self.expected: dict[str, messy.Person] = {}
        self.rows = messy.write(path, messy.rows(7, rows), self._keep)
        self.clean = "".join(self._line(person) for person in self.expected.values()).encode()

    def _keep(self, row: messy.Row) -> None:
        messy.apply(self.expected, row, "update", {"bench"})

    @staticmethod
    def _line(one: messy.Person) -> str:
        attributes = {name: one[name] for name in ("City", "Birthday") if one[name]}
        cells = [one["phone"], one["phone"], one["email"], one["external_id"], one["name"]]
        texts = [cell if cell is not None else "\0" for cell in cells] + [msgspec.json.encode(attributes).decode()]
        escaped = (text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t") for text in texts)
        return "\t".join(escaped).replace("\0", "\\N") + "\n"


def resident(pid: int) -> int:
    """Bytes in memory of a process and its children, each page counted once where the system says so."""
    total = 0
    for each in (pid, *children(pid)):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                found += [int(child), *children(int(child))]
    return found


async def one_import(ours: House, made: Made, number: int) -> tuple[int, float]:
    """From the stored upload to `done`: the tenant, and the seconds it took."""
    new = NewTenant(name=f"Import {number}", slug=f"import-{number}")
    tenant = (await ours.tenants.create_tenant(new, actor=ACTOR)).tenant_id
    imports = ours.contacts.imports
    stored = await imports.upload(tenant, file_chunks(made.path), actor=ACTOR, name="messy.csv", region=messy.REGION)
    await imports.change(tenant, stored.import_id, PlanPatch(tags=["bench"]), actor=ACTOR)
    began = time.perf_counter()
    await imports.start(tenant, stored.import_id, actor=ACTOR)
    ends = time.monotonic() + PATIENCE_S
    phases: dict[str, float] = {}
    while True:
        info = (await imports.read(tenant, stored.import_id)).info
        phases.setdefault(info.status, round(time.perf_counter() - began, 2))
        if info.status == "done":
            break
        require(info.status != "failed", f"the import failed: {info.error}")
        require(time.monotonic() < ends, f"the import is still {info.status} after {PATIENCE_S:g} s")
        await asyncio.sleep(0.1)
    took = time.perf_counter() - began
    say(f"phases begin at {phases}")
    require(info.counts.rows == made.rows, f"{info.counts.rows} rows of {made.rows} were read")
    return tenant, took


async def bare_copy(connection: asyncpg.Connection, made: Made) -> float:
    await connection.execute("drop table if exists bare")
    await connection.execute(
        "create table bare (phone text, whatsapp text, email text, external_id text, name text, attributes jsonb)"
    )
    began = time.perf_counter()
    await connection.copy_to_table("bare", source=io.BytesIO(made.clean), columns=_COLUMNS, format="text")
    return time.perf_counter() - began


async def body(options: Options) -> Result:
    rows = options.scaled(1_000_000, 60_000)
    peak = 0
    number = 0
    detail: dict[str, Any] = {}
    async with stack() as built, house(built) as ours, contextlib.AsyncExitStack() as doors:
        made = Made(built.home / "messy.csv", rows)
        say(f"{made.rows:,} rows, {made.path.stat().st_size / 1e6:.0f} MB, {len(made.expected):,} contacts expected")
        worker = await doors.enter_async_context(built.worker("--only", "jobs,relay"))
        owner = await asyncpg.connect(built.postgres_url)
        doors.push_async_callback(owner.close)

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, await asyncio.to_thread(resident, worker.pid))
                await asyncio.sleep(0.25)

        watching = asyncio.create_task(watch())

        async def value() -> float:
            nonlocal number
            number += 1
            tenant, took = await one_import(ours, made, number)
            require(await people(ours.database, tenant) == made.expected, "the table is not what it must be")
            say(f"imported {made.rows / took:,.0f} rows/s")
            return made.rows / took

        async def limit() -> float:
            took = await bare_copy(owner, made)
            say(f"bare COPY {len(made.expected) / took:,.0f} rows/s")
            return len(made.expected) / took

        try:
            rounds = await alternating(value, limit)
        finally:
            watching.cancel()
        detail = {
            **rounds.detail(),
            "rows": made.rows,
            "file_mb": rounded(made.path.stat().st_size / 1e6),
            "contacts": len(made.expected),
            "worker_peak_mb": rounded(peak / 1e6),
            "policy": "update",
        }
    return Result(rounds.value, "rows/s", rounds.limit, detail)


if __name__ == "__main__":
    main("import", body)
