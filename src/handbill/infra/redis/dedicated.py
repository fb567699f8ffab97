"""Connections that belong to one caller: for commands that block, and for subscriptions."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from handbill.infra.redis import line as wire
from handbill.infra.redis.errors import RedisAway
from handbill.infra.redis.line import Command, Line, Word
from handbill.infra.redis.url import Address
from handbill.kit import crashpoints, task_health
from handbill.kit.errors import HandbillError
from handbill.kit.telemetry import logs

_log = logs.get("redis")

CONNECT_TIMEOUT_S = 5.0
INBOX = 10_000
HEARTBEAT_S = 10.0
"""Between two PINGs of a subscription, and so between two signs of life of the task that reads it."""
LONGEST_CONNECT_S = 20.0
"""However patient callers are: a task that connects must give its next sign of life in time."""


def connect_timeout(timeout: float) -> float:
    """How long a connection attempt may take for callers that wait `timeout` for an answer."""
    return min(max(timeout, CONNECT_TIMEOUT_S), LONGEST_CONNECT_S)


class Connection:
    """One caller's own line. It does not come back after a loss: leave the block and open another."""

    def __init__(self, line: Line, timeout: float) -> None:
        self._line = line
        self._timeout = timeout

    @classmethod
    @asynccontextmanager
    async def opened(cls, address: Address, name: str, timeout: float) -> AsyncIterator[Connection]:
        line = await wire.connect(address, name, timeout=0, limit=100_000, connect_timeout=connect_timeout(timeout))
        try:
            yield cls(line, timeout)
        finally:
            await line.close()

    @property
    def open(self) -> bool:
        return self._line.open

    async def call(self, *args: Word, timeout: float | None = None) -> Any:
        """One command. A blocking one names its own `timeout`: the seconds it may block, and a little more."""
        crashpoints.reached(f"before:redis:{args[0]!s}")
        reply = await self._bounded(self._line.send(wire.pack(args), 1), timeout)
        crashpoints.reached(f"after:redis:{args[0]!s}")
        return reply

    async def many(self, commands: Sequence[Command], *, timeout: float | None = None) -> list[Any]:
        if len(commands) == 1:
            return [await self.call(*commands[0], timeout=timeout)]
        if not commands:
            return []
        replies = await self._bounded(self._line.send(wire.pack_all(commands), len(commands)), timeout)
        return wire.checked(replies)

    async def _bounded(self, future: asyncio.Future[Any], timeout: float | None) -> Any:
        limit = self._timeout if timeout is None else timeout
        try:
            async with asyncio.timeout(limit):
                return await future
        except TimeoutError:
            self._line.abort(f"it did not answer within {limit:g} s")
            raise RedisAway(
                f"Redis did not answer within {limit:g} s; whether it ran is not known.", maybe_done=True
            ) from None
        except asyncio.CancelledError:
            self._line.abort("its caller was cancelled")  # a late reply must not be taken for the next command's
            raise


class _Inbox:
    """Messages on their way to one reader. When the reader falls behind, messages go and the gap is marked."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(INBOX)
        self.subscribed = 0
        self.heard_at = 0.0
        self.is_read = True
        """The reader waits for a message, or for the subscription: then no news is no sign that it hangs."""

    def report_progress(self) -> None:
        """A sign of life of the task that reads: messages may not come for hours."""
        if self.is_read:
            task_health.heartbeat()

    def hear(self, reply: Any) -> None:
        self.heard_at = asyncio.get_running_loop().time()
        if not isinstance(reply, list) or not reply:
            return
        if reply[0] == b"message":
            self.put((reply[1].decode(), reply[2]))
        elif reply[0] == b"subscribe":
            self.subscribed += 1

    def put(self, message: tuple[str, bytes]) -> None:
        if self.queue.full():
            while not self.queue.empty():
                self.queue.get_nowait()
            self.queue.put_nowait(("", b""))
        self.queue.put_nowait(message)


@asynccontextmanager
async def subscription(
    address: Address, name: str, channels: Sequence[str], patience: float
) -> AsyncIterator[AsyncIterator[tuple[str, bytes]]]:
    """Subscribed when the block is entered, if Redis is there; otherwise as soon as it is."""
    inbox = _Inbox()
    ready = asyncio.Event()
    listener = asyncio.create_task(_listen(address, name, channels, inbox, ready, patience), name="redis-subscription")

    async def messages() -> AsyncIterator[tuple[str, bytes]]:
        while True:
            inbox.is_read = True
            message = await inbox.queue.get()
            inbox.is_read = False
            yield message

    stream = messages()
    try:
        await ready.wait()
        inbox.is_read = False
        yield stream
    finally:
        await stream.aclose()  # type: ignore[attr-defined]
        listener.cancel()
        await asyncio.gather(listener, return_exceptions=True)


async def _listen(
    address: Address, name: str, channels: Sequence[str], inbox: _Inbox, ready: asyncio.Event, patience: float
) -> None:
    wait, first = 0.05, True
    while True:
        down, stirred = asyncio.Event(), asyncio.Event()

        def lost(down: asyncio.Event = down, stirred: asyncio.Event = stirred) -> None:
            down.set()
            stirred.set()

        line: Line | None = None
        inbox.report_progress()
        try:
            line = await wire.connect(address, name, timeout=0, limit=1000, lost=lost, connect_timeout=patience)
            inbox.report_progress()
            await _subscribed(line, channels, inbox, stirred, patience)
            if not first:
                inbox.put(("", b""))
            first, wait = False, 0.05
            ready.set()
            await _heartbeats(line, inbox, down)
        except Exception as error:  # noqa: BLE001 - no error may end it: the reader would wait for ever
            if first or not isinstance(error, HandbillError):
                reason = error.detail if isinstance(error, HandbillError) else f"{type(error).__name__}: {error}"
                _log.warning("redis-subscription-away", reason=reason)
            first = False
            ready.set()
            await asyncio.sleep(wait * (0.5 + random.random()))
            wait = min(wait * 2, 1.0)
        finally:
            if line is not None:
                await line.close()


async def _subscribed(
    line: Line, channels: Sequence[str], inbox: _Inbox, stirred: asyncio.Event, patience: float
) -> None:
    """Ask, and wait until Redis has confirmed every channel: what is published from then on is heard."""
    inbox.subscribed = 0

    def hear(reply: Any) -> None:
        inbox.hear(reply)
        if inbox.subscribed >= len(channels):
            stirred.set()

    line.listen(hear)
    line.say(wire.pack(["SUBSCRIBE", *channels]))
    try:
        await asyncio.wait_for(stirred.wait(), patience)
    except TimeoutError:
        raise RedisAway("Redis did not confirm the subscription in time.") from None
    if inbox.subscribed < len(channels):
        raise RedisAway("Redis went away during the subscription.")


async def _heartbeats(line: Line, inbox: _Inbox, down: asyncio.Event) -> None:
    """Until the line breaks or falls silent: a PING may be sent on a subscribed line, and must be answered."""
    loop = asyncio.get_running_loop()
    while not down.is_set():
        inbox.report_progress()
        asked = loop.time()
        line.say(wire.pack(["PING"]))
        try:
            await asyncio.wait_for(down.wait(), HEARTBEAT_S)
        except TimeoutError:
            if inbox.heard_at < asked:
                return
