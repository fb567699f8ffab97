"""Lanes by name and number, which one an event takes, and which of two cursors is further on."""

from __future__ import annotations

from zlib import crc32

import msgspec

from handbill.kit.errors import Broken

FIRST_OVERFLOW = 100
"""Numbers of overflow lanes start here, so that main lanes may be added without moving them."""


_NAMES = tuple(map(str, range(FIRST_OVERFLOW)))


class Lanes(msgspec.Struct, frozen=True):
    """`main` lanes carry everybody; noisy tenants are sent to one of the `overflow` lanes."""

    main: int = 4
    overflow: int = 2

    def __post_init__(self) -> None:
        if not 1 <= self.main <= FIRST_OVERFLOW or not 1 <= self.overflow <= FIRST_OVERFLOW:
            raise Broken(f"There must be 1 to {FIRST_OVERFLOW} main lanes and as many overflow lanes.", code="LANES")

    def all(self) -> list[tuple[str, int]]:
        main = [(str(number), number) for number in range(self.main)]
        return main + [(f"o{number}", FIRST_OVERFLOW + number) for number in range(self.overflow)]

    def is_overflow(self, lane: str) -> bool:
        return lane.startswith("o")

    def lane_for(self, tenant_id: int, sender: str) -> str:
        """The same sender always takes the same lane, in every process and release."""
        return _NAMES[_place(f"{tenant_id}\0{sender}") % self.main]

    def overflow_for(self, tenant_id: int) -> str:
        """All of one tenant in one overflow lane: two noisy tenants seldom meet."""
        return f"o{_place(str(tenant_id)) % self.overflow}"


def _place(text: str) -> int:
    # The low bits of a CRC follow those of its input; a multiplication spreads them (Knuth's constant).
    return (crc32(text.encode("utf-8", "surrogatepass")) * 2654435761 & 0xFFFFFFFF) >> 7


def position(cursor: str) -> tuple[int, int]:
    """A cursor as numbers. Any text that is no cursor is a fault of ours, not of a reader's input."""
    milliseconds, _, sequence = cursor.partition("-")
    try:
        return int(milliseconds or 0), int(sequence or 0)
    except ValueError:
        raise Broken(f"{cursor!r} is no cursor of the journal.", code="BAD_JOURNAL_CURSOR") from None


def later(one: str, other: str) -> bool:
    """Does `one` stand behind `other`?"""
    return position(one) > position(other)
