"""How many different people saw, clicked and viewed: asked of ClickHouse, by person, merged ones counted once."""

from __future__ import annotations

from datetime import datetime

import msgspec

from handbill.banners.event_filters import Chosen, condition, scope
from handbill.infra import sqlfiles
from handbill.infra.clickhouse import ClickHouseError
from handbill.insights.service import Compiled, EventStoreReader
from handbill.kit.errors import Busy, Invalid, Throttled

Q = sqlfiles.queries("handbill.banners")
AWAY = "ClickHouse, which knows people, is away or busy; the counts do not need it."


class Unidentified(msgspec.Struct, frozen=True):
    """Events that named no user, session or device. They are in the counts, and in no number of people."""

    impressions: int
    """Impressions without a user, session or device."""
    clicks: int
    """Clicks without a user, session or device."""
    views: int
    """Views without a user, session or device."""


class UniquePeople(msgspec.Struct, frozen=True):
    """Different people over the whole range, bots left out. All None, with the reason, while nobody can say."""

    impressions: int | None = None
    """How many people had an impression; null while that is not known."""
    clicks: int | None = None
    """How many people clicked; null while that is not known."""
    views: int | None = None
    """How many people viewed; null while that is not known."""
    note: str | None = None
    """Why the numbers are null."""
    unidentified: Unidentified | None = None
    """Events that no person could be counted for."""


class Uniques:
    def __init__(self, event_store: EventStoreReader) -> None:
        self._event_store = event_store

    async def read(self, tenant: int, start: datetime, end: datetime, chosen: Chosen) -> UniquePeople:
        where, params = condition(chosen)
        asked = Compiled(Q.unique_people.replace("<<where>>", where), {**scope(tenant, start, end), **params})
        try:
            async with self._event_store.limiter.slot(tenant):
                rows = await self._event_store.ask(asked, again=False)
        except (Busy, Throttled, ClickHouseError):
            return UniquePeople(note=AWAY)
        except Invalid as error:  # it would cost too much
            return UniquePeople(note=error.detail)
        impressions, clicks, views, *nobodys = map(int, rows[0])
        return UniquePeople(impressions, clicks, views, unidentified=Unidentified(*nobodys))
