"""Waiting: for a request that the worker does, and for events that a reading command is to have in its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Protocol, TypeVar

import typer
from rich.console import Console

from handbill.kit.errors import Busy
from handbill.kit.read_waits import LONGEST_WAIT_S, Completeness

WaitOption = Annotated[
    float | None,
    typer.Option(
        "--wait", min=0, max=LONGEST_WAIT_S, help="Seconds to wait for everything accepted before, at most 5."
    ),
]

LOOK_EVERY_S = 0.2
HINT_AFTER = 10
"""Looks at a request that no worker has begun, until a line says so."""
WAIT_S = 600.0
"""How long a command waits for a request that does not change."""


def completeness(answer: Completeness) -> list[str]:
    """A line that says what an answer misses, if it misses something."""
    if answer.complete is not False:
        return []
    lag = "" if answer.lag is None else f": {answer.lag.entries} events wait, the oldest for {answer.lag.seconds:.1f} s"
    return [f"not complete{lag}"]


class Request(Protocol):
    """The state of what the worker does, as its service reads it."""

    @property
    def status(self) -> str: ...


R = TypeVar("R", bound=Request)


async def wait_until_ended(
    read: Callable[[], Awaitable[R]], name: str, on_change: Callable[[R], None] | None = None
) -> R:
    """Until the worker has ended the request. Raises Busy after ten minutes without a change: the request goes on."""
    request = await read()
    unchanged = 0
    while request.status not in ("done", "failed"):
        if unchanged >= WAIT_S / LOOK_EVERY_S:
            raise Busy(f"The {name} is {request.status}; it goes on without this command.", code="BUSY")
        if unchanged == HINT_AFTER and request.status == "queued":
            Console(stderr=True).print(f"Waiting for a worker to begin {name}.", markup=False)
        await asyncio.sleep(LOOK_EVERY_S)
        before, request = request, await read()
        unchanged = unchanged + 1 if request == before else 0
        if on_change is not None and not unchanged:
            on_change(request)
    return request
