"""The limit of `count`: the same rows, already decoded, into the same tables by the same kind of transaction; no more.

For each batch: COPY keys and rows into temporary tables, insert the keys that are new, insert the rows of those keys.
No journal, no cursor, no stats, no drops, no caps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import asyncpg

from handbill.events.model import BannerEvent, Click, Impression, View, key
from handbill.kit.clock import from_ms

BATCH = 5_000
_KEY_COLUMNS = ("tenant_id", "key", "stored_time")

_COMMON = (
    "tenant_id", "event_key", "banner_id", "placement_id", "campaign_id", "session_id", "user_id",
    "received_at", "lane", "marks",
)  # fmt: skip
_SEEN = (*_COMMON, "correlation_id", "device_type", "country_code", "page_url", "occurred_at")
_TABLES: dict[type[BannerEvent], tuple[str, tuple[str, ...]]] = {
    Impression: ("banners.banner_impressions", (*_SEEN, "referrer_url")),
    Click: ("banners.banner_clicks", (*_SEEN, "destination_url")),
    View: (
        "caps.user_views",
        (*_COMMON, "event_id", "device_id", "view_timestamp", "view_duration_ms", "dismissed", "counted"),
    ),
}

Rows = dict[type[BannerEvent], list[tuple[Any, ...]]]


class Bare:
    """One connection of the worker's role, its temporary tables made."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection

    @classmethod
    async def opened(cls, url: str) -> Bare:
        connection = await asyncpg.connect(url)
        keys = "create temp table new_keys (like events.event_keys including defaults) on commit delete rows"
        await connection.execute(keys)
        for table, _ in _TABLES.values():
            name = table.partition(".")[2]
            await connection.execute(
                f"create temp table new_{name} (like {table} including defaults) on commit delete rows"
            )
        return cls(connection)

    async def close(self) -> None:
        await self._connection.close()

    async def insert(self, keys: Sequence[tuple[Any, ...]], rows: Rows) -> int:
        """One batch; how many of its keys were new."""
        tell = self._connection
        async with tell.transaction():
            await tell.copy_records_to_table("new_keys", records=keys, columns=_KEY_COLUMNS)
            fresh = await tell.fetch(
                "insert into events.event_keys select distinct on (tenant_id, key) * from new_keys"
                " order by tenant_id, key on conflict do nothing returning tenant_id, key"
            )
            for kind, (table, columns) in _TABLES.items():
                if rows[kind]:
                    name = table.partition(".")[2]
                    await tell.copy_records_to_table(f"new_{name}", records=rows[kind], columns=columns)
                    listed = ", ".join(columns)
                    await tell.execute(f"insert into {table} ({listed}) select {listed} from new_{name}")
        return len(fresh)


def batches(events: Sequence[BannerEvent]) -> Iterator[tuple[list[tuple[Any, ...]], Rows]]:
    """The records of each batch, copies already gone: made before the clock runs."""
    for at in range(0, len(events), BATCH):
        found: dict[tuple[int, bytes], BannerEvent] = {}
        for event in events[at : at + BATCH]:
            found.setdefault((event.tenant, key(event.kind, event.id)), event)
        rows: Rows = {kind: [] for kind in _TABLES}
        for (_, number), event in found.items():
            rows[type(event)].append(_record(number, event))
        yield (
            [
                (tenant, number, from_ms(event.received))
                for (tenant, number), event in sorted(found.items(), key=_place)
            ],
            rows,
        )


def _place(item: tuple[tuple[int, bytes], BannerEvent]) -> tuple[int, bytes]:
    return item[0]


def _record(number: bytes, event: BannerEvent) -> tuple[Any, ...]:
    head = (
        event.tenant, number, event.banner, event.placement, event.campaign, event.session, event.user,
        from_ms(event.received), 0, list(event.marks),
    )  # fmt: skip
    if isinstance(event, View):
        return (
            *head, event.id, event.device_id, from_ms(event.at), event.duration_ms, event.dismissed, event.counted,
        )  # fmt: skip
    last = event.referrer if isinstance(event, Impression) else event.destination
    return (*head, event.id, event.device, event.country, event.page, from_ms(event.at), last)
