"""The two times between which something is shown, under either pair of names; a fault has the name that was sent."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from handbill.kit.errors import Fault
from handbill.kit.moments import moment_faults

When = Annotated[datetime, Meta(tz=True)]
_START, _END = ("publish_at", "start_date"), ("expires_at", "end_date")


def window_faults(
    start: datetime | None, end: datetime | None, names: tuple[str, str], *, sent: tuple[bool, bool] = (True, True)
) -> list[Fault]:
    """`sent`: which of the two the caller sent. The other one is as it was, and not at fault."""
    faults = moment_faults(names[0], start) + moment_faults(names[1], end)
    if faults or start is None or end is None or start < end:
        return faults
    if sent[1] or not sent[0]:
        return [Fault(names[1], f"must be later than {names[0]}")]
    return [Fault(names[0], f"must be earlier than {names[1]}")]


class SentWindow(msgspec.Struct, frozen=True):
    """What a caller sent of a banner's window. UNSET: nothing. `doubled`: names whose times contradict each other."""

    start: datetime | UnsetType | None
    end: datetime | UnsetType | None
    names: tuple[str, str]
    doubled: list[Fault]

    def faults(self, start: datetime | None, end: datetime | None) -> list[Fault]:
        """Of the window as it would be."""
        if self.doubled:
            return self.doubled
        return window_faults(start, end, self.names, sent=(self.start is not UNSET, self.end is not UNSET))


def window_in(sent: Mapping[str, datetime | None]) -> SentWindow:
    """The window by either pair of names; both names with different times is a fault, not a guess."""
    start, end = ([name for name in pair if name in sent] for pair in (_START, _END))
    doubled = [
        Fault(names[1], f"is the same time as {names[0]}: send one of them, or both alike")
        for names in (start, end)
        if len(names) == 2 and sent[names[0]] != sent[names[1]]
    ]
    pair = 1 if [*start, *end] in (["start_date"], ["end_date"]) else 0  # what was not sent is called alike
    return SentWindow(
        sent[start[0]] if start else UNSET,
        sent[end[0]] if end else UNSET,
        (start[0] if start else _START[pair], end[0] if end else _END[pair]),
        doubled,
    )


def faults_in_json(body: Mapping[str, Any]) -> list[Fault]:
    """The faults of the window in a body of which other fields may be at fault, too."""
    sent: dict[str, datetime | None] = {}
    for name in (*_START, *_END):
        if body.get(name) is None:
            continue
        try:
            sent[name] = msgspec.convert(body[name], When)
        except msgspec.ValidationError:
            continue  # it has a fault of its own
    window = window_in(sent)
    return window.faults(window.start or None, window.end or None)
