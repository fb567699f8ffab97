"""A client that retries, and batches what it sends again in another way each time; and what must come of it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from handbill.events.model import CapturedEvent, at_us
from handbill.events.model import Edge as SaidEdge
from handbill.people.gather import Gathered
from handbill.people.identity import fold
from handbill.people.model import EdgeKind, EdgeName

PLACES = 16_384
"""Positions in a request, in the formula of a sequence."""


def calls(seed: int, number: int = 80, people: int = 4, moments: int = 3) -> list[CapturedEvent]:
    """Calls of a program in the order in which it made them, many in one microsecond, under random ids."""
    chance = random.Random(seed)
    ids = [f"id{n}" for n in range(people)]
    times = sorted(chance.choices(range(1_000_000, 1_000_000 + moments), k=number))
    events = []
    for at in times:
        said = json.dumps({chance.choice(("plan", "city")): chance.randrange(5)}).encode()
        name, event_id = chance.choice(("look", "buy")), f"{chance.getrandbits(64):016x}"
        more: dict[str, Any] = chance.choice(
            (
                {"set": said}, {"set": said}, {"set_once": said},
                {"unset": json.dumps(list(json.loads(said))).encode()},
                {"edge": SaidEdge(chance.choice(list(EdgeKind)), chance.choice(ids))},
            )
        )  # fmt: skip
        event = CapturedEvent(0, event_id, at // 1000, at // 1000, name, chance.choice(ids), "own", micros=at % 1000)
        events.append(msgspec.structs.replace(event, **more))
    return events


def requests(seed: int, made: Sequence[CapturedEvent]) -> list[list[CapturedEvent]]:
    """What the network delivered, request by request: every event at least once, in the order of sending.

    A request may be lost, or arrive without its answer: then its events are sent again, in other batches.
    """
    chance = random.Random(seed)
    waiting, sent_at = list(made), 5_000
    delivered: list[list[CapturedEvent]] = []
    while waiting:
        size = chance.choice((1, 2, 5, 12))
        batch, sent_at = waiting[:size], sent_at + chance.choice((0, 1, 700))
        outcome = chance.choice(("answered", "answered", "lost", "unanswered"))
        if outcome != "lost":
            delivered.append(
                [msgspec.structs.replace(event, sequence=sent_at * PLACES + n) for n, event in enumerate(batch)]
            )
        if outcome == "answered":
            del waiting[:size]
    return delivered


def counted(delivered: Iterable[Sequence[CapturedEvent]]) -> list[CapturedEvent]:
    """Each event once, with the smallest sequence of its copies, in the one order."""
    smallest: dict[str, CapturedEvent] = {}
    for batch in delivered:
        for event in batch:
            known = smallest.get(event.id)
            if known is None or event.sequence < known.sequence:
                smallest[event.id] = event
    return sorted(smallest.values(), key=lambda event: (at_us(event), event.sequence, event.id))


def properties(events: Sequence[CapturedEvent], voided: Sequence[EdgeName] = ()) -> dict[str, dict[str, Any]]:
    """What every person is like, by the id that names it: a plain walk over events in the one order."""
    people = fold(Gathered(events).edges.values(), voided)
    latest: dict[tuple[str, str], tuple[int, Any]] = {}
    default: dict[tuple[str, str], tuple[int, Any]] = {}
    names = set()
    for place, event in enumerate(events):
        name = people.name_of(event.distinct_id)
        names.add(name)
        for key, value in json.loads(event.set or b"{}").items():
            latest[name, key] = (place, value)
        for key, value in json.loads(event.set_once or b"{}").items():
            default.setdefault((name, key), (place, value))
        for key in json.loads(event.unset or b"[]"):
            latest[name, key] = (place, None)
    found: dict[str, dict[str, Any]] = {name: {} for name in names}
    for name, key in latest.keys() | default.keys():
        at, value = latest.get((name, key), (-1, None))
        if value is None and default.get((name, key), (-1, None))[0] > at:
            value = default[name, key][1]
        if value is not None:
            found[name][key] = value
    return found
