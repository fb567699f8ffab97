"""The words of this room: distinct ids, the edges between them, and the person an id belongs to.

Everything here is ordered by (event time in microseconds, sequence, event id). Arrival decides nothing.
"""

from __future__ import annotations

import uuid
from datetime import datetime
from enum import StrEnum
from hashlib import sha1
from typing import Any, NamedTuple

import msgspec

from handbill.events.model import EdgeKind
from handbill.kit.distinct import illegal, illegal_side
from handbill.kit.read_waits import Completeness

__all__ = [
    "KIND_DOCS", "MAX_IDS", "NAMESPACE", "OUTCOME_DOCS", "Definition", "Edge", "EdgeKind", "EdgeName", "EdgeView",
    "IdView", "Names", "Notice", "Order", "Outcome", "PersonPage", "PersonView", "WarningView", "illegal",
    "illegal_side", "person_id",
]  # fmt: skip

NAMESPACE = uuid.UUID("030f6c0e-e01f-4ff8-8225-11a73c1b61c4")
"""Chosen once. Person ids everywhere derive from it, also in event stores that we cannot rewrite: never change it."""
_NAMESPACE = NAMESPACE.bytes
MAX_IDS = 1_000
"""More ids than this are never one person: a shared device, a test account or a client that lost its mind."""


class Order(NamedTuple):
    """Where an event stands among all others: the one order in which everything is folded.

    `at` is in microseconds. `sequence` orders events of one time: by when their request was sent, then by the position
    in it. Of an event's copies the smallest sequence counts.
    """

    at: int
    sequence: int
    event: str


KIND_DOCS: dict[EdgeKind, str] = {
    EdgeKind.IDENTIFY: "The source said that it is the target. Refused when the source is somebody already.",
    EdgeKind.ALIAS: "Two ids of one person. Refused when each of them is somebody already.",
    EdgeKind.MERGE: "Somebody decided that both are one person: only the number of ids can refuse it.",
}


class EdgeName(NamedTuple):
    """What an edge says. Saying it again is the same edge, seen again; its first sighting gives it its order."""

    kind: EdgeKind
    source: str
    target: str


class Edge(msgspec.Struct, frozen=True):
    """One event's word that `source` and `target` are one person. With both the same it says: this id is somebody."""

    kind: EdgeKind
    source: str
    target: str
    at: int
    sequence: int
    event: str

    @property
    def name(self) -> EdgeName:
        return EdgeName(self.kind, self.source, self.target)

    @property
    def order(self) -> Order:
        return Order(self.at, self.sequence, self.event)

    @property
    def sort_key(self) -> tuple[Order, EdgeName]:
        """The order made total: one event id may have been used twice."""
        return self.order, self.name


class Outcome(StrEnum):
    """What became of an edge in the fold."""

    JOINED = "joined"
    TOGETHER = "together"
    MARKED = "marked"
    REFUSED_IDENTIFIED = "refused_identified"
    REFUSED_TOO_MANY = "refused_too_many"
    VOIDED = "voided"

    @property
    def refused(self) -> bool:
        return self in (Outcome.REFUSED_IDENTIFIED, Outcome.REFUSED_TOO_MANY)


OUTCOME_DOCS: dict[Outcome, str] = {
    Outcome.JOINED: "It made one person of two.",
    Outcome.TOGETHER: "Both ids were one person already.",
    Outcome.MARKED: "It names one id only: that id is somebody from then on.",
    Outcome.REFUSED_IDENTIFIED: "It would have fused two identified people; nothing was merged, a warning says so.",
    Outcome.REFUSED_TOO_MANY: "The person would have more than 1,000 ids; nothing was merged, a warning says so.",
    Outcome.VOIDED: "An operator took it back: people are as if it had never been said.",
}


class Notice(msgspec.Struct, frozen=True):
    """A warning the tenant can read: which edge was refused, and what to do about it."""

    edge: Edge
    code: Outcome
    text: str


def person_id(tenant_id: int, distinct_id: str) -> uuid.UUID:
    """The id of the person who is named by this distinct id: the same everywhere and for ever. A UUIDv5."""
    digest = sha1(_NAMESPACE + f"{tenant_id}:{distinct_id}".encode(), usedforsecurity=False).digest()
    return uuid.UUID(bytes=digest[:16], version=5)  # as uuid.uuid5 does it, in two thirds of the time


# ------------------------------------------------------------------------------------------------ what is shown
class PersonView(msgspec.Struct, frozen=True):
    """A person in a list. `named_by` is the distinct id that names it; `identified_at` is when it became somebody."""

    person_id: uuid.UUID
    named_by: str
    """The distinct id that names the person."""
    ids: int
    """How many distinct ids the person has."""
    identified_at: datetime | None
    """When the person was first identified; null: anonymous so far."""
    properties: dict[str, Any]
    created_at: datetime
    """When the person's first id was first seen."""
    updated_at: datetime


class IdView(msgspec.Struct, frozen=True):
    distinct_id: str
    first_seen_at: datetime


class EdgeView(msgspec.Struct, frozen=True):
    """An edge and what became of it. `edge_id` is how it is voided and restored."""

    edge_id: str
    kind: EdgeKind
    source: str
    target: str
    at: datetime
    event_id: str
    """The id of the event that made the link."""
    outcome: str
    """What the link did: joined two people, changed nothing, was refused or voided."""
    voided_at: datetime | None = None
    """When the link was taken back; null: it counts."""
    voided_by: str | None = None
    """Who took it back; null: it counts."""


class PersonPage(Completeness, frozen=True):
    """All that is known about who a person is: at most 1,000 ids, and the newest 1,000 edges at any of them."""

    person: PersonView
    """The person itself."""
    distinct_ids: list[IdView]
    """The ids that belong to the person, at most 1,000."""
    edges: list[EdgeView]
    """The newest identity links of these ids, at most 1,000."""


class WarningView(msgspec.Struct, frozen=True):
    """A merge that was refused, and what to do about it."""

    edge_id: str
    code: str
    """Why the merge was refused, as a constant."""
    detail: str
    """What happened and what to do about it."""
    at: datetime
    kind: EdgeKind
    source: str
    target: str


class Definition(msgspec.Struct, frozen=True):
    """A name that was sent. `last_seen_at` is a whole hour; events as such have no type of value."""

    name: str
    """The name as it was sent."""
    first_seen_at: datetime
    last_seen_at: datetime
    """When it was last seen, to the hour."""
    value_type: str | None = None
    """The type of its values; null for an event."""


class Names(msgspec.Struct, frozen=True):
    """Every name of events and of their properties, for menus; at most 10,000 of each."""

    events: list[str]
    """Names of events, at most 10,000."""
    properties: list[str]
    """Names of event properties, at most 10,000."""
