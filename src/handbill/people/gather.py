"""What one batch says about people: ids, edges, books and definitions, folded before anything is asked or written."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Self

from handbill.events.model import PERSONLESS, CapturedEvent, at_us
from handbill.kit.turns import Turns
from handbill.people.corrections import Corrections
from handbill.people.definitions import Observations
from handbill.people.model import Edge, EdgeKind, EdgeName, Order, illegal_side
from handbill.people.properties import Cell, merge, said

IDENTIFY = "$identify"
TURN_BYTES = 64 * 1024
"""JSON of events that is read before others have their turn: about 6 ms for the worst, 20 ms for the largest event."""
Owner = tuple[int, str]
"""A tenant's number and a distinct id."""


class Gathered:
    """Hot people are folded here: a thousand events of one person are one id, one book and a few edges.

    Of `lowered`, copies of events that were counted before, only the smaller sequences are taken.
    """

    def __init__(self, events: Iterable[CapturedEvent], lowered: Iterable[CapturedEvent] = ()) -> None:
        self.ids: dict[Owner, int] = {}
        """Ids that events carry, with their first sighting. Those that only an edge names are the folding's."""
        self.edges: dict[tuple[int, EdgeName], Edge] = {}
        self.books: dict[Owner, dict[str, Cell]] = {}
        self.seen = Observations()
        self.corrections: dict[Owner, Corrections] = {}
        self.corrected_edges: dict[tuple[int, EdgeName], list[Edge]] = {}
        """Edges of copies: which of them counts depends on what is stored."""
        for event in events:
            self._take(event)
        for event in lowered:
            self._take_lowered(event)

    def _take(self, event: CapturedEvent) -> None:
        if PERSONLESS in event.marks:
            self.seen.event(event.tenant, event.name, event.at, event.received, event.properties)
            return
        owner, at = (event.tenant, event.distinct_id), at_us(event)
        self._id(owner, at)
        edge = _edge(event, at)
        if edge is not None:
            known = self.edges.get((event.tenant, edge.name))
            if known is None or edge.order < known.order:
                self.edges[event.tenant, edge.name] = edge
        self.seen.event(event.tenant, event.name, event.at, event.received, event.properties)
        if event.set is None and event.set_once is None and event.unset is None:
            return
        self.seen.person(event.tenant, event.at, event.received, event.set)
        self.seen.person(event.tenant, event.at, event.received, event.set_once)
        book = said(Order(at, event.sequence, event.id), event.set, event.set_once, event.unset)
        if book:
            self.books[owner] = merge((self.books[owner], book)) if owner in self.books else book

    def _take_lowered(self, event: CapturedEvent) -> None:
        if PERSONLESS in event.marks:
            return
        owner, at = (event.tenant, event.distinct_id), at_us(event)
        self.corrections.setdefault(owner, Corrections()).add(Order(at, event.sequence, event.id), event.set_once)
        edge = _edge(event, at)
        if edge is not None:
            self.corrected_edges.setdefault((event.tenant, edge.name), []).append(edge)

    @classmethod
    async def in_turns(cls, events: Iterable[CapturedEvent], lowered: Iterable[CapturedEvent] = ()) -> Self:
        """The same as of all events at once. Others have their turn on the loop: a large batch takes seconds."""
        gathered, turns = cls(()), Turns(size=TURN_BYTES)
        for event in events:
            gathered._take(event)
            await turns.count(_json_bytes(event))
        for event in lowered:
            gathered._take_lowered(event)
            await turns.count(_json_bytes(event))
        return gathered

    def _id(self, owner: Owner, at: int) -> None:
        known = self.ids.get(owner)
        if known is None or at < known:
            self.ids[owner] = at


def _json_bytes(event: CapturedEvent) -> int:
    return sum(len(each) for each in (event.properties, event.set, event.set_once, event.unset) if each is not None)


def edge_key(name: EdgeName) -> bytes:
    """An edge's name in 16 bytes: two ids as text do not fit an index."""
    return blake2b("\0".join(name).encode(), digest_size=16).digest()


def _edge(event: CapturedEvent, at: int) -> Edge | None:
    if event.edge is not None:
        kind, source = event.edge.kind, event.edge.other
    elif event.name == IDENTIFY:
        kind, source = EdgeKind.IDENTIFY, event.distinct_id
    else:
        return None
    if illegal_side(source) or illegal_side(event.distinct_id):
        return None
    return Edge(kind, source, event.distinct_id, at, event.sequence, event.id)
