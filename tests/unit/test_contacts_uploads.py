"""Uploads on a disk that is full, slow or broken: a clear answer, nothing left behind, and no harm to others."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import shutil
import threading
from collections import namedtuple
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from handbill.contacts import uploads as module
from handbill.contacts.uploads import BLOCK, Incoming, Received, Uploads
from handbill.kit.errors import Busy, Invalid, TooLarge
from tests.kit.waiting import eventually

BODY = b"name,phone\n" + b"Ana,+5511987654321\n" * (3 * BLOCK // 19)
MARK = b"the disk fails here"
FORM = 'multipart/form-data; boundary="b"'


class Disk:
    """The functions of `os`, with a disk that a test breaks."""

    def __init__(self) -> None:
        self.write: Callable[[int, Any], int] = os.write
        self.fsync: Callable[[int], None] = os.fsync

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(module, "os", made)
    return made


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads(tmp_path / "uploads", 10 << 20)


async def parts(body: bytes, size: int = 50_000) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


async def receive(uploads: Uploads, body: bytes, import_id: UUID | None = None, content_type: str = "") -> Received:
    incoming = Incoming(parts(body), lambda size: None, content_type, "people.csv")
    return await uploads.receive(import_id or uuid4(), incoming)


def form(body: bytes) -> bytes:
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n'
    return head + body + b"\r\n--b--\r\n"


def files(uploads: Uploads) -> list[str]:
    return sorted(path.name for path in uploads.folder.iterdir())


async def test_a_body_and_a_form_are_stored_whole(uploads: Uploads) -> None:
    plain = await receive(uploads, BODY)
    sent = await receive(uploads, form(BODY), content_type=FORM)
    for one in (plain, sent):
        assert uploads.path(one.file).read_bytes() == BODY
        assert (one.size, one.sha256) == (len(BODY), hashlib.sha256(BODY).hexdigest())
    assert (plain.name, sent.name) == ("people.csv", "a.csv")
    assert len(files(uploads)) == 2


async def test_short_writes_lose_nothing(uploads: Uploads, disk: Disk) -> None:
    disk.write = lambda file, data: os.write(file, data[: max(1, len(data) // 3)])
    stored = await receive(uploads, BODY)
    assert uploads.path(stored.file).read_bytes() == BODY


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, None])
async def test_a_full_disk_costs_only_the_upload_that_meets_it(uploads: Uploads, disk: Disk, code: int | None) -> None:
    def write(file: int, data: Any) -> int:
        if MARK not in bytes(data):
            return os.write(file, data)
        os.write(file, data[:100])
        if code is None:
            return 0
        raise OSError(code, os.strerror(code))

    disk.write = write
    full, other = await asyncio.gather(
        receive(uploads, BODY + MARK), receive(uploads, form(BODY), content_type=FORM), return_exceptions=True
    )
    assert isinstance(full, Busy)
    assert (full.code, full.status, full.retry_after) == ("DISK_FULL", 503, 60)
    assert isinstance(other, Received)
    assert files(uploads) == [other.file]


async def test_a_disk_without_room_for_others_takes_no_more(
    uploads: Uploads, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "free")
    room = [module.SPARE + BLOCK + 100_000, module.SPARE + BLOCK + 100_000, module.SPARE]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(room.pop(0)))
    with pytest.raises(Busy) as caught:
        await receive(uploads, BODY)
    assert caught.value.code == "DISK_FULL"
    assert files(uploads) == []


async def test_a_broken_disk_is_a_clear_answer(uploads: Uploads, disk: Disk) -> None:
    def fsync(file: int) -> None:
        raise OSError(errno.EIO, "broken")

    disk.fsync = fsync
    with pytest.raises(Busy) as caught:
        await receive(uploads, BODY)
    assert caught.value.code == "UPLOAD_NOT_STORED"
    assert files(uploads) == []


@pytest.mark.parametrize("content_type", ["", FORM])
async def test_a_slow_disk_stops_nobody_and_a_client_that_left_leaves_nothing(
    uploads: Uploads, disk: Disk, content_type: str
) -> None:
    writing, go_on = threading.Event(), threading.Event()

    def write(file: int, data: Any) -> int:
        if MARK in bytes(data):
            writing.set()
            assert go_on.wait(60), "the event loop stood still"
        return os.write(file, data)

    disk.write = write
    body = BODY + MARK
    slow = asyncio.create_task(receive(uploads, form(body) if content_type else body, content_type=content_type))
    await eventually(writing.is_set)
    neighbour = await receive(uploads, BODY)
    slow.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await slow
    await eventually(lambda: files(uploads) == [neighbour.file])


async def test_a_client_that_leaves_at_the_last_moment_leaves_nothing(uploads: Uploads, disk: Disk) -> None:
    syncing, go_on = threading.Event(), threading.Event()

    def fsync(file: int) -> None:
        syncing.set()
        assert go_on.wait(60), "the event loop stood still"

    disk.fsync = fsync
    leaving = asyncio.create_task(receive(uploads, BODY))
    await eventually(syncing.is_set)
    leaving.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    await eventually(lambda: files(uploads) == [])


async def test_refused_bodies_leave_nothing(uploads: Uploads) -> None:
    def refuse(size: int) -> None:
        raise TooLarge("no room")

    with pytest.raises(TooLarge):
        await uploads.receive(uuid4(), Incoming(parts(BODY), refuse))
    with pytest.raises(TooLarge):
        await receive(Uploads(uploads.folder, 1_000), BODY)
    with pytest.raises(Invalid):
        await receive(uploads, b"")
    with pytest.raises(Invalid):
        await receive(uploads, form(BODY)[:-20], content_type=FORM)
    assert files(uploads) == []


async def test_a_file_that_cannot_be_removed_is_no_error_of_the_request(
    uploads: Uploads, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = await receive(uploads, BODY)

    def unlink(path: Path, *, missing_ok: bool = False) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(Path, "unlink", unlink)
    await uploads.discard(stored.file)
    with pytest.raises(OSError, match="broken"):
        await uploads.remove(stored.file)
