"""Which rows ClickHouse has. Asked by number after each insert; by key where the numbers differ, and by whoever takes
over a lane: after a restore, or an outage longer than the window of tokens, a token alone could not tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from handbill.events.model import Row
from handbill.events.shipping_store import Load
from handbill.infra import sqlfiles
from handbill.infra.clickhouse import ClickHouse

Q = sqlfiles.queries("handbill.events")
AT_ONCE = 2_000
"""Their keys are half of what a statement may have."""
MAX_TENANTS = 1_000
DAY_MS = 86_400_000


async def present(
    clickhouse: ClickHouse, rows: Sequence[Row], *, margin_ms: int = 0, settings: Mapping[str, int] | None = None
) -> set[tuple[int, bytes]]:
    """(tenant, key) of those that are there, at the times of these rows or `margin_ms` beside them.

    By time, and only on the days on which there are any: a statement reads the keys of the tenants' events of its days.
    """
    found: set[tuple[int, bytes]] = set()
    ordered = sorted(rows, key=lambda row: row.event.at)
    for begin in range(0, len(ordered), AT_ONCE):
        some = ordered[begin : begin + AT_ONCE]
        times = [row.event.at for row in some]
        slots = {
            "<<tenants>>": _tenants(some),
            "<<keys>>": ", ".join(f"'{_escaped(row.key)}'" for row in some),
            "<<days>>": _days(times, margin_ms),
        }
        statement = Q.present.text
        for slot, text in slots.items():
            statement = statement.replace(slot, text)
        within = {"start": max(times[0] - margin_ms, 0), "end": times[-1] + margin_ms}
        answers = await clickhouse.query(statement, within, settings, again=False)
        found.update((int(tenant), bytes.fromhex(digits)) for tenant, digits in answers)
    return found


def _escaped(key: bytes) -> str:
    """The key as a text: a call of `unhex` for each takes ClickHouse four times as long as to look for them."""
    return "\\x" + key.hex(" ").replace(" ", "\\x")


def _days(times: Sequence[int], margin_ms: int) -> str:
    """Numbers of days since 1970, of which each time with its margin touches two or three."""
    days: set[int] = set()
    for at in times:
        days.update(range(max(at - margin_ms, 0) // DAY_MS, (at + margin_ms) // DAY_MS + 1))
    return ", ".join(map(str, sorted(days)))


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
