"""The real limits, counted plainly: lists of times and of people. Nothing is shared with the product's limiter."""

from __future__ import annotations

from collections import OrderedDict, deque

DAY_MS = 86_400_000


class Throughput:
    """At most so many messages of one number in any second."""

    def __init__(self, per_second: int) -> None:
        self.per_second = per_second
        self._times: deque[int] = deque()

    def full(self, now_ms: int) -> bool:
        times = self._times
        while times and times[0] <= now_ms - 1000:
            times.popleft()
        return len(times) >= self.per_second

    def count(self, now_ms: int) -> None:
        self._times.append(now_ms)


class Pairs:
    """One message per interval to one person, `burst` of them borrowed from the future: a debt that time pays off."""

    def __init__(self, interval_ms: int, burst: int) -> None:
        self._interval = interval_ms
        self._most = interval_ms * burst
        self._debts: dict[tuple[str, str], tuple[int, int]] = {}
        self._sweep_at = 200_000

    def full(self, pair: tuple[str, str], now_ms: int) -> bool:
        return self._debt(pair, now_ms) + self._interval > self._most

    def count(self, pair: tuple[str, str], now_ms: int) -> None:
        self._debts[pair] = (now_ms, self._debt(pair, now_ms) + self._interval)
        if len(self._debts) > self._sweep_at:  # who owes nothing is forgotten
            self._debts = {one: kept for one, kept in self._debts.items() if self._debt(one, now_ms) > 0}
            self._sweep_at = 2 * len(self._debts) + 200_000

    def _debt(self, pair: tuple[str, str], now_ms: int) -> int:
        kept = self._debts.get(pair)
        return 0 if kept is None else max(kept[1] - (now_ms - kept[0]), 0)


class Portfolio:
    """How many different people were written to first within the last 24 hours."""

    def __init__(self, tier: int | None) -> None:
        self.tier = tier
        self._people: OrderedDict[str, int] = OrderedDict()

    def full(self, address: str, now_ms: int) -> bool:
        people = self._people
        while people:
            first = next(iter(people))
            if people[first] > now_ms - DAY_MS:
                break
            del people[first]
        return self.tier is not None and address not in people and len(people) >= self.tier

    def count(self, address: str, now_ms: int) -> None:
        self._people[address] = now_ms
        self._people.move_to_end(address)
