"""The words of this room: a segment, what callers may send, and what they get."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

SEGMENTS_MAX = 200
"""Segments of one tenant: each is held against every person that changes."""
NEEDS_MAX = 200
"""Properties and segments of one tenant that banners may ask for: what is projected for each person stays small."""

Name = Annotated[str, Meta(min_length=1, max_length=200, description="What people call it; unique among yours")]
Text = Annotated[str, Meta(max_length=2000)]
Rule = Annotated[dict[str, Any], Meta(description="Who belongs to it: see the page on segments; empty is everybody")]
State = Literal["evaluating", "ready"]


class Segment(msgspec.Struct, frozen=True):
    """A segment as it is stored. `walk` counts what asks for a new look at everybody, `walked` what was done of it."""

    id: int
    tenant_id: int
    public_id: UUID
    name: str
    description: str
    rule: dict[str, Any]
    size: int
    walk: int
    walked: int
    version: int
    created_at: datetime
    updated_at: datetime
    evaluated_at: datetime | None = None

    @property
    def ready(self) -> bool:
        return self.walk == self.walked


class SegmentView(msgspec.Struct, frozen=True):
    """A segment as its owner reads it. While `evaluating`, members come and go until everybody was looked at once."""

    segment_id: UUID
    name: str
    description: str
    rule: dict[str, Any]
    """Who belongs to it: see the page on segments; empty is everybody."""
    size: int
    """How many people belong to it."""
    state: State
    """`evaluating` until everybody was looked at once, then `ready`."""
    evaluated_at: datetime | None
    """When everybody was last looked at; null: not yet."""
    version: int
    created_at: datetime
    updated_at: datetime


class NewSegment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name
    rule: Rule
    description: Text = ""


class SegmentPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Name | UnsetType = UNSET
    rule: Rule | UnsetType = UNSET
    description: Text | UnsetType = UNSET


class PreviewIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rule: Rule


class Member(msgspec.Struct, frozen=True):
    """One person of a segment."""

    person_id: UUID
    named_by: str
    properties: dict[str, Any]
    created_at: datetime
    """When the person was first seen."""


class Preview(msgspec.Struct, frozen=True):
    """How many people a rule takes. Not `exact`: `looked_at` of them were looked at, and the rest is in proportion."""

    size: int
    """How many people the rule takes."""
    exact: bool
    """Whether `size` is counted; else it is an estimate."""
    looked_at: int
    """How many people were compared with the rule."""
    sample: list[Member]
    """Some of the people that the rule takes."""


class Belongs(msgspec.Struct, frozen=True):
    """Whether somebody belongs to a segment, and if not, the part of the rule that does not hold."""

    belongs: bool
    """Whether the person belongs to the segment."""
    person_id: UUID | None
    """The person of the id that was asked about; null where there is none."""
    rule: str | None
    """The part of the rule that does not hold; null where all of it does."""


class NoteOf(msgspec.Struct, frozen=True):
    """What the audit log keeps of a segment."""

    name: str
    description: str
    rule: dict[str, Any]


def view(segment: Segment) -> SegmentView:
    return SegmentView(
        segment.public_id, segment.name, segment.description, segment.rule, segment.size,
        "ready" if segment.ready else "evaluating", segment.evaluated_at, segment.version, segment.created_at,
        segment.updated_at,
    )  # fmt: skip


def note(segment: Segment) -> NoteOf:
    return NoteOf(segment.name, segment.description, segment.rule)
