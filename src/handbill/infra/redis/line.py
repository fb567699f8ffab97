"""One connection to Redis, as an asyncio protocol: many callers' commands leave in one write, replies come in order.

Nobody waits for anybody here: a call packs its command, leaves a future in the queue, and the write happens once, when
the event loop comes round. That is what makes a command cost a few microseconds instead of a round trip.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import hiredis

from handbill.infra.redis.errors import RedisAway, RedisBusy, RedisCluster, RedisError, from_reply
from handbill.infra.redis.url import Address
from handbill.kit.errors import Broken
from handbill.kit.telemetry import metrics

Word: TypeAlias = str | bytes | int | float
Command: TypeAlias = Sequence[Word]

BYTES = 64 * 1024 * 1024  # of commands in flight; one larger batch may still go alone
_STRIKES = 5  # silent ticks, each a quarter of the time limit, before a connection counts as frozen


class _Waiting:
    """A caller and the replies it still waits for. `skip` leading replies are not for the caller."""

    __slots__ = ("future", "left", "replies", "size", "skip")

    def __init__(self, future: asyncio.Future[Any], count: int, skip: int, size: int) -> None:
        self.future = future
        self.size = size
        self.left = count
        self.skip = skip
        self.replies: list[Any] | None = [] if count + skip > 1 else None


class Line(asyncio.Protocol):
    def __init__(self, *, timeout: float, limit: int, lost: Callable[[], None] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = hiredis.Reader()
        self._transport: asyncio.Transport | None = None
        self._queue: deque[_Waiting] = deque()
        self._out: list[bytes] = []
        self._timeout = timeout
        self._limit = limit
        self._lost = lost
        self._heard: Callable[[Any], None] | None = None
        self._pending = 0
        self._bytes = 0
        self._tick: asyncio.TimerHandle | None = None
        self._strikes = 0
        self._progress = False
        self._written_at = 0.0
        self._why = "it closed the connection"
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self.loaded: set[str] = set()
        self.open = False

    # --- what the transport tells us
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.open = True

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        waiting, self._queue, self._out = self._queue, deque(), []
        self._pending = self._bytes = 0
        for entry in waiting:
            if not entry.future.done():
                entry.future.set_exception(
                    RedisAway(f"Redis went away: {self._why}; whether the command ran is not known.", maybe_done=True)
                )
        if waiting:
            metrics.REDIS_ERRORS.labels("away").inc(len(waiting))
        if not self._gone.done():
            self._gone.set_result(None)
        if self._lost is not None:
            self._lost()

    def data_received(self, data: bytes) -> None:
        if self._written_at:
            metrics.REDIS_SECONDS.observe(time.perf_counter() - self._written_at)
            self._written_at = 0.0
        self._progress = True
        self._reader.feed(data)
        try:
            while (reply := self._reader.gets()) is not False:
                if self._heard is not None:
                    self._heard(reply)
                else:
                    self._answer(reply)
        except hiredis.ProtocolError as error:
            self.abort(f"it sent what is not its protocol ({error})")

    # --- what callers do
    def send(self, packed: bytes, count: int, skip: int = 0) -> asyncio.Future[Any]:
        """Queue `count` commands (after `skip` whose replies nobody wants) for the next write."""
        if not self.open:
            raise RedisAway("Redis is away; nothing was done, try again.")
        if self._pending and (self._pending + count > self._limit or self._bytes + len(packed) > BYTES):
            metrics.REDIS_ERRORS.labels("full").inc()
            raise RedisBusy("Too many commands wait for Redis; nothing was done, try again.", retry_after=1.0)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.append(_Waiting(future, count, skip, len(packed)))
        self._pending += count
        self._bytes += len(packed)
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(packed)
        if self._tick is None and self._timeout > 0:
            self._watch()
        return future

    def listen(self, heard: Callable[[Any], None]) -> None:
        """From now on replies are messages for `heard`, not answers."""
        self._heard = heard

    def say(self, packed: bytes) -> None:
        """Write at once, expecting nothing back in the queue (a subscription's line)."""
        if self._transport is not None:
            self._transport.write(packed)

    def abort(self, why: str) -> None:
        self._why = why
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Close and wait until the transport is gone, so that nothing is left open behind us."""
        self._lost = None
        if self._transport is None:
            return
        self._why = "we closed the connection"
        self._transport.abort()  # nobody waits for a peer that may be frozen
        await asyncio.shield(self._gone)

    # --- inside
    def _flush(self) -> None:
        out, self._out = self._out, []
        if not out or not self.open or self._transport is None:
            return
        metrics.REDIS_BATCH.observe(len(out))
        self._written_at = time.perf_counter()
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _answer(self, reply: Any) -> None:
        if not self._queue:
            self.abort("it sent what nobody had asked for")
            return
        entry = self._queue[0]
        if entry.skip:
            entry.skip -= 1
            return
        self._pending -= 1
        entry.left -= 1
        if entry.replies is not None:
            entry.replies.append(reply)
        if entry.left:
            return
        self._queue.popleft()
        self._bytes -= entry.size
        if entry.future.done():  # its caller was cancelled
            return
        if entry.replies is not None:
            entry.future.set_result(entry.replies)
        elif isinstance(reply, hiredis.ReplyError):
            entry.future.set_exception(from_reply(str(reply)))
        else:
            entry.future.set_result(reply)

    def _watch(self) -> None:
        self._strikes, self._progress = 0, False
        self._tick = self._loop.call_later(self._timeout / (_STRIKES - 1), self._look)

    def _look(self) -> None:
        """Counting ticks, not time: when our own loop was stalled, Redis is not to blame."""
        self._tick = None
        if not self._queue:
            return
        self._strikes = 0 if self._progress else self._strikes + 1
        self._progress = False
        if self._strikes >= _STRIKES:
            self.abort(f"it did not answer within {self._timeout:g} s")
            return
        self._tick = self._loop.call_later(self._timeout / (_STRIKES - 1), self._look)


def pack(command: Command) -> bytes:
    return cast(bytes, hiredis.pack_command(cast(Any, tuple(command))))


def pack_all(commands: Sequence[Command]) -> bytes:
    return b"".join([hiredis.pack_command(cast(Any, tuple(command))) for command in commands])


def checked(replies: list[Any]) -> list[Any]:
    """The replies of a pipeline, or the first error among them."""
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            raise from_reply(str(reply))
    return replies


async def connect(
    address: Address,
    name: str,
    *,
    timeout: float,
    limit: int,
    lost: Callable[[], None] | None = None,
    connect_timeout: float = 5.0,
) -> Line:
    """A line that has logged in and got PONG from a Redis that is no node of a cluster, or an error that says why not.

    Every connection of a process is made here, the first as well as those after a loss: an operator may have put
    another Redis at the address meanwhile.
    """
    loop = asyncio.get_running_loop()

    def factory() -> Line:
        return Line(timeout=timeout, limit=limit, lost=lost)

    line: Line | None = None
    try:
        async with asyncio.timeout(connect_timeout):
            if address.path is not None:
                _, line = await loop.create_unix_connection(factory, address.path)
            else:
                _, line = await loop.create_connection(factory, address.host, address.port, ssl=address.ssl_context())
            greeting = address.handshake(name)
            *replies, info = await line.send(pack_all([*greeting, ("INFO", "cluster")]), len(greeting) + 1)
            checked(replies)
            _refuse_cluster(address, info)
    except (OSError, TimeoutError) as error:
        if line is not None:
            await line.close()
        reason = "it did not answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        raise RedisAway(f"Redis does not answer at {address}: {reason}") from error
    except RedisError as error:
        if line is not None:
            await line.close()
        raise Broken(f"Redis at {address} refused our greeting: {error}", code="REDIS_LOGIN") from error
    except BaseException:
        if line is not None:
            await line.close()
        raise
    metrics.REDIS_CONNECTS.inc()
    return line


def _refuse_cluster(address: Address, info: Any) -> None:
    if not address.cluster_allowed and isinstance(info, bytes) and b"cluster_enabled:1" in info:
        raise RedisCluster(address)
