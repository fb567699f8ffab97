"""How changes are told to the scripts in `lua/`: one short argument per subject, whatever the number of changes."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from importlib.resources import files

from handbill.caps.model import EPOCH_MS, FOREVER_MS, Change, Window


def _source(name: str) -> str:
    return files("handbill.caps").joinpath(f"lua/{name}.lua").read_text("utf-8")


APPLY = _source("packed") + _source("apply")
LEASE = _source("packed") + _source("lease")


def argument(changes: Iterable[Change], now_ms: int, sweep_ms: int) -> bytes:
    """The argument that goes with a subject's key. Times outside the packed range are out of every window: left out."""
    parts = [_five(sweep_ms), _five(now_ms - EPOCH_MS)]
    for change in changes:
        at = change.at_ms - EPOCH_MS
        if 0 <= at <= FOREVER_MS:
            parts.append(struct.pack(">BIH", change.verb, change.scope, change.keep))
            parts.append(_five(change.horizon_ms))
            parts.append(_five(at))
            parts.append(struct.pack(">II", change.fingerprint, change.lease))
    return b"".join(parts)


def lease_argument(asked: Sequence[tuple[int, Sequence[Window]]], now_ms: int, until_ms: int, number: int) -> bytes:
    """The argument that asks for one slot in each scope of a subject."""
    parts = [_five(now_ms - EPOCH_MS), _five(until_ms - EPOCH_MS), struct.pack(">I", number)]
    for scope, windows in asked:
        parts.append(struct.pack(">IB", scope, len(windows)))
        for window in windows:
            parts.append(struct.pack(">H", window.x) + _five(window.y_ms))
    return b"".join(parts)


def _five(number: int) -> bytes:
    return number.to_bytes(5, "big")
