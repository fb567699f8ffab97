"""Compressed bodies, recognised by their first bytes whatever the headers say, and never let grow past a limit.

Unpacking goes in steps. A body that turns out to be more than a small one stops between two of them, so that the caller
can go on in a thread: how long a body takes is decided by what it unpacks to, not by the bytes that came.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator
from typing import TypeVar

import lz4.frame
import zstandard

from handbill.kit.bounds import FRAMES
from handbill.kit.errors import Invalid, TooLarge, Unsupported
from handbill.kit.inflate import GZIP, GZIP_MAGIC, OUTPUT_BYTES, RAW, ZLIB, Damaged, TooManyMembers, inflate, steps

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work that stops once, where it turns out to be too much for the event loop. Whoever goes on gets the result."""

_ZSTD = b"\x28\xb5\x2f\xfd"
_LZ4 = b"\x04\x22\x4d\x18"
_SKIPPABLE = b"\x2a\x4d\x18"
"""The end of the first four bytes of a frame that holds nothing: zstd and lz4 have sixteen of these."""
_UNREADABLE = frozenset({b"br", b"compress"})
_ZSTD_WINDOW = 1 << 23
"""Eight megabytes: what RFC 8878 asks a decoder to manage, and no more memory than that for one body."""


def unpack(body: bytes, limit: int, encoding: bytes = b"") -> bytes:
    """The plain body, whatever it takes. Raises as `unpacking` does."""
    return finish(unpacking(body, limit, encoding))


def unpacking(body: bytes, limit: int, encoding: bytes = b"", inline: int = sys.maxsize) -> Steps[bytes]:
    """The plain body; stops once if it has more than `inline` bytes, packed or unpacked.

    `encoding` counts only where the bytes themselves do not show how they are packed. Raises TooLarge over `limit`,
    Invalid (BAD_JSON) for damaged data and for more members than honest data has, Unsupported for other packings.
    """
    blocks = _blocks(body, encoding.strip().lower())
    has_stopped = len(body) > inline
    if has_stopped:
        yield
    if blocks is None:
        if len(body) > limit:
            raise _too_large(limit)
        return body
    plain: list[bytes] = []
    size = 0
    try:
        for block in blocks:
            plain.append(block)
            size += len(block)
            if size > limit:
                raise _too_large(limit)
            if size > inline and not has_stopped:
                has_stopped = True
                yield
    except TooManyMembers:
        raise _too_many() from None
    except (Damaged, zstandard.ZstdError, RuntimeError, EOFError):
        raise _damaged() from None
    return b"".join(plain)


def finish(work: Steps[T]) -> T:
    """The result, without a stop."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


def _blocks(body: bytes, encoding: bytes) -> Iterator[bytes] | None:
    """The unpacked bytes of a packed body, block by block; None where the body is not packed."""
    if not body or body[0] in b'{["\t\n\r \xef':
        return None
    if body.startswith(GZIP_MAGIC):
        return inflate(steps(body), GZIP)
    if len(body) > 2 and body[0] == 0x78 and body[1] in (0x01, 0x5E, 0x9C, 0xDA):
        return inflate(steps(body), ZLIB)
    if body.startswith(_ZSTD):
        return _unzstd(body)
    if body.startswith(_LZ4):
        return _unlz4(body)
    if encoding in _UNREADABLE:
        raise Unsupported(f"Bodies packed as {encoding.decode()} are not read here; send gzip, deflate or zstd.")
    return inflate(steps(body), RAW) if encoding == b"deflate" else None


def _unzstd(body: bytes) -> Iterator[bytes]:
    """All frames. One that was cut short is not noticed here; the JSON inside it shows it."""
    # The reader does not count its frames. Their first bytes are counted instead: other data has them only by chance.
    if body.count(_ZSTD) + body.count(_SKIPPABLE) > FRAMES:
        raise TooManyMembers("more frames than any packer writes")
    with zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW).stream_reader(
        body, read_across_frames=True
    ) as reader:
        while block := reader.read(OUTPUT_BYTES):
            yield block


def _unlz4(body: bytes) -> Iterator[bytes]:
    """All frames, one after the other, as `inflate` reads members."""
    source = steps(body)
    rest = b""
    for _ in range(FRAMES):
        stream = lz4.frame.LZ4FrameDecompressor()
        while not stream.eof:
            if stream.needs_input and not rest:
                rest = bytes(next(source, b""))
                if not rest:
                    raise Damaged("the frame is cut short")
            block, rest = stream.decompress(rest, max_length=OUTPUT_BYTES), b""
            if block:
                yield block
        rest = stream.unused_data or bytes(next(source, b""))
        if not rest:
            return
    raise TooManyMembers("more frames than any packer writes")


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"The body is larger than {limit:,} bytes; nothing was kept, send smaller batches.")


def _too_many() -> Invalid:
    return Invalid(
        "The body is packed in more members than any packer writes; nothing was kept. Pack it as one.", code="BAD_JSON"
    )


def _damaged() -> Invalid:
    return Invalid("The body's compression is damaged; nothing was kept.", code="BAD_JSON")
