"""Content encodings as ClickHouse clients use them: lz4 frames, zstd, gzip, deflate. Pure; sizes are bounded."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable
from typing import Protocol

import lz4.frame
import zstandard

from handbill.infra.embedded.face.faults import CANNOT_DECOMPRESS, TOO_LARGE, Fault, refuse

OFFERED = ("lz4", "zstd", "gzip", "deflate")


class Encoder(Protocol):
    """Encodes a response piece by piece; `finish` gives the last bytes."""

    def encode(self, piece: bytes) -> bytes: ...

    def finish(self) -> bytes: ...


class Plain:
    def encode(self, piece: bytes) -> bytes:
        return piece

    def finish(self) -> bytes:
        return b""


class Lz4:
    def __init__(self) -> None:
        self._frame = lz4.frame.LZ4FrameCompressor()
        self._begun = False

    def encode(self, piece: bytes) -> bytes:
        head = b"" if self._begun else self._frame.begin()
        self._begun = True
        return bytes(head + self._frame.compress(piece))

    def finish(self) -> bytes:
        head = b"" if self._begun else self._frame.begin()
        return bytes(head + self._frame.flush())


class Zstd:
    def __init__(self) -> None:
        self._frame = zstandard.ZstdCompressor(level=1).compressobj()

    def encode(self, piece: bytes) -> bytes:
        return self._frame.compress(piece)

    def finish(self) -> bytes:
        return self._frame.flush()


class Zlib:
    def __init__(self, wbits: int) -> None:
        self._frame = zlib.compressobj(1, zlib.DEFLATED, wbits)

    def encode(self, piece: bytes) -> bytes:
        return self._frame.compress(piece)

    def finish(self) -> bytes:
        return self._frame.flush()


_ENCODERS: dict[str, Callable[[], Encoder]] = {
    "lz4": Lz4,
    "zstd": Zstd,
    "gzip": lambda: Zlib(31),
    "deflate": lambda: Zlib(15),
}


def choose(accept: str, *, allowed: bool) -> str:
    """The first encoding the client accepts and we speak; empty for none. Clients must allow it per request."""
    if not allowed:
        return ""
    wanted = [part.partition(";")[0].strip().lower() for part in accept.split(",")]
    return next((name for name in wanted if name in _ENCODERS), "")


def encoder(name: str) -> Encoder:
    return _ENCODERS[name]() if name else Plain()


def decode(body: bytes, name: str, limit: int) -> bytes:
    """The body as it was before its encoding, never more than `limit` bytes of it."""
    name = name.strip().lower()
    if name in {"", "identity"}:
        return body
    try:
        if name == "lz4":
            whole = _unframe(body, limit)
        elif name == "zstd":
            with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(body), read_across_frames=True) as reader:
                whole = reader.read(limit + 1)
        elif name in {"gzip", "deflate"}:
            whole = _inflate(body, limit)
        else:
            raise refuse(CANNOT_DECOMPRESS, "CANNOT_DECOMPRESS", f"Unknown content encoding {name!r}")
    except Fault:
        raise
    except (RuntimeError, zlib.error, zstandard.ZstdError, EOFError) as error:
        raise refuse(CANNOT_DECOMPRESS, "CANNOT_DECOMPRESS", f"The {name} body is damaged: {error}") from error
    if len(whole) > limit:
        raise too_large(limit)
    return whole


def too_large(limit: int) -> Fault:
    return refuse(TOO_LARGE, "TOO_MANY_BYTES", f"The body is larger than {limit} bytes: send smaller batches")


def _unframe(body: bytes, limit: int) -> bytes:
    """Clients send one frame per block, one after the other."""
    out = io.BytesIO()
    while body:
        frame = lz4.frame.LZ4FrameDecompressor()
        out.write(frame.decompress(body, max_length=max(1, limit + 1 - out.tell())))
        if out.tell() > limit:
            break
        if not frame.eof:
            raise EOFError("it ends too early")
        body = frame.unused_data or b""
    return out.getvalue()


def _inflate(body: bytes, limit: int) -> bytes:
    out = io.BytesIO()
    while body:
        member = zlib.decompressobj(47)
        out.write(member.decompress(body, max(1, limit + 1 - out.tell())))
        if out.tell() > limit:
            break
        if not member.eof:
            raise EOFError("it ends too early")
        body = member.unused_data
    return out.getvalue()
