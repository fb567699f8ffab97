"""Reads that wait for what was accepted before them (`?wait=`): what their answers say, and what makes them wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple, Protocol, TypeVar

import msgspec

from handbill.kit import disconnects
from handbill.kit.disconnects import Connection
from handbill.kit.errors import NotFound

LONGEST_WAIT_S = 5.0
Until = Literal["counted", "people", "exported"]
"""counted: committed to PostgreSQL, statistics included; people: properties and identity links are worked out, too;
exported: ClickHouse has the events, and whose they are by now."""


class WaitFor(NamedTuple):
    """What a read waits for: all that was accepted for the tenant, at most so many seconds; None: it does not wait."""

    tenant_id: int
    seconds: float | None
    until: Until


class Lag(msgspec.Struct, frozen=True):
    """How far a read's data is behind what was accepted."""

    seconds: float
    """The age of the oldest event that is missing, in seconds."""
    entries: int
    """Events that wait in the parts of the journal that your events take, those of others among them included."""


class Completeness(msgspec.Struct, frozen=True, kw_only=True):
    """Base of answers to reads that can wait."""

    complete: bool | None = None
    """Whether the answer has everything that was accepted before the request; null unless `wait` was given."""
    lag: Lag | None = None
    """How far the data is behind; null where it is complete, and where that could not be measured in time."""


class ReadWaits(Protocol):
    """Makes reads wait."""

    async def wait(self, tenant_id: int, seconds: float, until: Until) -> Completeness:
        """Return when all that was accepted for the tenant before the call is there, or after so many seconds."""
        ...


Answer = TypeVar("Answer", bound=Completeness)
T = TypeVar("T")


async def read_after(
    waits: ReadWaits, request: Connection, asked: WaitFor, read: Callable[[], Awaitable[Answer]]
) -> Answer:
    """The answer of the read after what it waits for, and how complete it is. Ends when the client leaves."""
    return _with_state(*await state_and(waits, request, asked, read))


async def state_and(
    waits: ReadWaits, request: Connection, asked: WaitFor, read: Callable[[], Awaitable[T]]
) -> tuple[Completeness | None, T]:
    """The same for answers that have no place for it."""
    work = _wait_and_read(waits, asked, read)
    return await (work if asked.seconds is None else disconnects.answer(request, work))


async def read_waiting(waits: ReadWaits, asked: WaitFor, read: Callable[[], Awaitable[Answer]]) -> Answer:
    """The same without a client that may leave."""
    return _with_state(*await _wait_and_read(waits, asked, read))


def _with_state(state: Completeness | None, answer: Answer) -> Answer:
    return answer if state is None else msgspec.structs.replace(answer, complete=state.complete, lag=state.lag)


async def _wait_and_read(
    waits: ReadWaits, asked: WaitFor, read: Callable[[], Awaitable[T]]
) -> tuple[Completeness | None, T]:
    if asked.seconds is None:
        return None, await read()
    state = await waits.wait(asked.tenant_id, asked.seconds, asked.until)
    try:
        return state, await read()
    except NotFound as error:
        if not state.complete:
            error.detail += " Events that were accepted before are not all counted yet; ask again."
        raise


def headers_of(state: Completeness | None) -> dict[str, str]:
    """For answers that are no JSON object."""
    if state is None:
        return {}
    found = {"Handbill-Complete": "true" if state.complete else "false"}
    if state.lag is not None:
        found |= {"Handbill-Lag-Seconds": f"{state.lag.seconds:g}", "Handbill-Lag-Entries": str(state.lag.entries)}
    return found
