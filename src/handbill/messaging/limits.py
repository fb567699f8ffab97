"""How fast a number may go, how often a pair may talk, how far a portfolio reaches: the rules, without their place.

The first two are the same rule (GCRA): each message moves a theoretical arrival time by one interval, and a message is
admitted while that time is at most `burst - 1` intervals ahead of now. One integer is the whole state, so a script in
Redis and a column in PostgreSQL can hold it alike. All times are whole microseconds: no float, no drift.

    any window of w microseconds admits at most  burst + floor(w / interval)  messages
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

SECOND_US = 1_000_000
DAY_MS = 86_400_000
GRACE_MS = 60_000
"""The provider's clock is not ours, and a message is under way for a while: a minute is kept clear at every edge."""
COUNTED_MS = DAY_MS + GRACE_MS
"""For how long one person takes one place in the tier, as we count."""
OPEN_MS = DAY_MS - GRACE_MS
"""For how long after a person's own message free text may be sent, as we count."""


class Pace(msgspec.Struct, frozen=True):
    """One message per `interval_us`, and `burst` of them at once after a rest."""

    interval_us: int
    burst: int = 1

    def most_within(self, window_us: int) -> int:
        """The most that any window of this length, both ends included, can hold."""
        return self.burst + window_us // self.interval_us


class Turn(msgspec.Struct, frozen=True):
    """Whether the message may go now; if not, when to ask again. `tat_us` is what to keep either way."""

    admitted: bool
    tat_us: int
    wait_us: int = 0


PAIR = Pace(interval_us=6 * SECOND_US, burst=45)
"""The provider's rule: one message in six seconds from one number to one person, with 45 borrowed from the future."""
PAIR_KEPT = Pace(interval_us=6 * SECOND_US, burst=44)
"""What we keep: one in reserve, so that two messages may arrive up to six seconds closer than they were sent."""


def take(tat_us: int, now_us: int, pace: Pace) -> Turn:
    """Ask for one message. `tat_us` is 0 for somebody new."""
    earliest = tat_us - (pace.burst - 1) * pace.interval_us
    if now_us < earliest:
        return Turn(admitted=False, tat_us=tat_us, wait_us=earliest - now_us)
    return Turn(admitted=True, tat_us=max(tat_us, now_us) + pace.interval_us)


def give_back(tat_us: int, pace: Pace) -> int:
    """A token that was taken and not used: nothing was written. Never gives more than was taken."""
    return max(tat_us - pace.interval_us, 0)


def number_pace(per_second: int, *, burst: int = 4, jitter_ms: int = 50) -> Pace:
    """The pace that keeps a number within `per_second` in every second as the provider sees it.

    What we space evenly arrives unevenly: messages of one second and a little more may land inside one second. So a
    burst and the messages of `jitter_ms` are taken off the top; the rest is spread evenly, rounded to the slower side.
    """
    burst = max(1, min(burst, per_second // 4))
    window_us = SECOND_US + jitter_ms * 1000
    even = max(per_second - burst, 1)
    return Pace(interval_us=window_us // even + 1, burst=burst)


TIERS: dict[str, int | None] = {
    "TIER_50": 50,
    "TIER_250": 250,
    "TIER_1K": 1_000,
    "TIER_2K": 2_000,
    "TIER_10K": 10_000,
    "TIER_100K": 100_000,
    "TIER_UNLIMITED": None,
}
"""The provider's words for how many different people a portfolio may write to first within 24 hours."""

THROUGHPUT: dict[str, int] = {"STANDARD": 80, "HIGH": 1_000, "COEXISTENCE": 20}
"""The provider's words for a number's messages a second; anything unknown is taken for STANDARD."""


class Reach(msgspec.Struct, frozen=True):
    """The tier's answer for one person. `free_at_ms`: when a place becomes free, if none is."""

    admitted: bool
    new: bool
    """Whether this person takes a place that nobody held for them yet."""
    free_at_ms: int | None = None


def reach(tier: int | None, last_ms: int | None, counted: int, oldest_ms: int | None, now_ms: int) -> Reach:
    """Whether a first word to one person fits the tier. `last_ms`: when the portfolio last opened a conversation with
    this person; `counted` and `oldest_ms`: the different people of the last 24 hours, and the one whose last opening
    is longest ago. A person counts from the last opening for COUNTED_MS. Answers to somebody who wrote within the
    service window are not asked about here: they cost no place."""
    known = last_ms is not None and now_ms - last_ms < COUNTED_MS
    if known or tier is None or counted < tier:
        return Reach(admitted=True, new=not known)
    return Reach(admitted=False, new=True, free_at_ms=None if oldest_ms is None else oldest_ms + COUNTED_MS)


def window_open(inbound_ms: int | None, now_ms: int) -> bool:
    """Whether free text may be sent: the person wrote to us within the last 24 hours, less a minute."""
    return inbound_ms is not None and now_ms - inbound_ms < OPEN_MS


def still_counted(last: Iterable[int], now_ms: int) -> int:
    """How many of these last openings count now; what a store's statement must agree with."""
    return sum(1 for at in last if now_ms - at < COUNTED_MS)
