"""Work that a cancellation must not cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end, however often the caller is cancelled meanwhile; then raise that cancellation.

    `asyncio.shield` alone lets the work run on, but its caller leaves at the first cancellation.
    """
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # read, although the cancellation is what the caller learns
        raise cancelled
    return task.result()
