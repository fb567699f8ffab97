"""One fair, lasting draw: the same id always lands at the same place in [0, 1), and places under different names have
nothing to do with each other. Rollouts, holdouts and variants are all cut from it."""

from __future__ import annotations

from hashlib import blake2b

_SIZE = float(1 << 53)


def share(name: bytes, who: str) -> float:
    """Where `who` stands in the draw called `name`."""
    drawn = blake2b(who.encode("utf-8", "surrogatepass"), digest_size=8, key=name[:64]).digest()
    return (int.from_bytes(drawn, "big") >> 11) / _SIZE
