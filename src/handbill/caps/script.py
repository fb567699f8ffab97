"""How changes are told to `lua/apply.lua`: one short argument per subject, whatever the number of changes."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from importlib.resources import files

from handbill.caps.model import EPOCH_MS, FOREVER_MS, Change

SOURCE = files("handbill.caps").joinpath("lua/apply.lua").read_text("utf-8")


def argument(changes: Iterable[Change], now_ms: int, sweep_ms: int) -> bytes:
    """The argument that goes with a subject's key. Times outside the packed range are out of every window: left out."""
    parts = [_five(sweep_ms), _five(now_ms - EPOCH_MS)]
    for change in changes:
        at = change.at_ms - EPOCH_MS
        if 0 <= at <= FOREVER_MS:
            parts.append(struct.pack(">BIH", change.verb, change.scope, change.keep))
            parts.append(_five(change.horizon_ms))
            parts.append(_five(at))
            parts.append(change.fingerprint.to_bytes(4, "big"))
    return b"".join(parts)


def _five(number: int) -> bytes:
    return number.to_bytes(5, "big")
