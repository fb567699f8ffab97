"""Waiting for something to become true, with a deadline so generous that only a fault reaches it."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar, overload

T = TypeVar("T")


@overload
async def eventually(check: Callable[..., Awaitable[T | None]], timeout: float = 60, what: str = "") -> T: ...
@overload
async def eventually(check: Callable[..., T | None], timeout: float = 60, what: str = "") -> T: ...
async def eventually(
    check: Callable[..., Awaitable[T | None]] | Callable[..., T | None], timeout: float = 60, what: str = ""
) -> T:
    """Call `check` until it returns something true and give that back.

    An AssertionError inside `check` counts as "not yet"; the last one is shown when the deadline passes. Every
    other error is a fault and goes up at once.
    """
    deadline = time.monotonic() + timeout
    pause = 0.005
    while True:
        complaint: AssertionError | None = None
        seen: object = None
        try:
            found = check()
            seen = await found if inspect.isawaitable(found) else found
            if seen:
                return seen
        except AssertionError as error:
            complaint = error
        if time.monotonic() > deadline:
            name = what or getattr(check, "__qualname__", repr(check))
            raise AssertionError(f"not true after {timeout:g} s: {name}; last seen: {seen!r}") from complaint
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, 0.25)


async def soon(awaitable: Awaitable[T], timeout: float = 60, what: str = "") -> T:
    """Await with the same generous deadline; for signals (events, futures, processes) rather than conditions."""
    try:
        return await asyncio.wait_for(awaitable, timeout)
    except TimeoutError as error:
        raise AssertionError(f"nothing after {timeout:g} s: {what or awaitable!r}") from error
