"""Which rows ClickHouse has. Asked by number after each insert; by key where the numbers differ, and by whoever takes
over a lane: after a restore, or an outage longer than the window of tokens, a token alone could not tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from uuid import UUID

from handbill.events.model import Row
from handbill.events.shipping_store import Load
from handbill.infra import sqlfiles
from handbill.infra.clickhouse import ClickHouse

Q = sqlfiles.queries("handbill.events")
AT_ONCE = 1_000
MAX_TENANTS = 1_000


async def present(clickhouse: ClickHouse, rows: Sequence[Row]) -> set[tuple[int, bytes]]:
    """(tenant, key) of those that are there."""
    found: set[tuple[int, bytes]] = set()
    for begin in range(0, len(rows), AT_ONCE):
        some = rows[begin : begin + AT_ONCE]
        tenants = _tenants(some)
        keys = ", ".join(f"unhex('{row.key.hex()}')" for row in some)
        statement = Q.present.text.replace("<<tenants>>", tenants).replace("<<keys>>", keys)
        times = [row.event.at for row in some]
        answers = await clickhouse.query(statement, {"start": min(times), "end": max(times)}, again=False)
        found.update((int(tenant), bytes.fromhex(digits)) for tenant, digits in answers)
    return found


async def count_rows(clickhouse: ClickHouse, rows: Sequence[tuple[Load, Row]]) -> Counter[UUID]:
    """How many rows are there of each batch that these come from, among their tenants and between their times.

    Tenants and times lead to the rows; a list of too many tenants would be longer than a statement may be.
    """
    batches = {load.id for load, _ in rows}
    if len({row.event.tenant for _, row in rows}) > MAX_TENANTS:
        return await count_batches(clickhouse, batches)
    tenants = _tenants([row for _, row in rows])
    statement = Q.stored_rows.text.replace("<<tenants>>", tenants).replace("<<batches>>", _batches(batches))
    times = [row.event.at for _, row in rows]
    return _numbers(await clickhouse.query(statement, {"start": min(times), "end": max(times)}, again=False))


async def count_batches(clickhouse: ClickHouse, batches: Iterable[UUID]) -> Counter[UUID]:
    """The same for batches of which nothing but their ids is at hand."""
    statement = Q.stored_of_batches.text.replace("<<batches>>", _batches(batches))
    return _numbers(await clickhouse.query(statement, again=False))


def _tenants(rows: Sequence[Row]) -> str:
    return ", ".join(str(number) for number in sorted({row.event.tenant for row in rows}))


def _batches(ids: Iterable[UUID]) -> str:
    return ", ".join(f"unhex('{each.hex}')" for each in ids)


def _numbers(answers: Sequence[Sequence[object]]) -> Counter[UUID]:
    return Counter({UUID(hex=str(digits)): int(str(number)) for digits, number in answers})
