"""Which trace the work under way belongs to: read from a caller's `traceparent`, written into log lines."""

from __future__ import annotations

from contextvars import ContextVar

import msgspec

TRACE_ID: ContextVar[str | None] = ContextVar("trace_id", default=None)
"""The trace that log lines of this task belong to."""

_DIGITS = frozenset(b"0123456789abcdef")
_LENGTH = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")


class TraceParent(msgspec.Struct, frozen=True):
    """The span of a caller under which ours belongs."""

    trace_id: str
    span_id: str
    is_sampled: bool


def read_traceparent(header: bytes | None) -> TraceParent | None:
    """The parent that a caller names by W3C's header; None where there is none or it is not well-formed, as the
    standard demands."""
    if header is None or len(header) < _LENGTH:
        return None
    version, trace_id, span_id, flags = header[:2], header[3:35], header[36:52], header[53:55]
    is_longer = len(header) > _LENGTH
    dashes = header[2:3] + header[35:36] + header[52:53] + (header[55:56] if is_longer else b"-")
    if dashes != b"----" or not _DIGITS.issuperset(version + trace_id + span_id + flags):
        return None
    if version == b"ff" or (version == b"00" and is_longer) or not trace_id.strip(b"0") or not span_id.strip(b"0"):
        return None
    return TraceParent(trace_id.decode(), span_id.decode(), bool(int(flags, 16) & 1))
