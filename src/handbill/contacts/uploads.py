"""Uploaded files on disk: streamed in, bounded, synced before they are believed, removed when nobody needs them.

They lie in one directory below the home (or where the operator says), which every API and worker process must see.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import msgspec
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser, parse_options_header

from handbill.kit.errors import Busy, HandbillError, Invalid, TooLarge

FIELD_LIMIT = 65_536
DRAINED, DRAINED_S = 64 << 20, 10
SPARE = 256 << 20
"""Bytes of disk that an upload leaves for everybody else."""


class Received(msgspec.Struct, frozen=True):
    """A file that is on disk, whole."""

    file: str
    name: str
    size: int
    sha256: str
    fields: dict[str, str]


class Uploads:
    def __init__(self, folder: Path, limit: int) -> None:
        self.folder = folder
        self.limit = limit

    def path(self, file: str) -> Path:
        return self.folder / file

    def canonical(self, import_id: UUID) -> Path:
        return self.folder / f"{import_id}.utf8"

    async def receive(
        self, import_id: UUID, chunks: AsyncIterator[bytes], content_type: str, name: str, length: int | None
    ) -> Received:
        """The body, as a form's file or as it is. Nothing is left behind unless all of it came."""
        try:
            return await self._received(import_id, chunks, content_type, name, length)
        except HandbillError:
            await drained(chunks)
            raise

    async def _received(
        self, import_id: UUID, chunks: AsyncIterator[bytes], content_type: str, name: str, length: int | None
    ) -> Received:
        if length is not None and length > self.limit + FIELD_LIMIT:
            raise self._too_large()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._room(length or 0)
        draft = self.folder / f"{import_id}.part"
        sink = _Sink(draft, self.limit)
        try:
            form = _Form(sink, content_type) if content_type.lower().startswith("multipart/form-data") else None
            async for chunk in chunks:
                if not chunk:
                    continue
                if form is None:
                    sink.write(chunk)
                else:
                    form.feed(chunk)
            if form is not None:
                name = form.finish() or name
            if sink.size == 0:
                raise Invalid("The file is empty; nothing was kept.", code="IMPORT_EMPTY")
            await asyncio.to_thread(sink.sync)
            target = self.folder / f"{import_id}.bin"
            draft.replace(target)
            fields = form.fields if form is not None else {}
            return Received(target.name, clean_name(name), sink.size, sink.digest.hexdigest(), fields)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise Busy("The disk is full; nothing was kept.", code="DISK_FULL", retry_after=60) from error
            raise
        finally:
            sink.close()
            draft.unlink(missing_ok=True)

    def _room(self, wanted: int) -> None:
        if shutil.disk_usage(self.folder).free < wanted + SPARE:
            raise Busy(
                "There is too little disk left for an upload; nothing was kept.", code="DISK_FULL", retry_after=60
            )

    def _too_large(self) -> TooLarge:
        return TooLarge(
            f"A file may have {self.limit} bytes; nothing was kept. Split it, or pack it with gzip.",
            code="IMPORT_TOO_LARGE",
        )

    def remove(self, *files: str) -> None:
        for file in files:
            (self.folder / file).unlink(missing_ok=True)


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


class _Sink:
    def __init__(self, path: Path, limit: int) -> None:
        self._file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
        self._limit = limit
        self.size = 0
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self._limit:
            raise TooLarge(
                f"A file may have {self._limit} bytes; nothing was kept. Split it, or pack it with gzip.",
                code="IMPORT_TOO_LARGE",
            )
        self.digest.update(data)
        self._file.write(data)

    def sync(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class _Form:
    """A form as it streams by: the part `file` goes to disk, small fields are kept, the rest is refused."""

    def __init__(self, sink: _Sink, content_type: str) -> None:
        boundary = parse_options_header(content_type)[1].get(b"boundary")
        if not boundary or len(boundary) > 200:
            raise Invalid("The form has no boundary; nothing was kept.", code="BAD_FORM")
        self._sink = sink
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
            self._sink.write(data)
            return
        self._text += data
        if len(self._text) > FIELD_LIMIT:
            raise Invalid("A field of the form is too long; nothing was kept.", code="BAD_FORM")

    def _close(self) -> None:
        if self._part and self._part != "file":
            self.fields[self._part[:60]] = self._text.decode("utf-8", "replace")

    def _end(self) -> None:
        self._ended = True
