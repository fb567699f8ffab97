"""Many callers, one commit: items that come while a batch is under way share the next one.

Both the items that wait and those under way count against the limits; at a limit the caller is told to try again. A
batch that is refused is halved until the item that spoils it is alone, so that its neighbours pass.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from handbill.kit.errors import Broken, Busy

Item = TypeVar("Item")
Result = TypeVar("Result")


class BatchLimits(msgspec.Struct, frozen=True):
    """How much may wait, and how much one batch holds. An item larger than a limit in bytes passes, alone."""

    waiting_items: int = 10_000
    waiting_bytes: int = 32 << 20
    batch_items: int = 500
    batch_bytes: int = 8 << 20


@dataclass(slots=True)
class _Entry(Generic[Item, Result]):
    item: Item
    size: int
    done: asyncio.Future[Result]


class Batcher(Generic[Item, Result]):
    """Hands items to `handle` in batches, one batch at a time.

    `handle` returns one result for each item, in order. When it raises, nothing of the batch may have been done: Busy
    and Broken are about the engine and go to every caller, any other error is about an item, and the batch is halved.
    """

    def __init__(
        self,
        handle: Callable[[Sequence[Item]], Awaitable[Sequence[Result]]],
        size_of: Callable[[Item], int],
        limits: BatchLimits | None = None,
    ) -> None:
        self._handle = handle
        self._size_of = size_of
        self._limits = limits or BatchLimits()
        self._waiting: deque[_Entry[Item, Result]] = deque()
        self._items = 0
        self._bytes = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return self._task is None

    async def submit(self, item: Item) -> Result:
        """The item's result. Raises Busy at a limit, and otherwise what `handle` raised for this item."""
        size = self._size_of(item)
        limits = self._limits
        if self._items >= limits.waiting_items or (self._items and self._bytes + size > limits.waiting_bytes):
            raise Busy("Too much waits to be written; nothing was kept, try again.", retry_after=1.0)
        entry: _Entry[Item, Result] = _Entry(item, size, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        self._items += 1
        self._bytes += size
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(self._on_done)
        return await entry.done

    async def _run(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(0)  # whoever is ready now may still join
                batch = self._take()
                try:
                    await self._process(batch)
                finally:
                    self._items -= len(batch)
                    self._bytes -= sum(entry.size for entry in batch)
        finally:
            self._end()

    def _on_done(self, task: asyncio.Task[None]) -> None:
        if self._task is task:  # it was cancelled before it began
            self._end()

    def _end(self) -> None:
        """A run that was cancelled leaves nobody waiting: no other would answer them."""
        self._task = None
        for entry in self._waiting:
            entry.done.cancel()
        self._waiting.clear()
        self._items = self._bytes = 0

    def _take(self) -> list[_Entry[Item, Result]]:
        """The next batch: at least one item, then as many as fit."""
        batch = [self._waiting.popleft()]
        size = batch[0].size
        while self._waiting and len(batch) < self._limits.batch_items:
            size += self._waiting[0].size
            if size > self._limits.batch_bytes:
                break
            batch.append(self._waiting.popleft())
        return batch

    async def _process(self, batch: Sequence[_Entry[Item, Result]]) -> None:
        parts = [batch]
        while parts:
            part = parts.pop()
            try:
                results = await self._handle([entry.item for entry in part])
            except (Busy, Broken) as error:
                _fail(part, error)
            except Exception as error:  # noqa: BLE001 - it goes to the caller whose item is at fault
                half = len(part) // 2
                if half:
                    parts += [part[half:], part[:half]]
                else:
                    _fail(part, error)
            except BaseException:
                for entry in (*part, *(entry for other in parts for entry in other)):
                    entry.done.cancel()
                raise
            else:
                _answer(part, results)


def _answer(part: Sequence[_Entry[Item, Result]], results: Sequence[Result]) -> None:
    if len(results) != len(part):
        _fail(part, RuntimeError(f"{len(results)} results for {len(part)} items"))
        return
    for entry, result in zip(part, results, strict=True):
        if not entry.done.done():
            entry.done.set_result(result)


def _fail(part: Sequence[_Entry[Item, Result]], error: Exception) -> None:
    for entry in part:
        if not entry.done.done():
            entry.done.set_exception(error)
