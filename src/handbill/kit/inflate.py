"""Gzip and zlib streams read in bounded steps: no copy of what is left, no member for free, no output without a limit.

`zlib` hands back everything behind a member as `unused_data`. With the whole body as its input that is a copy of the
rest for each member, and a body of empty members takes time with the square of its size. Here the input comes in steps,
so a member costs at most a copy of one step.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterable, Iterator

from handbill.kit.bounds import GZIP_MEMBER_BYTES, GZIP_MEMBERS

GZIP_MAGIC = b"\x1f\x8b"
STEP_BYTES = 16 * 1024
"""Input that is given to `zlib` at a time: what one member may cost in copies."""
OUTPUT_BYTES = 64 * 1024
"""Output that is made at a time: what a caller holds before it can refuse the rest."""
GZIP, ZLIB, RAW = 31, 15, -15
"""`wbits` of the three wrappings that `zlib` reads."""


class Damaged(Exception):
    """The stream is cut short, or is not what it claims to be."""


class TooManyMembers(Exception):
    """More gzip members than any program that packs data would write."""


def steps(body: bytes) -> Iterator[memoryview]:
    """The body as input for `inflate`, without a copy."""
    view = memoryview(body)
    return (view[start : start + STEP_BYTES] for start in range(0, len(view), STEP_BYTES))


def inflate(packed: Iterable[bytes | memoryview], wbits: int = GZIP) -> Generator[bytes, None, bytes]:
    """The unpacked bytes, at most OUTPUT_BYTES at a time; returns the first bytes behind the last member.

    Gzip may have several members, and zeros behind the last. Raises Damaged or TooManyMembers.
    """
    source = iter(packed)
    rest: bytes | memoryview = b""
    members = made = 0
    while True:
        members += 1
        if members > GZIP_MEMBERS + made // GZIP_MEMBER_BYTES:
            raise TooManyMembers("more members than any packer writes")
        stream = zlib.decompressobj(wbits)
        is_full = False  # more output may wait inside the stream, though its input is used up
        while not stream.eof:
            if not rest and not is_full:
                rest = next(source, b"")
                if not rest:
                    raise Damaged("the stream is cut short")
            block, rest = _step(stream, rest)
            is_full = len(block) == OUTPUT_BYTES
            made += len(block)
            if block:
                yield block
        rest = stream.unused_data
        if wbits != GZIP:
            return rest
        rest = _behind_member(rest, source)
        if rest[:2] != GZIP_MAGIC:
            return rest


def _step(stream: zlib._Decompress, rest: bytes | memoryview) -> tuple[bytes, bytes]:
    try:
        return stream.decompress(rest, OUTPUT_BYTES), stream.unconsumed_tail
    except zlib.error:
        raise Damaged("the stream is damaged") from None


def _behind_member(rest: bytes, source: Iterator[bytes | memoryview]) -> bytes:
    """The bytes behind a member, zeros passed over, at least two of them if there are as many."""
    rest = rest.lstrip(b"\0")
    while len(rest) < 2 and (more := next(source, None)) is not None:
        rest = (rest + bytes(more)).lstrip(b"\0")
    return rest
