"""All capped times of one subject in one value, in one form only: the same views give the same bytes in any order.

    value  = version (1 byte)  scope*                      scopes ascending, none empty
    scope  = scope id (4)  count (1 or 2)  time*           newest first, then larger fingerprint first
    count  = bit 7: kept for ever; bit 6: two bytes; the rest: how many
    time   = milliseconds since EPOCH_MS << 1 | state (5)  fingerprint (4)

A scope id with its highest bit set holds leases: the time is when the lease ends, the fingerprint its number.
Everything is big-endian. The scripts in `lua/` read and write the same form inside Redis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from handbill.caps.model import EPOCH_MS, LEASED, Limits, Seen, State, Verdict
from handbill.caps.window import verdict

VERSION = 1
RECORD = 9
_ENDLESS, _WIDE = 0x80, 0x40
_SCOPE_BYTES = 250
"""What one scope takes in memory beside its packed bytes: a place in a dict, a tuple and its numbers."""


class Malformed(ValueError):
    """The bytes are no packed value; whoever reads them treats the subject as unknown."""


class Kept(msgspec.Struct, frozen=True):
    """The times of one scope, newest first. `endless` scopes have a lifetime limit and are never swept away."""

    times: tuple[Seen, ...]
    endless: bool = False


def order(times: Iterable[Seen]) -> tuple[Seen, ...]:
    return tuple(sorted(times, key=lambda seen: (seen.at_ms, seen.fingerprint), reverse=True))


def pack(scopes: Mapping[int, Kept]) -> bytes:
    """The value for these scopes; empty bytes when there is nothing to keep."""
    out = bytearray()
    for scope in sorted(scopes):
        kept = scopes[scope]
        count = len(kept.times)
        if not count:
            continue
        out += scope.to_bytes(4, "big")
        flag = _ENDLESS if kept.endless else 0
        if count < _WIDE:
            out.append(flag | count)
        else:
            out += bytes((flag | _WIDE | count >> 8, count & 0xFF))
        for seen in order(kept.times):
            out += (seen.at_ms - EPOCH_MS << 1 | seen.state).to_bytes(5, "big")
            out += seen.fingerprint.to_bytes(4, "big")
    return bytes((VERSION,)) + bytes(out) if out else b""


def unpack(value: bytes) -> dict[int, Kept]:
    shelf = Shelf(value)
    return {scope: Kept(shelf.seen(scope), shelf.endless(scope)) for scope in shelf.scopes()}


class Shelf:
    """A packed value, opened for reading: finds each scope once and decodes only the times a decision needs."""

    __slots__ = ("_at", "value")

    def __init__(self, value: bytes) -> None:
        self.value = value
        self._at: dict[int, tuple[int, int, bool]] = {}
        size = len(value)
        if not size:
            return
        if value[0] != VERSION:
            raise Malformed(f"version {value[0]} of a packed cap value is not known here")
        here = 1
        while here < size:
            if here + 5 > size:
                raise Malformed("a packed cap value ends inside a scope")
            count = value[here + 4]
            start = here + 5
            endless = count >= _ENDLESS
            count &= 0x7F
            if count >= _WIDE:
                if start >= size:
                    raise Malformed("a packed cap value ends inside a count")
                count = (count & 0x3F) << 8 | value[start]
                start += 1
            scope = int.from_bytes(value[here : here + 4], "big")
            here = start + count * RECORD
            if here > size:
                raise Malformed("a packed cap value ends inside its times")
            self._at[scope] = (start, count, endless)

    def __contains__(self, scope: int) -> bool:
        return scope in self._at

    @property
    def size(self) -> int:
        """About how many bytes it holds in memory."""
        return len(self.value) + _SCOPE_BYTES * len(self._at)

    def scopes(self) -> list[int]:
        return list(self._at)

    def endless(self, scope: int) -> bool:
        found = self._at.get(scope)
        return found is not None and found[2]

    def seen(self, scope: int) -> tuple[Seen, ...]:
        start, count, _ = self._at.get(scope, (0, 0, False))
        return tuple(self._record(start + n * RECORD) for n in range(count))

    def times(self, scope: int) -> list[int]:
        """Every kept time of the scope, newest first."""
        start, count, _ = self._at.get(scope, (0, 0, False))
        return [self._time(start + n * RECORD) for n in range(count)]

    def eligible(self, scope: int, limits: Limits, now_ms: int) -> bool:
        """The hot path: one look at the x-th newest time per window, nothing else is decoded."""
        found = self._at.get(scope)
        if found is None:
            return True
        start, count, _ = found
        for window in limits.windows:
            if count >= window.x and now_ms - self._time(start + (window.x - 1) * RECORD) < window.y_ms:
                return False
        return True

    def count(self, scope: int) -> int:
        """How many times are kept: up to x of the widest window, and whatever is not committed yet."""
        found = self._at.get(scope)
        return found[1] if found is not None else 0

    def leases(self, scope: int, now_ms: int) -> list[int]:
        """When the leases of a scope end, those that have not ended yet."""
        return [ends for ends in self.times(scope | LEASED) if ends > now_ms]

    def verdict(self, scope: int, limits: Limits, now_ms: int, *, strict: bool = False) -> Verdict:
        """With `strict`, slots that other decisions hold count like views."""
        return verdict(self.times(scope), limits, now_ms, self.leases(scope, now_ms) if strict else ())

    def _time(self, at: int) -> int:
        return EPOCH_MS + (int.from_bytes(self.value[at : at + 5], "big") >> 1)

    def _record(self, at: int) -> Seen:
        fingerprint = int.from_bytes(self.value[at + 5 : at + RECORD], "big")
        return Seen(self._time(at), fingerprint, State(self.value[at + 4] & 1))


EMPTY = Shelf(b"")
