"""Run inside small disks: an installation under load whose disks fill up and are freed again, with a ledger of its own.

    python -m tests.e2e.full_disk_scenario HOME

HOME is one small disk, HOME/clickhouse another. First only ClickHouse's is full: events are accepted and counted, and
every export is refused. Then all of it is full: nothing can be accepted.

Prints one JSON line last: what was accepted, and what each store has of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import asyncpg

from tests.e2e._up import ready, settings_of
from tests.kit.processes import free_port, program
from tests.kit.small_disk import Disk
from tests.kit.waiting import eventually

UP = "from tests.kit.small_disk import preload_engines; preload_engines(); from handbill.cli import main; main()"
REQUESTS, SIZE = 10, 25
"""Requests of each phase and kind, and events of each. A full ClickHouse stays so until it has refused inserts."""
REFUSED = 'handbill_ch_errors_total{code="243"}'


class Sender:
    """Sends product events and impressions in turn, and writes down the ids that were accepted."""

    def __init__(self, http: aiohttp.ClientSession, api: str, demo: dict[str, Any]) -> None:
        self._http = http
        self._api = api
        self._demo = demo
        self.accepted: dict[str, set[str]] = {"capture": set(), "impression": set()}
        self.statuses: Counter[int] = Counter()

    async def send(self, *, again: bool) -> bool:
        """One request of each kind. `again`: until they are accepted, as a client would."""
        return all([await self._one(kind, again=again) for kind in self.accepted])

    async def _one(self, kind: str, *, again: bool) -> bool:
        ids = [str(uuid.uuid4()) for _ in range(SIZE)]
        path, body = _request(kind, ids, self._demo)
        while True:
            status = 0
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                headers = {"X-Write-Key": str(self._demo["write_key"])}
                async with self._http.post(self._api + path, json=body, headers=headers) as reply:
                    status = reply.status
                    await reply.read()
            self.statuses[status] += 1
            if status == 202:
                self.accepted[kind].update(ids)
                return True
            if not again:
                return False
            await asyncio.sleep(0.1)  # sleeps: a client's patience before it asks again


def _request(kind: str, ids: list[str], demo: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    if kind == "capture":
        return "/v1/events", {
            "events": [{"event": "paid", "distinct_id": f"d{each[:2]}", "event_id": each} for each in ids]
        }
    banner, placement = demo["banner_id"], demo["placement_id"]
    events = [
        {"bannerPublicId": banner, "placementPublicId": placement, "correlationId": each, "userId": f"u{each[:2]}"}
        for each in ids
    ]
    return "/api/banners/events/impression/batch", {"events": events}


class ClickHouse:
    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        parts = urlsplit(url)
        self._http = http
        self._url = f"http://127.0.0.1:{parts.port}/?database={parts.path.lstrip('/')}"
        self._headers = {"X-ClickHouse-User": parts.username or "", "X-ClickHouse-Key": parts.password or ""}

    async def ids(self, source: str) -> Counter[str]:
        sql = f"select event_id from events where {source} format TabSeparated"
        async with self._http.post(self._url, data=sql, headers=self._headers) as reply:
            text = await reply.text()
            assert reply.status == 200, text
        return Counter(text.split())


@contextlib.asynccontextmanager
async def installation(home: Path) -> AsyncIterator[tuple[dict[str, Any], str]]:
    """`handbill up` on this home: what it prints when ready, and the address of the worker's metrics."""
    metrics = free_port()
    env = {
        **settings_of(home), "HANDBILL_WORKER__METRICS_PORT": str(metrics),
        "HANDBILL_BANNERS__THROTTLE_PER_MINUTE": "0",
        "HANDBILL_EVENTS__SHIP_WAIT_S": "1",
    }  # fmt: skip
    async with program(sys.executable, "-c", UP, "up", "--json", env=env) as up:
        yield dict(await ready(up)), f"http://127.0.0.1:{metrics}/metrics"
        await up.stop(120)


async def figure(http: aiohttp.ClientSession, url: str, line: str) -> float:
    """A figure of the worker's metrics; 0 where it has none, or does not answer."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with http.get(url) as reply:
            for each in (await reply.text()).splitlines():
                if each.startswith(line):
                    return float(each.rpartition(" ")[2])
    return 0.0


async def scenario(home: Path) -> dict[str, Any]:
    timeout = aiohttp.ClientTimeout(total=20)
    async with installation(home) as (facts, metrics), aiohttp.ClientSession(timeout=timeout) as http:
        sender = Sender(http, str(facts["api"]), dict(facts["demo"]))

        async def send() -> None:
            for _ in range(REQUESTS):
                await sender.send(again=True)

        async def refused() -> bool:
            await sender.send(again=True)
            return await figure(http, metrics, REFUSED) > 1

        await send()
        Disk(home / "clickhouse").fill()
        await send()
        await eventually(refused, timeout=120, what="ClickHouse says that its disk is full")
        inserts = await figure(http, metrics, REFUSED)
        Disk(home / "clickhouse").free()
        await send()
        Disk(home).fill()
        for _ in range(REQUESTS):
            await sender.send(again=False)
        Disk(home).free()
        await send()
        urls = json.loads((home / "run" / "engines.json").read_text())
        postgres = await eventually(lambda: _connected(urls["postgres"]), timeout=120, what="PostgreSQL is back")
        try:
            await eventually(lambda: _exported(postgres, sender), timeout=120, what="all is counted and exported")
            store = ClickHouse(http, urls["clickhouse"])
            impressions = await postgres.fetch("select correlation_id from banners.banner_impressions")
            counted = {"impression": Counter(str(row[0]) for row in impressions)}
            keys = await postgres.fetchval("select count(*) from events.event_keys")
        finally:
            await postgres.close()
        exported = {
            "capture": await store.ids("source = 'own'"), "impression": await store.ids("event = '$banner_impression'"),
        }  # fmt: skip
    return {
        "accepted": {kind: len(ids) for kind, ids in sender.accepted.items()},
        "statuses": dict(sender.statuses),
        "refused_inserts": inserts,
        "keys": keys,
        "postgres": _compare(sender.accepted, counted),
        "clickhouse": _compare(sender.accepted, exported),
    }


async def _connected(url: str) -> Any:
    """None while PostgreSQL recovers: a full disk may have ended it."""
    with contextlib.suppress(OSError, asyncpg.PostgresError):
        return await asyncpg.connect(url)


async def _exported(postgres: Any, sender: Sender) -> bool:
    accepted = sum(len(ids) for ids in sender.accepted.values())
    counted = await postgres.fetchval("select count(*) from events.event_keys")
    waiting = await postgres.fetchval("select count(*) from events.ch_batches where done_at is null")
    return bool(counted >= accepted and not waiting)


def _compare(accepted: dict[str, set[str]], stored: dict[str, Counter[str]]) -> dict[str, dict[str, int]]:
    return {
        kind: {
            "lost": len(accepted[kind] - found.keys()),
            "doubled": sum(number > 1 for number in found.values()),
        }
        for kind, found in stored.items()
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(scenario(Path(sys.argv[1])))))
