"""What a decision holds in its hands: a viewer's caps, opened for reading. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from handbill.caps.model import By, Change, Rule, Subject, Verdict
from handbill.caps.packed import Shelf
from handbill.caps.window import needs_history

_CAPS_BYTES = 600
_CHANGE_BYTES = 300


class Caps:
    """The values that bind one viewer: the user's, the device's, the session's, in the order of `By`.

    Not `sure`: PostgreSQL could not be asked, and views may be missing. `told` is what it said, where it was asked.
    `beside` are the values of other keys that came along in the same read; none when Redis did not answer.
    """

    __slots__ = ("beside", "shelves", "sure", "told")

    def __init__(self, shelves: tuple[Shelf, Shelf, Shelf], sure: bool, told: Mapping[Subject, list[Change]]) -> None:
        self.shelves = shelves
        self.sure = sure
        self.told = told
        self.beside: tuple[bytes | None, ...] = ()

    @property
    def size(self) -> int:
        """About how many bytes it holds in memory, for a cache that counts them."""
        size = _CAPS_BYTES
        for shelf in self.shelves:
            if shelf.value:
                size += shelf.size
        for value in self.beside:
            if value is not None:
                size += len(value)
        if self.told:
            size += _CHANGE_BYTES * sum(map(len, self.told.values()))
        return size

    def free(self, rules: Sequence[Rule], now_ms: int) -> bool:
        """The hot path: whether every window of every rule has room. A scope that is not there has no views."""
        shelves = self.shelves
        return all(shelves[rule.by].eligible(rule.scope, rule.limits, now_ms) for rule in rules)

    def unsure(self, rules: Sequence[Rule], now_ms: int) -> bool:
        """Whether a yes rests on views that the store may not know: ask for the caps `completed`, once."""
        if self.told:
            return False
        doubt = not self.sure or any(rule.limits.known_from_ms and needs_history(rule.limits, now_ms) for rule in rules)
        return doubt and self.free(rules, now_ms)

    def verdict(self, rules: Sequence[Rule], now_ms: int, *, strict: bool = False) -> Verdict:
        """All rules together: shown when each has room, otherwise from when on each will have (None: never again)."""
        found = [self.shelves[rule.by].verdict(rule.scope, rule.limits, now_ms, strict=strict) for rule in rules]
        closed = [each.next_eligible_at for each in found if not each.eligible]
        if not closed:
            return Verdict(eligible=True, next_eligible_at=now_ms, unsure=self.unsure(rules, now_ms))
        if None in closed:
            return Verdict(eligible=False, next_eligible_at=None)
        return Verdict(eligible=False, next_eligible_at=max(at for at in closed if at is not None))

    def seen(self, by: By, scope: int) -> int:
        """How many views are kept of a scope, for whoever ranks the least seen first."""
        return self.shelves[by].count(scope)

    @property
    def blank(self) -> bool:
        """Nobody has seen anything: every rule is free."""
        return not any(shelf.value for shelf in self.shelves)
