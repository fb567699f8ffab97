"""Which rows ClickHouse has already. Asked by whoever takes over a lane: after a restore from a backup, or an outage
longer than the window of tokens, a token alone could not tell."""

from __future__ import annotations

from collections.abc import Sequence

from handbill.events.model import Row
from handbill.infra import sqlfiles
from handbill.infra.clickhouse import ClickHouse

Q = sqlfiles.queries("handbill.events")
AT_ONCE = 1_000


async def present(clickhouse: ClickHouse, rows: Sequence[Row]) -> set[tuple[int, bytes]]:
    """(tenant, key) of those that are there."""
    found: set[tuple[int, bytes]] = set()
    for begin in range(0, len(rows), AT_ONCE):
        some = rows[begin : begin + AT_ONCE]
        tenants = ", ".join(str(number) for number in sorted({row.event.tenant for row in some}))
        keys = ", ".join(f"unhex('{row.key.hex()}')" for row in some)
        statement = Q.present.text.replace("<<tenants>>", tenants).replace("<<keys>>", keys)
        times = [row.event.at for row in some]
        answers = await clickhouse.query(statement, {"start": min(times), "end": max(times)}, again=False)
        found.update((int(tenant), bytes.fromhex(digits)) for tenant, digits in answers)
    return found
