"""The status of one sent message, from whatever webhooks came, in whatever order, however often.

    accepted < sent < failed < delivered < read

A status never moves down. `failed` outweighs `sent`, and is outweighed by proof that it arrived after all. Since the
greatest of a set does not depend on the order in which it is looked at, permuted and repeated webhooks end the same.
"""

from __future__ import annotations

from enum import IntEnum
from functools import reduce

import msgspec


class Status(IntEnum):
    ACCEPTED = 1
    SENT = 2
    FAILED = 3
    DELIVERED = 4
    READ = 5

    @property
    def word(self) -> str:
        return self.name.lower()


WORDS = {status.word: status for status in Status} | {"played": Status.READ}
"""The provider's words; a voice message that was played was certainly read."""


class Mark(msgspec.Struct, frozen=True, order=True):
    """When a status was first seen, and the error that came with it. Ordered, so that the first is well defined."""

    at_ms: int
    code: int = 0
    details: str = ""


class Standing(msgspec.Struct, frozen=True):
    """Everything known about one sent message: the first mark of every status that was ever reported."""

    marks: tuple[tuple[Status, Mark], ...] = ()

    @property
    def status(self) -> Status | None:
        return self.marks[-1][0] if self.marks else None

    @property
    def error(self) -> Mark | None:
        """Why it failed, if failing is what it ended with."""
        last = self.marks[-1] if self.marks else None
        return last[1] if last and last[0] is Status.FAILED else None

    def at_ms(self, status: Status) -> int | None:
        """When this status was reached. A `read` proves a delivery whose own report never came."""
        times = [mark.at_ms for known, mark in self.marks if known is status or status in _IMPLIED[known]]
        return min(times) if times else None


_IMPLIED: dict[Status, tuple[Status, ...]] = {
    Status.ACCEPTED: (),
    Status.SENT: (Status.ACCEPTED,),
    Status.FAILED: (Status.ACCEPTED,),
    Status.DELIVERED: (Status.ACCEPTED, Status.SENT),
    Status.READ: (Status.ACCEPTED, Status.SENT, Status.DELIVERED),
}
NOTHING = Standing()


def of(status: Status, mark: Mark) -> Standing:
    return Standing(((status, mark),))


def join(one: Standing, other: Standing) -> Standing:
    """Both together. Commutative, associative and idempotent: tests hold it to that."""
    marks = dict(one.marks)
    for status, mark in other.marks:
        known = marks.get(status)
        marks[status] = mark if known is None else min(known, mark)
    return Standing(tuple(sorted(marks.items())))


def fold(*standings: Standing) -> Standing:
    return reduce(join, standings, NOTHING)
