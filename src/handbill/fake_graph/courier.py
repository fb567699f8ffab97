"""Telling the configured address what happened: signed, batched, late, repeated, out of order, and retried."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import heapq
import hmac
from collections.abc import Callable
from typing import Any

import aiohttp
import msgspec

from handbill.fake_graph.model import Config

BATCH = 100
AT_ONCE = 4
_RETRY_MS = (50, 100, 250, 500, 1_000, 2_000, 5_000)


class Note(msgspec.Struct, frozen=True, order=True):
    """One thing to tell, at its time. `n` keeps two of the same moment apart."""

    due_ms: int
    n: int
    waba: str
    field: str
    value: dict[str, Any]
    tries: int = 0


class Courier:
    def __init__(self, config: Config, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._tries = config.webhook_tries
        self.url = config.webhook_url
        self.app_secret = config.app_secret
        self.skew_ms = 0
        self.told = 0
        self.failed = 0
        self.given_up = 0
        self.under_way = 0
        self._heap: list[Note] = []
        self._n = 0
        self._hurry_until = 0
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop: asyncio.Task[None] | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def pending(self) -> int:
        return len(self._heap) + self.under_way

    async def start(self) -> None:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30), trust_env=False)
        self._loop = asyncio.create_task(self._run())

    async def stop(self) -> None:
        for task in (self._loop, *self._tasks):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        if self._session is not None:
            await self._session.close()

    def stamp(self, at_ms: int) -> str:
        """A time as webhooks carry it, wrong by whatever the clock is said to be wrong."""
        return str((at_ms + self.skew_ms) // 1000)

    def tell(self, waba: str, field: str, value: dict[str, Any], due_ms: int) -> None:
        if not self.url:
            return
        self._n += 1
        first = not self._heap or due_ms < self._heap[0].due_ms
        heapq.heappush(self._heap, Note(due_ms, self._n, waba, field, value))
        if first:
            self._wake.set()

    def hurry(self) -> None:
        """What waits now is due now, in the order in which it would have come."""
        self._hurry_until = max((note.due_ms for note in self._heap), default=0)
        self._wake.set()

    async def shake_hands(self, url: str, verify_token: str, challenge: str) -> bool:
        """The question that the real server asks before it uses an address."""
        assert self._session is not None
        query = {"hub.mode": "subscribe", "hub.verify_token": verify_token, "hub.challenge": challenge}
        try:
            async with self._session.get(url, params=query, allow_redirects=False) as reply:
                return reply.status == 200 and await reply.text() == challenge
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            now_ms = max(self._now_ms(), self._hurry_until)
            batch: list[Note] = []
            while self._heap and self._heap[0].due_ms <= now_ms and len(batch) < BATCH:
                batch.append(heapq.heappop(self._heap))
            if batch:
                self.under_way += len(batch)
                await self._slots.acquire()
                task = asyncio.create_task(self._deliver(batch))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                continue
            wait_s = (self._heap[0].due_ms - now_ms) / 1000 if self._heap else None
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), wait_s)

    async def _deliver(self, batch: list[Note]) -> None:
        try:
            if await self._post(self._body(batch)):
                self.told += len(batch)
            else:
                self.failed += len(batch)
                self._again(batch)
        finally:
            self.under_way -= len(batch)
            self._slots.release()

    def _again(self, batch: list[Note]) -> None:
        now_ms = self._now_ms()
        for note in batch:
            if note.tries + 1 >= self._tries:
                self.given_up += 1
                continue
            late = _RETRY_MS[min(note.tries, len(_RETRY_MS) - 1)]
            heapq.heappush(self._heap, msgspec.structs.replace(note, due_ms=now_ms + late, tries=note.tries + 1))
        self._wake.set()

    def _body(self, batch: list[Note]) -> bytes:
        entries: dict[str, list[dict[str, Any]]] = {}
        for note in batch:
            entries.setdefault(note.waba, []).append({"value": note.value, "field": note.field})
        time_s = self._now_ms() // 1000
        listed = [{"id": waba, "time": time_s, "changes": changes} for waba, changes in entries.items()]
        return msgspec.json.encode({"object": "whatsapp_business_account", "entry": listed})

    async def _post(self, body: bytes) -> bool:
        assert self._session is not None
        headers = {"Content-Type": "application/json"}
        if self.app_secret:
            digest = hmac.new(self.app_secret.encode(), body, hashlib.sha256).hexdigest()
            headers["X-Hub-Signature-256"] = f"sha256={digest}"
        try:
            async with self._session.post(self.url, data=body, headers=headers, allow_redirects=False) as reply:
                await reply.read()
                return reply.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False
