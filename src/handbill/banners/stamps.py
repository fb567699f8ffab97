"""Times as JSON writes them, at a fraction of the cost of formatting each anew."""

from __future__ import annotations

from handbill.kit.clock import from_ms


class Stamps:
    """2026-11-16T14:40:00.123Z: the part up to the second is written once a second."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[int, bytes] = {}

    def written(self, ms: int) -> bytes:
        second, rest = divmod(ms, 1000)
        head = self._known.get(second)
        if head is None:
            if len(self._known) > 100:
                self._known.clear()
            head = self._known[second] = from_ms(second * 1000).strftime("%Y-%m-%dT%H:%M:%S.").encode()
        return b"%s%03dZ" % (head, rest)
