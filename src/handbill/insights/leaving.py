"""An answer that nobody waits for any more is not worth its query."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from handbill.kit.errors import Invalid
from handbill.kit.telemetry import metrics

T = TypeVar("T")


async def unless_left(work: Awaitable[T], left: Awaitable[object]) -> T:
    """The work's result; or, when the asker leaves first, the work is cancelled and the query ends with it."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(left)
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
