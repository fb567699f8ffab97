"""Group commit: whoever appends to a lane while an append is under way shares the next one.

One entry carries many requests' events, so that the price of making it durable is paid once for all of them. Each
lane has one append in flight, which keeps its order; the buffer behind it is bounded, and says busy at its bound.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from handbill.kit.errors import Busy, HandbillError, TooLarge
from handbill.kit.telemetry import logs, metrics

_log = logs.get("journal")

MAX_EVENTS = 1_000
MAX_BYTES = 1 << 20
"""An entry closes at either. A single call is never split and may exceed them, up to the two limits of a call."""
MAX_BODY = 256 << 10
MAX_CALL_EVENTS = 10_000
MAX_CALL_BYTES = 8 << 20
BUFFER_BYTES = 32 << 20

Command = Sequence[Any]
Write = Callable[[list[bytes], list[Command], Collection[int]], Awaitable[tuple[str, list[Any]]]]
"""Writes one entry of these tenants and the commands that go with it; returns its id and the commands' replies."""


@dataclass(slots=True)
class _Call:
    bodies: Sequence[bytes]
    extra: Sequence[Command]
    size: int
    tenant_ids: Collection[int]
    done: asyncio.Future[str]


class LaneAppender:
    def __init__(self, lane: str, write: Write, buffer_bytes: int = BUFFER_BYTES) -> None:
        self._lane = lane
        self._write = write
        self._limit = buffer_bytes
        self._calls: deque[_Call] = deque()
        self._size = 0
        self._task: asyncio.Task[None] | None = None

    def add(
        self, bodies: Sequence[bytes], extra: Sequence[Command], tenant_ids: Collection[int] = ()
    ) -> asyncio.Future[str]:
        size = 0
        for body in bodies:
            if len(body) > MAX_BODY:
                raise TooLarge(f"An event may have {MAX_BODY} bytes; nothing was kept.", code="EVENT_TOO_LARGE")
            size += len(body)
        if size > MAX_CALL_BYTES or len(bodies) > MAX_CALL_EVENTS:
            raise TooLarge(
                f"One append may have {MAX_CALL_EVENTS} events and {MAX_CALL_BYTES} bytes; nothing was kept.",
                code="APPEND_TOO_LARGE",
            )
        if self._size and self._size + size > self._limit:
            metrics.JOURNAL_REFUSED.labels("full").inc()
            raise Busy(
                "Too many events wait to be written; nothing of this request was kept, try again.",
                code="JOURNAL_FULL",
                retry_after=1.0,
            )
        call = _Call(bodies, extra, size, tenant_ids, asyncio.get_running_loop().create_future())
        self._calls.append(call)
        self._size += size
        if self._task is None:
            self._task = asyncio.create_task(self._flush(), name=f"journal-append-{self._lane}")
            self._task.add_done_callback(self._end_flush)
        return call.done

    async def drain(self) -> None:
        """Wait until everything handed in has been written or refused."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _flush(self) -> None:
        await asyncio.sleep(0)  # whoever appends in this turn of the loop joins
        while self._calls:
            await self._once()
        self._task = None

    def _end_flush(self, task: asyncio.Task[None]) -> None:
        """A flush that was cancelled, even before it began, leaves nobody waiting."""
        if self._task is not task:
            return
        self._task = None
        while self._calls:
            call = self._calls.popleft()
            self._size -= call.size
            _refuse(call, asyncio.CancelledError())

    async def _once(self) -> None:
        calls = self._taken()
        bodies = [body for call in calls for body in call.bodies]
        extra = [command for call in calls for command in call.extra]
        started = time.perf_counter()
        try:
            entry, replies = await self._write(bodies, extra, _tenants(calls))
        except (HandbillError, asyncio.CancelledError) as error:
            metrics.JOURNAL_REFUSED.labels("away").inc(len(calls))
            for call in calls:
                _refuse(call, error)
            if isinstance(error, asyncio.CancelledError):
                raise
            return
        except Exception as error:  # noqa: BLE001 - a surprise belongs to the callers; the lane must go on
            for call in calls:
                _refuse(call, error)
            return
        finally:
            self._size -= sum(call.size for call in calls)
        metrics.JOURNAL_APPEND_SECONDS.observe(time.perf_counter() - started)
        metrics.JOURNAL_APPEND_EVENTS.observe(len(bodies))
        at = 0
        for call in calls:
            mine = replies[at : at + len(call.extra)]
            at += len(call.extra)
            _answer(call, entry, mine)

    def _taken(self) -> list[_Call]:
        """The next entry's calls: at least one, then as many as fit. A call is never split."""
        calls = [self._calls.popleft()]
        events, size = len(calls[0].bodies), calls[0].size
        while self._calls:
            events += len(self._calls[0].bodies)
            size += self._calls[0].size
            if events > MAX_EVENTS or size > MAX_BYTES:
                break
            calls.append(self._calls.popleft())
        return calls


def _tenants(calls: Sequence[_Call]) -> set[int]:
    """Whose events these are; none if that is not known of all of them."""
    if not all(call.tenant_ids for call in calls):
        return set()
    return {tenant_id for call in calls for tenant_id in call.tenant_ids}


def _refuse(call: _Call, error: BaseException) -> None:
    if call.done.done():
        return
    if isinstance(error, Exception) and not isinstance(error, Busy):
        call.done.set_exception(error)
        return
    refusal = Busy(
        "The journal cannot be written now. The events may or may not be kept: repeat them with the same ids.",
        code="JOURNAL_AWAY",
        retry_after=1.0,
    )
    refusal.__cause__ = error
    call.done.set_exception(refusal)


def _answer(call: _Call, entry: str, replies: list[Any]) -> None:
    """The events are durable, whatever became of the commands beside them: an error of those is not the answer."""
    for reply in replies:
        if isinstance(reply, Exception):
            metrics.JOURNAL_COMMANDS_FAILED.inc()
            _log.error("journal.command_failed", entry=entry, error=f"{type(reply).__name__}: {reply}"[:200])
    if not call.done.done():
        call.done.set_result(entry)
