"""One query in its thread, seen from the event loop.

The thread hands its result over in bounded pieces, so a slow reader slows its own query and nobody's memory grows.
The first megabyte is held back: a query that fails early can then still answer with its proper status.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import msgspec

from handbill.infra.embedded.face import coding
from handbill.infra.embedded.face.engine import Engine
from handbill.infra.embedded.face.faults import CANCELLED, Fault, from_engine, midstream, refuse
from handbill.infra.embedded.face.statements import Ask, identifier, quote

_PIECE = 1024 * 1024
_PIECES_AHEAD = 4
_NOT_STREAMED = "Streaming query is not supported"


class Tally(msgspec.Struct):
    """What a query did; the summary header tells it."""

    read_rows: int = 0
    read_bytes: int = 0
    written_rows: int = 0
    written_bytes: int = 0
    result_rows: int = 0
    elapsed_ns: int = 0


class Running:
    """Call `start`, then `piece` until it gives None, then `rest`; or `abandon` it at any time."""

    def __init__(self, engine: Engine, ask: Ask, tag: str, encoding: str) -> None:
        self._engine = engine
        self._ask = ask
        self._tag = tag
        self._encoder = coding.encoder(encoding)
        self._loop = asyncio.get_running_loop()
        self._pieces: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._space = threading.Semaphore(_PIECES_AHEAD)
        self._held = bytearray()
        self._sending = False
        self._abandoned = False
        self.tally = Tally()
        self.done: asyncio.Future[bytes]

    # --- the event loop's side

    def start(self, threads: ThreadPoolExecutor) -> None:
        self.done = self._loop.run_in_executor(threads, self._work)
        self.done.add_done_callback(lambda _: self._news.set())

    async def piece(self) -> bytes | None:
        """The next encoded piece; None when the query has ended. Pieces always come before the end."""
        while not self._pieces:
            if self.done.done():
                return None
            self._news.clear()
            await self._news.wait()
        self._space.release()
        return self._pieces.popleft()

    def rest(self) -> bytes:
        """The last bytes of an ended query; raises the fault of one that failed before anything was sent."""
        return self.done.result()

    async def abandon(self, killers: ThreadPoolExecutor) -> None:
        """End the query. It may not have registered with the engine yet, so ask until its thread is back."""
        self._abandoned = True
        self._space.release()
        while not self.done.done():
            await self._loop.run_in_executor(killers, self._engine.kill, self._tag)
            await asyncio.wait([self.done], timeout=0.05)
        self.done.exception()

    # --- the thread's side

    def _work(self) -> bytes:
        """Run it all and return the last bytes."""
        try:
            connection = self._engine.connect()
            try:
                self._prepare(connection)
                self._execute(connection)
            finally:
                connection.close()
        except RuntimeError as error:
            self._fail(from_engine(error))
        except Fault as fault:
            self._fail(fault)
        if self._sending or self._held:
            self._held += self._encoder.finish()
        return bytes(self._held)

    def _fail(self, fault: Fault) -> None:
        if self._abandoned or not self._sending:
            raise fault
        self._emit(midstream(fault, self._tag))

    def _prepare(self, connection: Any) -> None:
        """Database, settings and our tag, valid for this connection only. `readonly` last: it forbids the rest."""
        self._check()
        ask = self._ask
        if ask.database:
            connection.query(f"USE {identifier(ask.database)}", "Null")
        settings = dict(ask.settings)
        read_only = settings.pop("readonly", "2" if ask.read_only else "")
        settings["log_comment"] = f"{self._tag} {settings.get('log_comment', '')}".strip()
        if ask.statement.data is not None:
            settings |= {f"param_{name}": value for name, value in ask.params.items()}
        connection.query("SET " + ", ".join(f"{name} = {quote(value)}" for name, value in settings.items()), "Null")
        if read_only:
            connection.query(f"SET readonly = {quote(read_only)}", "Null")

    def _execute(self, connection: Any) -> None:
        statement = self._ask.statement
        if statement.data is not None:
            self._insert(connection, statement.data)
            return
        if statement.streams:
            try:
                stream = connection.send_query(statement.sql, statement.format, params=self._ask.params)
            except RuntimeError as error:
                if _NOT_STREAMED not in str(error):
                    raise
            else:
                self._stream(stream)
                return
        self._whole(connection)

    def _insert(self, connection: Any, data: bytes) -> None:
        """chDB's own `send_insert` answers well to rows that the table did not keep (a full disk, a memory limit, too
        many parts, a constraint). Rows from a file go through the ordinary INSERT, which raises all of these."""
        with _in_file(data) as path:
            self._check()
            result = connection.query(self._ask.statement.insert_from(path), "Null")
        self.tally.written_rows = result.rows_written()
        self.tally.written_bytes = result.bytes_written()
        self.tally.elapsed_ns = int(result.elapsed() * 1e9)

    def _stream(self, stream: Any) -> None:
        try:
            for chunk in stream:
                self.tally.result_rows += chunk.rows_read()
                self._emit(chunk.bytes())
        finally:
            stream.close()

    def _whole(self, connection: Any) -> None:
        """For what chDB does not stream: the whole result is in memory once, bounded by the server's own limit."""
        result = connection.query(self._ask.statement.sql, self._ask.statement.format, params=self._ask.params)
        self.tally.result_rows = result.rows_read()
        self.tally.read_rows = result.storage_rows_read()
        self.tally.read_bytes = result.storage_bytes_read()
        self.tally.elapsed_ns = int(result.elapsed() * 1e9)
        if result.size():
            self._emit(result.bytes())

    def _emit(self, raw: bytes) -> None:
        """Gather small pieces into larger ones and hand those over, waiting while the reader is behind."""
        self._held += self._encoder.encode(raw)
        if len(self._held) < _PIECE:
            return
        piece, self._held = bytes(self._held), bytearray()
        self._sending = True
        self._space.acquire()
        self._check()
        self._loop.call_soon_threadsafe(self._arrived, piece)

    def _check(self) -> None:
        if self._abandoned:
            raise refuse(CANCELLED, "QUERY_WAS_CANCELLED", "The client went away")

    def _arrived(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._news.set()


@contextmanager
def _in_file(data: bytes) -> Iterator[str]:
    """A path under which this process reads these bytes. In memory where the system can: a full disk is for the engine
    to report, by its own code."""
    if not hasattr(os, "memfd_create"):
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            yield file.name
        return
    with os.fdopen(os.memfd_create("insert", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        yield f"/proc/self/fd/{file.fileno()}"
