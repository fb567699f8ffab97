"""Numbers that look like chance and are not: the same seller, entity and day draw the same ones for ever.

The seed is the first eight hexadecimal digits of SHA-256("seller:entity:YYYY-MM-DD") as a whole number below 2^32;
each draw is the next number of mulberry32, also below 2^32. No float takes part, so every machine agrees.
"""

from __future__ import annotations

import hashlib
from datetime import date

WORD = 0xFFFF_FFFF
FULL = 1 << 32


def seed(seller: str, entity: str, day: date) -> int:
    return int(hashlib.sha256(f"{seller}:{entity}:{day.isoformat()}".encode()).hexdigest()[:8], 16)


class Draws:
    """mulberry32. `next()` gives a whole number below 2^32; divide by 2^32 for a part of one."""

    __slots__ = ("_state",)

    def __init__(self, start: int) -> None:
        self._state = start & WORD

    def next(self) -> int:
        self._state = (self._state + 0x6D2B_79F5) & WORD
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 15)) * (mixed | 1)) & WORD
        mixed ^= (mixed + ((mixed ^ (mixed >> 7)) * (mixed | 61) & WORD)) & WORD
        return (mixed ^ (mixed >> 14)) & WORD
