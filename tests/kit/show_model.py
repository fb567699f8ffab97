"""Frequency capping as a child would write it: the reference that the product is held against.

`allowed` is the whole of the rolling window. `Model` adds the book-keeping of a test: who saw what, which limits stand,
which slots are held. It sees requests and replies only, never an engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

Windows = Sequence[tuple[int, int]]


def allowed(times: Iterable[int], windows: Windows, now: int) -> bool:
    """In every window of y milliseconds, fewer than x views are younger than y."""
    seen = list(times)
    return all(sum(now - time < y for time in seen) < x for x, y in windows)


class Who(NamedTuple):
    user: str
    device: str | None = None
    session: str | None = None

    def counted_as(self, by: str) -> tuple[str, ...] | None:
        """Whose count a limit looks at; None: it does not bind."""
        if by == "session":
            return ("session", self.user, self.session) if self.session else None
        if by == "device":
            return ("device", self.device) if self.device else ("alone", self.user)
        return ("user", self.user)


class Saw(NamedTuple):
    who: Who
    at: int
    scopes: tuple[str, ...]


class Model:
    def __init__(self) -> None:
        self.limits: dict[str, dict[str, list[tuple[int, int]]]] = {}  # scope -> by -> windows
        self.saw: dict[str, Saw] = {}  # by event id: a copy changes nothing
        self.held: dict[tuple[str, tuple[str, ...]], dict[str, int]] = {}  # (scope, whose) -> lease -> its end

    def may_see(self, who: Who, scopes: Sequence[str], now: int, *, strict: bool = False) -> bool:
        for scope in scopes:
            for by, windows in self.limits.get(scope, {}).items():
                whose = who.counted_as(by)
                if whose is None:
                    continue
                times = [saw.at for saw in self.saw.values() if scope in saw.scopes and saw.who.counted_as(by) == whose]
                if strict:
                    times += [now for end in self.held.get((scope, whose), {}).values() if end > now]
                if not allowed(times, windows, now):
                    return False
        return True

    def _slots(self, who: Who, scopes: Sequence[str]) -> list[tuple[str, tuple[str, ...]]]:
        found = [(scope, who.counted_as(by)) for scope in scopes for by in self.limits.get(scope, {})]
        return [(scope, whose) for scope, whose in found if whose is not None]

    def hold(self, who: Who, scopes: Sequence[str], lease: str, end: int) -> None:
        for slot in self._slots(who, scopes):
            self.held.setdefault(slot, {})[lease] = end

    def give_back(self, who: Who, scopes: Sequence[str], lease: str | None, now: int) -> None:
        """By its name, or the live one that ends first."""
        for slot in self._slots(who, scopes):
            live = {name: end for name, end in self.held.get(slot, {}).items() if end > now}
            name = lease if lease is not None else min(live, key=lambda each: live[each], default="")
            live.pop(name, None)
            self.held[slot] = live
