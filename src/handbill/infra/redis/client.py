"""The process's Redis: one shared line that many coroutines use at once, and that comes back by itself."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import hiredis
import msgspec

from handbill.infra.redis import line as wire
from handbill.infra.redis import url as urls
from handbill.infra.redis.dedicated import CONNECT_TIMEOUT_S, Connection, connect_timeout, subscription
from handbill.infra.redis.errors import RedisAway, RedisCluster, RedisError, from_reply
from handbill.infra.redis.line import Command, Line, Word
from handbill.kit import crashpoints, task_health
from handbill.kit.errors import Broken, Busy, HandbillError
from handbill.kit.tasks import BackgroundTask
from handbill.kit.telemetry import logs

_log = logs.get("redis")

FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 1.0
HEARTBEAT_S = 10.0


class Redis:
    """`timeout` (seconds) bounds how long a silent Redis can hold a caller; `limit` bounds the commands in flight.

    A node of a Redis Cluster is refused, unless `cluster_allowed`, which is for tests until clusters are supported.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "handbill",
        timeout: float = 1.0,
        limit: int = 50_000,
        cluster_allowed: bool = False,
    ) -> None:
        self.address = msgspec.structs.replace(urls.parse(url), cluster_allowed=cluster_allowed)
        self._name = name
        self._timeout = timeout
        self._limit = limit
        self._line: Line | None = None
        self._task: BackgroundTask | None = None
        self._news: asyncio.Future[None] | None = None  # ends with the connection attempt that is under way
        self._down = asyncio.Event()
        self._trouble: HandbillError | None = None
        self._was_connected = False
        self._scripts: dict[str, str] = {}

    async def start(self) -> None:
        """Begin to connect. An absent Redis is not an error here: calls will say Busy until it is there."""
        if self._task is not None:
            return
        self._trouble = None
        self._news = asyncio.get_running_loop().create_future()
        self._task = BackgroundTask("redis-connection", self._stay_connected)
        await self._task.start()
        await asyncio.wait([self._news], timeout=CONNECT_TIMEOUT_S)

    async def stop(self) -> None:
        """Close the connection; calls say Busy from here on."""
        task, self._task = self._task, None
        if task is not None:
            await task.stop()
        line, self._line = self._line, None
        if line is not None:
            await line.close()
        self._trouble = RedisAway("The Redis client is stopped.")

    async def health(self) -> None:
        """Raise Busy unless Redis answers, and Broken when it refuses us or is one that we refuse."""
        if isinstance(self._trouble, RedisCluster):
            raise RedisCluster(self.address)
        await self.call("PING")

    async def call(self, *args: Word) -> Any:
        """One command, sharing its write with everybody else's. The reply is raw: bytes, int, list or None."""
        line = self._line
        if line is None or not line.open:
            line = await self._connected()
        if crashpoints.hook is None:
            return await line.send(wire.pack(args), 1)
        name = str(args[0])
        crashpoints.reached(f"before:redis:{name}")
        reply = await line.send(wire.pack(args), 1)
        crashpoints.reached(f"after:redis:{name}")
        return reply

    async def many(self, commands: Sequence[Command], *, atomic: bool = False, errors: bool = False) -> list[Any]:
        """Several commands in one round trip, replies in order; `atomic` puts MULTI and EXEC around them.

        The first error reply is raised once all have come; with `errors` they stay in the list as RedisError values.
        Scripts that Redis has forgotten are taught and run again, after the others; in an `atomic` batch that is an
        error, for the others are done by then.
        """
        if not commands:
            return []
        line = self._line
        if line is None or not line.open:
            line = await self._connected()
        words = "+".join(str(command[0]) for command in commands[:3]) if crashpoints.hook is not None else ""
        crashpoints.reached(f"before:redis:{words}")
        loads = self._missing_scripts(line, commands)
        batch = [("MULTI",), *commands, ("EXEC",)] if atomic else commands
        replies: list[Any] = await _listed(line, wire.pack_all([*loads, *batch]), len(batch), len(loads))
        if atomic:
            replies = _executed(replies)
        if any(isinstance(reply, hiredis.ReplyError) and str(reply).startswith("NOSCRIPT") for reply in replies):
            line.loaded.clear()
            if not atomic:
                replies = await self._taught(line, commands, replies)
        crashpoints.reached(f"after:redis:{words}")
        if errors:
            return [_as_value(reply) for reply in replies]
        return wire.checked(replies)

    def script(self, source: str) -> Script:
        """A Lua script known by its digest; every connection is taught it once."""
        digest = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        self._scripts[digest] = source
        return Script(self, source, digest)

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """A connection of one's own, for commands that block."""
        return Connection.opened(self.address, f"{self._name}-own", self._timeout)

    def subscribe(self, *channels: str) -> AbstractAsyncContextManager[AsyncIterator[tuple[str, bytes]]]:
        """Messages of the channels; ("", b"") after each gap, so that the reader looks for itself once."""
        return subscription(self.address, f"{self._name}-sub", channels, connect_timeout(self._timeout))

    async def time_ms(self) -> int:
        seconds, micros = await self.call("TIME")
        return int(seconds) * 1000 + int(micros) // 1000

    # --- keeping the line up
    async def _connected(self) -> Line:
        """The line, or the reason why there is none. Joins an attempt that is under way; does not wait for the next."""
        if self._news is not None and self._task is not None and not self._news.done():
            await asyncio.wait([self._news], timeout=self._timeout)
        line = self._line
        if line is not None and line.open:
            return line
        raise self._reason()

    def _reason(self) -> HandbillError:
        """Why there is no connection, as callers are to see it: Busy, or Broken when a person must act."""
        trouble = self._trouble
        if isinstance(trouble, RedisCluster) and self._was_connected:
            return RedisAway(trouble.detail)  # whoever runs goes on without Redis until the operator puts it right
        if isinstance(trouble, Broken):
            return Broken(trouble.detail, code=trouble.code)
        return RedisAway(trouble.detail if trouble else "Redis is away; nothing was done, try again.")

    def _lost(self) -> None:
        """Called by the line when it breaks: from here on callers join the next attempt."""
        if self._task is not None and (self._news is None or self._news.done()):
            self._news = asyncio.get_running_loop().create_future()
        self._down.set()

    async def _stay_connected(self) -> None:
        """Connect, and connect again whenever the line is lost; the task's own pauses would be too long for callers."""
        if self._line is not None:  # of a run that was cut short
            await self._line.close()
        wait = FIRST_WAIT_S
        while True:
            task_health.heartbeat()
            self._down.clear()
            try:
                await self._connect()
            except Exception as error:  # noqa: BLE001 - remembered for the callers and reported; no error ends this
                self._on_failure(error)
                await asyncio.sleep(wait * (0.5 + random.random()))
                wait = min(wait * 2, LONGEST_WAIT_S)
            else:
                wait = FIRST_WAIT_S
                await self._wait_for_loss()

    async def _connect(self) -> None:
        self._line = await wire.connect(
            self.address,
            self._name,
            timeout=self._timeout,
            limit=self._limit,
            lost=self._lost,
            connect_timeout=connect_timeout(self._timeout),
        )
        if self._trouble is not None:
            _log.info("redis-back", at=str(self.address))
        self._trouble = None
        self._was_connected = True
        self._announce()

    def _on_failure(self, error: Exception) -> None:
        is_first = self._trouble is None
        detail = f"Redis cannot be connected to at {self.address}: {type(error).__name__}: {error}"
        self._trouble = error if isinstance(error, HandbillError) else RedisAway(detail)
        if is_first:
            _log.warning("redis-away", at=str(self.address), reason=self._trouble.detail)
        if self._task is not None:
            self._task.health.failed(self._reason() if isinstance(error, HandbillError) else error)
        self._announce()

    async def _wait_for_loss(self) -> None:
        while not self._down.is_set():
            if self._task is not None:
                self._task.health.processed()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._down.wait(), HEARTBEAT_S)

    def _announce(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def _taught(self, line: Line, commands: Sequence[Command], replies: list[Any]) -> list[Any]:
        """Run again what was refused with NOSCRIPT: a refused script did nothing."""
        places = [place for place, reply in enumerate(replies) if str(reply).startswith("NOSCRIPT")]
        again = [commands[place] for place in places]
        loads = self._missing_scripts(line, again)
        late = await _listed(line, wire.pack_all([*loads, *again]), len(again), len(loads))
        for place, reply in zip(places, late, strict=True):
            replies[place] = reply
        return replies

    def _missing_scripts(self, line: Line, commands: Sequence[Command]) -> list[Command]:
        digests = {str(command[1]) for command in commands if command[0] == "EVALSHA"}
        missing = [digest for digest in digests - line.loaded if digest in self._scripts]
        line.loaded.update(missing)
        return [("SCRIPT", "LOAD", self._scripts[digest]) for digest in missing]


class Script:
    """`await script(keys=[...], args=[...])`, or `script.command(...)` as one of `many`."""

    def __init__(self, redis: Redis, source: str, digest: str) -> None:
        self._redis = redis
        self.source = source
        self.digest = digest

    def command(self, keys: Sequence[str | bytes] = (), args: Sequence[Word] = ()) -> list[Word]:
        return ["EVALSHA", self.digest, len(keys), *keys, *args]

    async def __call__(self, keys: Sequence[str | bytes] = (), args: Sequence[Word] = ()) -> Any:
        command = self.command(keys, args)
        try:
            return await self._redis.call(*command)
        except RedisError as error:
            if error.code != "NOSCRIPT":
                raise
        await self._redis.call("SCRIPT", "LOAD", self.source)
        return await self._redis.call(*command)


async def _listed(line: Line, packed: bytes, count: int, skip: int) -> list[Any]:
    """A batch of one answers like a batch of many: errors stay in the list."""
    if count + skip > 1:
        replies: list[Any] = await line.send(packed, count, skip)
        return replies
    try:
        return [await line.send(packed, count)]
    except RedisError as error:
        return [hiredis.ReplyError(error.message)]


def _executed(replies: list[Any]) -> list[Any]:
    """What EXEC answered; if it refused, the command that was at fault says why."""
    last = replies[-1]
    if isinstance(last, hiredis.ReplyError):
        faults = [reply for reply in replies[:-1] if isinstance(reply, hiredis.ReplyError)]
        raise from_reply(str((faults or [last])[0]))
    if last is None:
        raise RedisError("ABORTED", "a watched key changed; nothing was done")
    done: list[Any] = last
    return done


def _as_value(reply: Any) -> Any:
    if isinstance(reply, hiredis.ReplyError):
        return from_reply(str(reply))
    return reply


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Redis]:
    """A started Redis for the length of a block."""
    redis = Redis(url, **options)
    await redis.start()
    try:
        yield redis
    finally:
        await redis.stop()


async def refuse_cluster(url: str, *, timeout: float) -> None:
    """Raise Broken (REDIS_CLUSTER) when the URL is a node of a cluster; a Redis that does not answer raises nothing."""
    async with opened(url, timeout=timeout) as redis:
        with contextlib.suppress(Busy):
            await redis.health()
