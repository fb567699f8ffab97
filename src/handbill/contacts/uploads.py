"""Uploaded files on disk: streamed in, bounded, synced before they are believed, removed when nobody needs them.

They lie in one directory below the home (or where the operator says), which every API and worker process must see.
Everything that touches the disk runs in threads of its own: a slow disk delays uploads, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import shutil
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from handbill.kit.errors import Busy, Invalid, TooLarge
from handbill.kit.telemetry import logs

FIELD_LIMIT = 65_536
DRAINED, DRAINED_S = 64 << 20, 10
SPARE = 256 << 20
"""Bytes of disk that an upload leaves for everybody else."""
BLOCK = 256 << 10
"""Bytes of an upload that are collected before a thread writes them."""
THREADS = 4
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_OURS = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})[.](bin|utf8|part|[0-9]{1,10}[.]part)")

log = logs.get("contacts")


class Received(msgspec.Struct, frozen=True):
    """A file that is on disk, whole."""

    file: str
    name: str
    size: int
    sha256: str
    fields: dict[str, str]


@dataclass(frozen=True)
class Incoming:
    """A body as it comes. `reserve` is called with the size of each part before it is kept, and may refuse it."""

    chunks: AsyncIterator[bytes]
    reserve: Callable[[int], None]
    content_type: str = ""
    name: str = "upload"
    length: int | None = None


class Uploads:
    """The directory of uploaded files, each of at most `limit` bytes."""

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="uploads")

    def path(self, file: str) -> Path:
        """Where a stored file lies."""
        return self.folder / file

    def canonical(self, import_id: UUID) -> Path:
        """Where the canonical form of an import's file is written."""
        return self.folder / f"{import_id}.utf8"

    async def receive(self, import_id: UUID, incoming: Incoming) -> Received:
        """The body, as a form's file or as it is. Nothing is left behind unless all of it came.

        Raises Busy if the disk is full (`DISK_FULL`) or cannot be written (`UPLOAD_NOT_STORED`), TooLarge, and Invalid
        for a form that cannot be read.
        """
        if incoming.length is not None and incoming.length > self.limit + FIELD_LIMIT:
            raise _too_large(self.limit)
        draft = _Draft(self.folder, import_id, self.limit, incoming.content_type)
        received: Received | None = None
        try:
            await self._store(draft.open, incoming.length or 0)
            held = bytearray()
            async for chunk in incoming.chunks:
                incoming.reserve(len(chunk))
                held += chunk
                if len(held) >= BLOCK:
                    await self._store(draft.write, bytes(held))
                    held.clear()
            await self._store(draft.write, bytes(held))
            received = await self._store(draft.finish, incoming.name)
            return received
        finally:  # also when the client has left: what a thread is doing ends first
            await asyncio.shield(self._run(draft.close, received is not None))

    async def remove(self, *files: str) -> None:
        """Files that are gone already are no error. Raises OSError."""
        await self._run(self._remove, files)

    async def discard(self, *files: str) -> None:
        """Remove files that nobody will ask for. One that cannot be removed is logged; the clean-up finds it later."""
        try:
            await asyncio.shield(self._run(self._remove, files))
        except OSError as error:
            log.warning("uploads.not_removed", files=list(files), error=str(error))

    async def list_old(self, before: datetime) -> list[tuple[UUID, str]]:
        """Files not written since, with the import that each is named after; only names that we give."""
        return await self._run(self._list_old, before.timestamp())  # type: ignore[no-any-return] # as it says

    def _list_old(self, before: float) -> list[tuple[UUID, str]]:
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            return [
                (UUID(match[1]), entry.name)
                for entry in entries
                if (match := _OURS.fullmatch(entry.name)) and _changed_at(entry) < before
            ]
        return []

    def _remove(self, files: tuple[str, ...]) -> None:
        for file in files:
            (self.folder / file).unlink(missing_ok=True)

    async def _store(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return await self._run(function, *args)
        except OSError as error:
            if error.errno in DISK_FULL:
                raise _disk_full() from error
            log.warning("uploads.write_failed", error=str(error))
            raise Busy(
                "The file could not be written to disk; nothing was kept.", code="UPLOAD_NOT_STORED", retry_after=60
            ) from error

    def _run(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *args)


async def drained(chunks: AsyncIterator[bytes]) -> None:
    """A client that is still sending does not hear an answer; a sender without end is cut off all the same."""
    left = DRAINED
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAINED_S):
            async for chunk in chunks:
                left -= len(chunk)
                if left < 0:
                    return


def clean_name(name: str) -> str:
    """The file's own name for people, never for paths."""
    base = re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", "", name.replace("\\", "/").rpartition("/")[2])
    return base[:200] or "upload"


def _changed_at(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat(follow_symlinks=False).st_mtime
    except FileNotFoundError:  # removed meanwhile: not old
        return float("inf")


def _too_large(limit: int) -> TooLarge:
    return TooLarge(
        f"A file may have {limit} bytes; nothing was kept. Split it, or pack it with gzip.", code="IMPORT_TOO_LARGE"
    )


def _disk_full() -> Busy:
    return Busy("There is too little disk left for an upload; nothing was kept.", code="DISK_FULL", retry_after=60)


class _Draft:
    """A file that is being written. Its methods block; each takes the lock, so that closing waits for a running one."""

    def __init__(self, folder: Path, import_id: UUID, limit: int, content_type: str) -> None:
        self._folder, self._limit = folder, limit
        self._path, self._target = folder / f"{import_id}.part", folder / f"{import_id}.bin"
        self._lock = threading.Lock()
        self._file: int | None = None
        self._closed = False
        self._size = 0
        self._digest = hashlib.sha256()
        is_form = content_type.lower().startswith("multipart/form-data")
        self._form = _Form(self._append, content_type) if is_form else None

    def open(self, length: int) -> None:
        with self._lock:
            if self._closed:
                return
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._check_room(length)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def write(self, data: bytes) -> None:
        with self._lock:
            if self._closed or not data:
                return
            self._check_room(len(data))
            if self._form is None:
                self._append(data)
            else:
                self._form.feed(data)

    def finish(self, name: str) -> Received | None:
        with self._lock:
            if self._closed or self._file is None:
                return None
            if self._form is not None:
                name = self._form.finish() or name
            if self._size == 0:
                raise Invalid("The file is empty; nothing was kept.", code="IMPORT_EMPTY")
            os.fsync(self._file)
            self._path.replace(self._target)
            _sync_directory(self._folder)
            fields = self._form.fields if self._form is not None else {}
            return Received(self._target.name, clean_name(name), self._size, self._digest.hexdigest(), fields)

    def close(self, keep: bool) -> None:
        """Nothing of it is left, unless it is to be kept. Never raises."""
        with self._lock:
            self._closed = True
            if self._file is None:
                return
            try:
                os.close(self._file)
                self._path.unlink(missing_ok=True)
                if not keep:
                    self._target.unlink(missing_ok=True)
            except OSError as error:
                log.warning("uploads.not_removed", files=[self._path.name], error=str(error))

    def _check_room(self, wanted: int) -> None:
        if shutil.disk_usage(self._folder).free < wanted + SPARE:
            raise _disk_full()

    def _append(self, data: bytes) -> None:
        assert self._file is not None
        self._size += len(data)
        if self._size > self._limit:
            raise _too_large(self._limit)
        self._digest.update(data)
        rest = memoryview(data)
        while rest:
            written = os.write(self._file, rest)
            if written == 0:
                raise OSError(errno.ENOSPC, "nothing could be written")
            rest = rest[written:]


def _sync_directory(folder: Path) -> None:
    """The name of a new file is on disk too."""
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class _Form:
    """A form as it streams by: the part `file` goes to disk, small fields are kept, the rest is refused."""

    def __init__(self, append: Callable[[bytes], None], content_type: str) -> None:
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if not boundary or len(boundary) > 200:
            raise Invalid("The form has no boundary; nothing was kept.", code="BAD_FORM")
        self._append = append
        self._header: list[bytes] = [b"", b""]
        self._headers: dict[bytes, bytes] = {}
        self._part: str | None = None
        self._text = b""
        self._file_name = ""
        self._seen_file = self._ended = False
        self.fields: dict[str, str] = {}
        self._parser = MultipartParser(
            boundary,
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._head(0, data[start:end]),
                "on_header_value": lambda data, start, end: self._head(1, data[start:end]),
                "on_header_end": self._header_end,
                "on_headers_finished": self._open,
                "on_part_data": lambda data, start, end: self._data(data[start:end]),
                "on_part_end": self._close,
                "on_end": self._end,
            },
        )

    def feed(self, chunk: bytes) -> None:
        try:
            self._parser.write(chunk)
        except MultipartParseError as error:
            raise Invalid("The form cannot be read; nothing was kept.", code="BAD_FORM") from error

    def finish(self) -> str:
        if not self._seen_file or not self._ended:
            raise Invalid("The form has no whole part named `file`; nothing was kept.", code="BAD_FORM")
        return self._file_name

    def _begin(self) -> None:
        self._headers, self._header, self._text, self._part = {}, [b"", b""], b"", None

    def _head(self, which: int, data: bytes) -> None:
        self._header[which] += data

    def _header_end(self) -> None:
        self._headers[self._header[0].lower()] = self._header[1]
        self._header = [b"", b""]

    def _open(self) -> None:
        options = parse_options_header(self._headers.get(b"content-disposition", b""))[1]
        self._part = options.get(b"name", b"").decode("utf-8", "replace")
        if self._part == "file":
            if self._seen_file:
                raise Invalid("One file at a time; nothing was kept.", code="BAD_FORM")
            self._seen_file = True
            self._file_name = options.get(b"filename", b"").decode("utf-8", "replace")
        elif len(self.fields) >= 20:
            raise Invalid("The form has too many fields; nothing was kept.", code="BAD_FORM")

    def _data(self, data: bytes) -> None:
        if self._part == "file":
            self._append(data)
            return
        self._text += data
        if len(self._text) > FIELD_LIMIT:
            raise Invalid("A field of the form is too long; nothing was kept.", code="BAD_FORM")

    def _close(self) -> None:
        if self._part and self._part != "file":
            self.fields[self._part[:60]] = self._text.decode("utf-8", "replace")

    def _end(self) -> None:
        self._ended = True
