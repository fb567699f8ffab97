"""Compressed bodies, recognised by their first bytes whatever the headers say, and never let grow past a limit."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import lz4.frame
import zstandard

from handbill.kit.errors import Invalid, TooLarge, Unsupported

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_LZ4 = b"\x04\x22\x4d\x18"
_UNREADABLE = frozenset({b"br", b"compress"})
_ZSTD_WINDOW = 1 << 23
"""Eight megabytes: what RFC 8878 asks a decoder to manage, and no more memory than that for a stranger."""


def unpack(body: bytes, limit: int, encoding: bytes = b"") -> bytes:
    """The plain body. `encoding` is asked only where the bytes themselves do not tell."""
    if body.startswith(_GZIP):
        plain = _inflated(body, limit, 31)
    elif _is_zlib(body):
        plain = _inflated(body, limit, 15)
    elif body.startswith(_ZSTD):
        plain = _guarded(_unzstd, body, limit)
    elif body.startswith(_LZ4):
        plain = _guarded(_unlz4, body, limit)
    else:
        plain = _plain(body, limit, encoding.strip().lower())
    if len(plain) > limit:
        raise _too_large(limit)
    return plain


def _plain(body: bytes, limit: int, encoding: bytes) -> bytes:
    if not body or body[:1] in b'{["\t\n\r \xef':
        return body
    if encoding in _UNREADABLE:
        raise Unsupported(f"Bodies packed as {encoding.decode()} are not read here; send gzip, deflate or zstd.")
    return _inflated(body, limit, -15) if encoding == b"deflate" else body


def _is_zlib(body: bytes) -> bool:
    return len(body) > 2 and body[0] == 0x78 and body[1] in (0x01, 0x5E, 0x9C, 0xDA)


def _inflated(body: bytes, limit: int, wbits: int) -> bytes:
    """One zlib stream, or several gzip members one after another."""
    found, left = [], limit + 1
    while body:
        stream = zlib.decompressobj(wbits)
        try:
            piece = stream.decompress(body, left)
        except zlib.error:
            raise _damaged() from None
        found.append(piece)
        left -= len(piece)
        if left <= 0:
            raise _too_large(limit)
        if not stream.eof:
            raise _damaged()
        body = stream.unused_data if stream.unused_data.startswith(_GZIP) else b""
    return b"".join(found)


def _guarded(read: Callable[[bytes, int], bytes], body: bytes, limit: int) -> bytes:
    try:
        return read(body, limit + 1)
    except (zstandard.ZstdError, RuntimeError, EOFError):
        raise _damaged() from None


def _unzstd(body: bytes, most: int) -> bytes:
    # The reader does not tell a frame that was cut short; the JSON inside it will.
    with zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).stream_reader(
        body, read_across_frames=True
    ) as reader:
        return reader.read(most)


def _unlz4(body: bytes, most: int) -> bytes:
    stream = lz4.frame.LZ4FrameDecompressor()
    plain: bytes = stream.decompress(body, max_length=most)
    if not stream.eof and len(plain) < most:
        raise EOFError
    return plain


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than {limit:,} bytes; nothing was kept, send smaller batches.")


def _damaged() -> Invalid:
    return Invalid("The body's compression is damaged; nothing was kept.", code="BAD_JSON")
