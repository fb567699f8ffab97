"""How many different people saw, clicked and viewed: asked of ClickHouse, by person, merged ones counted once."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from handbill.infra import sqlfiles
from handbill.infra.clickhouse import ClickHouse, ClickHouseError
from handbill.kit.errors import Busy

Q = sqlfiles.queries("handbill.banners")
_LIMITS = {"max_execution_time": 10, "max_memory_usage": 1 << 30}
AWAY = "ClickHouse, which knows people, is away or busy; the counts do not need it."


class UniquePeople(msgspec.Struct, frozen=True):
    """Different people over the whole range, bots left out. All None, with the reason, while nobody can say."""

    impressions: int | None = None
    clicks: int | None = None
    views: int | None = None
    note: str | None = None


class Uniques:
    def __init__(self, clickhouse: ClickHouse) -> None:
        self._clickhouse = clickhouse

    async def read(
        self, tenant: int, start: datetime, end: datetime, chosen: Sequence[Sequence[int] | None]
    ) -> UniquePeople:
        """`chosen`: numbers of banners, placements and campaigns; None means all of them."""
        names = ("banners", "placements", "campaigns")
        asked: dict[str, object] = {"tenant": tenant, "start": _ms(start), "end": _ms(end)}
        for name, numbers in zip(names, chosen, strict=True):
            asked |= {f"all_{name}": int(numbers is None), name: list(numbers or ())}
        try:
            rows = await self._clickhouse.query(Q.unique_people.text, asked, _LIMITS, again=False)
        except (Busy, ClickHouseError):
            return UniquePeople(note=AWAY)
        impressions, clicks, views = rows[0]
        return UniquePeople(int(impressions), int(clicks), int(views))


def _ms(when: datetime) -> int:
    return round(when.timestamp() * 1000)
