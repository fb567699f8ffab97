"""Redis in a backup: the journal and the queues at one moment. Caches and caps rebuild themselves and stay behind.

The moment comes from Redis itself: a replica's SYNC makes it fork and send a snapshot, without holding up anybody. The
snapshot is loaded into a Redis of our own for a minute, and the keys that matter are written out one by one; a restore
then needs nothing but RESTORE, whatever the version of the target.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import msgspec

from handbill.infra.embedded.redis import start_redis
from handbill.infra.redis import Redis
from handbill.infra.redis import url as urls
from handbill.kit.errors import Broken, Busy
from handbill.wiring.state import REBUILT

PATIENCE = 600.0
CHUNK = 500


class Frame(msgspec.Struct, frozen=True, array_like=True):
    """One key: its name, when it expires (0 = never), its value as Redis packs it."""

    key: bytes
    expires_ms: int
    value: bytes


async def copy_out(url: str, target: Path) -> int:
    """Write every key that matters to `target`; the number of keys."""
    place = Path(tempfile.mkdtemp(prefix="hb-redis-"))
    try:
        data = place / "redis" / "data"
        data.mkdir(parents=True)
        # A file that begins as a snapshot is a valid append-only file: every version loads it on start.
        await snapshot(url, data / "appendonly.aof")
        engine = await start_redis(place, durable=False)
        source = Redis(f"{engine.url.rpartition('/')[0]}/{urls.parse(url).db}", timeout=PATIENCE)
        await source.start()
        try:
            return await _write(source, target)
        finally:
            await source.stop()
            await engine.stop()
    finally:
        shutil.rmtree(place, ignore_errors=True)


async def snapshot(url: str, target: Path) -> None:
    """Ask as a replica would: AUTH, SYNC, then `$<length>` and that many bytes of snapshot."""
    address = urls.parse(url)
    opened = (
        asyncio.open_unix_connection(address.path)
        if address.path
        else asyncio.open_connection(address.host, address.port, ssl=address.ssl_context())
    )
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await opened
            try:
                await _login(reader, writer, address.user, address.password)
                writer.write(b"SYNC\r\n")
                await _receive(reader, target)
            finally:
                writer.close()
    except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
        raise Busy(f"Redis did not send its snapshot ({type(error).__name__}); nothing was kept, try again.") from error


async def _login(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, username: str | None, password: str | None
) -> None:
    if password is None:
        return
    words = [b"AUTH", *([username.encode()] if username else []), password.encode()]
    writer.write(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))
    answer = await reader.readline()
    if not answer.startswith(b"+OK"):
        raise Broken("Redis refused the login. Nothing was kept. Check the URL's password.", code="REDIS_LOGIN")


async def _receive(reader: asyncio.StreamReader, target: Path) -> None:
    line = b"\n"
    while line == b"\n":  # sent while the snapshot is being made, to keep the line open
        line = await reader.readline()
    if not line.startswith(b"$") or not line[1:].strip().isdigit():
        said = line.decode(errors="replace").strip()
        raise Broken(f"Redis does not give its snapshot away: {said}. Allow SYNC for this user.", code="REDIS_SYNC")
    left = int(line[1:])
    with target.open("wb") as file:
        while left:
            chunk = await reader.read(min(left, 1 << 20))
            if not chunk:
                raise asyncio.IncompleteReadError(b"", left)
            file.write(chunk)
            left -= len(chunk)


async def _write(source: Redis, target: Path) -> int:
    count = 0
    now = await source.time_ms()
    with target.open("wb") as file:
        async for keys in _scan(source):
            kept = [key for key in keys if not key.startswith(tuple(prefix.encode() for prefix in REBUILT))]
            commands = [command for key in kept for command in (("DUMP", key), ("PTTL", key))]
            replies = await source.many(commands)
            for key, value, left in zip(kept, replies[::2], replies[1::2], strict=True):
                if value is None:  # it expired while we looked
                    continue
                packed = msgspec.msgpack.encode(Frame(key, now + left if left > 0 else 0, value))
                file.write(len(packed).to_bytes(4, "big") + packed)
                count += 1
    return count


async def _scan(source: Redis) -> AsyncIterator[list[bytes]]:
    """All keys, a portion at a time. SCAN may name a key twice: it is then kept twice, and restored twice."""
    cursor: bytes | str = "0"
    while True:
        cursor, keys = await source.call("SCAN", cursor, "COUNT", CHUNK)
        yield keys
        if cursor == b"0":
            return


async def copy_in(redis: Redis, source: Path) -> int:
    """Bring the keys back; those that would have expired meanwhile are left out."""
    now = await redis.time_ms()
    count = 0
    for frames in _frames(source):
        alive = [frame for frame in frames if not frame.expires_ms or frame.expires_ms > now]
        await redis.many(
            [
                ("RESTORE", frame.key, frame.expires_ms - now if frame.expires_ms else 0, frame.value, "REPLACE")
                for frame in alive
            ]
        )
        count += len(alive)
    return count


def _frames(source: Path) -> Iterator[Sequence[Frame]]:
    decode = msgspec.msgpack.Decoder(Frame).decode
    batch: list[Frame] = []
    with source.open("rb") as file:
        while head := file.read(4):
            batch.append(decode(file.read(int.from_bytes(head, "big"))))
            if len(batch) == CHUNK:
                yield batch
                batch = []
    if batch:
        yield batch
