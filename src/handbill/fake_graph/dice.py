"""Bad luck on a seed: what happens to a message depends on the seed, the message and how often it was tried."""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

from handbill.fake_graph.model import Faults

_ROLLS = Struct("<8I")
_RANGE = 2.0**32

LATENCY, ANSWER, CODE, LATE, MISSING, UNREAD = range(6)


class Dice:
    def __init__(self, seed: int) -> None:
        self._start = blake2b(f"{seed}|".encode(), digest_size=32)
        self._tries: dict[tuple[str, str], int] = {}

    def throw(self, *parts: str) -> tuple[float, ...]:
        """Eight numbers in [0, 1), always the same for the same words."""
        digest = self._start.copy()
        digest.update("|".join(parts).encode("utf-8", "replace"))
        return tuple(roll / _RANGE for roll in _ROLLS.unpack(digest.digest()))

    def for_message(self, to: str, opaque: str) -> tuple[float, ...]:
        """A second try of the same message has luck of its own."""
        key = (to, opaque)
        tries = self._tries.get(key, 0)
        self._tries[key] = tries + 1
        return self.throw("send", to, opaque, str(tries))


def answer_fault(faults: Faults, roll: float) -> str | None:
    """At most one fault per request; the rates stand side by side on one line from 0 to 1."""
    for name in ("lost_answer", "dropped", "bare_5xx", "bare_5xx_taken", "graph_5xx", "throttled"):
        rate = getattr(faults, name)
        if roll < rate:
            return name
        roll -= rate
    return None


def picked_code(rates: dict[str, float], roll: float) -> int | None:
    for code, rate in rates.items():
        if roll < rate:
            return int(code)
        roll -= rate
    return None
