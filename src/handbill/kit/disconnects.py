"""An answer that nobody waits for any more is not worth its work: a request is cancelled when its client leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeVar

from handbill.kit.errors import Invalid
from handbill.kit.telemetry import metrics

T = TypeVar("T")


class Connection(Protocol):
    """What is needed of a request."""

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def receive(self) -> Callable[[], Awaitable[Any]]: ...


async def answer(request: Connection, work: Awaitable[T]) -> T:
    """The result of the work, unless the client leaves first. A request with an idempotency key has been read to its
    end by then, so that its client's leaving is not seen."""
    if "idempotency-key" in request.headers:
        return await work
    return await cancel_on_disconnect(work, _disconnected(request))


async def cancel_on_disconnect(work: Awaitable[T], disconnected: Awaitable[object]) -> T:
    """The result of the work. When `disconnected` ends first, the work is cancelled and CLIENT_LEFT raised."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(disconnected)
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return await task
        metrics.INSIGHTS_REFUSED.labels("left").inc()
        raise Invalid("The client left before the answer was there; its query was ended.", code="CLIENT_LEFT")
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _disconnected(request: Connection) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
