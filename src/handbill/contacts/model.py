"""What a contact, its consents, a suppression and an import are."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

Channel = Literal["whatsapp", "sms", "email"]
Policy = Literal["skip", "update", "update_blanks", "replace"]
KeyKind = Literal["phone", "email", "external_id"]
Format = Literal["csv", "jsonl", "xlsx"]
Kind = Literal["text", "number", "date", "bool"]
DateOrder = Literal["dmy", "mdy", "ymd"]
Status = Literal[
    "ready", "queued", "splitting", "parsing", "parsed", "merging", "done", "failed", "cancelled", "undoing", "undone"
]
Why = Literal["opt_out", "bounce", "complaint", "invalid", "manual"]

CHANNELS: tuple[Channel, ...] = ("whatsapp", "sms", "email")
OPEN: tuple[Status, ...] = ("queued", "splitting", "parsing", "parsed", "merging", "undoing")
"""Imports under way."""
RUNNING: tuple[Status, ...] = ("splitting", "parsing", "parsed", "merging")

SKIP_ROWS_MAX = 100
_PLAIN = r"^[^\x00-\x08\x0b\x0c\x0e-\x1f]*$"
Text = Annotated[str, Meta(max_length=500, pattern=_PLAIN)]
Long = Annotated[str, Meta(max_length=2_000, pattern=_PLAIN)]
Tag = Annotated[str, Meta(min_length=1, max_length=60, pattern=r"^[^\x00-\x1f,]+$")]
Tags = Annotated[list[Tag], Meta(max_length=50)]
AttributeName = Annotated[str, Meta(min_length=1, max_length=60, pattern=r"^[^\x00-\x1f]+$")]
Scalar = str | float | int | bool | None
Attributes = Annotated[dict[AttributeName, Any], Meta(max_length=200)]
Region = Annotated[str, Meta(pattern=r"^[A-Z]{2}$")]
Locale = Annotated[str, Meta(max_length=20, pattern=r"^[A-Za-z]{2,3}([_-][A-Za-z0-9]{2,8}){0,2}$")]
Channels = Annotated[list[Channel], Meta(max_length=3)]


class Contact(msgspec.Struct, frozen=True):
    """`whatsapp` is the phone as WhatsApp counts it. `granted`, `denied`: the channels the contact spoke about."""

    contact_id: UUID
    phone: str | None
    whatsapp: str | None
    email: str | None
    external_id: str | None
    name: str | None
    locale: str | None
    attributes: dict[str, Any]
    tags: list[str]
    granted: list[str]
    denied: list[str]
    version: int
    created_at: datetime
    updated_at: datetime
    person_id: UUID | None = None


class NewContact(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """At least one of phone, email and external_id. A national phone needs a `region`, or the tenant a default."""

    phone: Text | None = None
    email: Text | None = None
    external_id: Annotated[str, Meta(min_length=1, max_length=200, pattern=_PLAIN)] | None = None
    name: Text | None = None
    locale: Locale | None = None
    attributes: Attributes = msgspec.field(default_factory=dict)
    tags: Tags = msgspec.field(default_factory=list)
    region: Region | None = None


class ContactPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is left out stays; null empties a field. An attribute set to null is removed."""

    phone: Text | UnsetType | None = UNSET
    email: Text | UnsetType | None = UNSET
    external_id: Annotated[str, Meta(min_length=1, max_length=200, pattern=_PLAIN)] | UnsetType | None = UNSET
    name: Text | UnsetType | None = UNSET
    locale: Locale | UnsetType | None = UNSET
    attributes: Attributes | UnsetType = UNSET
    add_tags: Tags = msgspec.field(default_factory=list)
    remove_tags: Tags = msgspec.field(default_factory=list)
    region: Region | None = None


class ContactFilter(msgspec.Struct, frozen=True):
    search: str | None = None
    tag: str | None = None
    channel: Channel | None = None


class Consent(msgspec.Struct, frozen=True):
    """One line of a contact's consent log: what was said, where, and what proves it."""

    at: datetime
    channel: str
    granted: bool
    source: str
    proof: str | None
    actor: str
    import_id: UUID | None = None


class NewConsent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    channel: Channel
    granted: bool
    source: Annotated[str, Meta(min_length=1, max_length=200, pattern=_PLAIN)]
    proof: Long | None = None


class Suppression(msgspec.Struct, frozen=True):
    """An address that must not be written to, and until when; for ever without `until`."""

    channel: str
    address: str
    reason: str
    until: datetime | None
    created_at: datetime
    note: str | None = None


class NewSuppression(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    channel: Channel
    address: Annotated[str, Meta(min_length=3, max_length=320, pattern=_PLAIN)]
    reason: Why = "manual"
    until: Annotated[datetime, Meta(tz=True)] | None = None
    note: Text | None = None
    region: Region | None = None


class Audience(msgspec.Struct, frozen=True):
    """Whom a campaign means: any of these tags, all of those, none of the others; or exactly these contacts."""

    tags_any: tuple[str, ...] = ()
    tags_all: tuple[str, ...] = ()
    tags_none: tuple[str, ...] = ()
    contact_ids: tuple[UUID, ...] = ()


class Recipient(msgspec.Struct, frozen=True):
    """One contact as a campaign sees it on one channel."""

    contact_id: UUID
    address: str
    name: str | None
    attributes: dict[str, Any]
    locale: str | None
    granted: bool
    denied: bool
    suppressed: str | None
    """Why the address must not be written to, if so."""
    external_id: str | None = None
    """The tenant's own id of the contact, which is also its distinct id among people."""


class Column(msgspec.Struct, frozen=True):
    """One column of the file and where it goes.

    `target`: phone, email, external_id, name, first_name, last_name, locale, tags, consent, `attribute:NAME`, or
    nothing: the column is left out.
    """

    name: Annotated[str, Meta(max_length=500)]
    target: Annotated[str, Meta(max_length=80)] | None = None
    kind: Kind = "text"
    date_order: DateOrder = "dmy"


class Reading(msgspec.Struct, frozen=True):
    """How the file is read: found by looking at its head. Only `header` and `skip_rows` are edited by hand."""

    format: Format
    encoding: str = "utf-8"
    delimiter: str = ","
    quote: str = '"'
    header: bool = True
    sheet: str | None = None
    packed: bool = False
    skip_rows: int = 0
    """Rows above the header, or above the first row of data: titles, and a line `sep=;`."""
    member: str | None = None
    """The file of a `.zip` that is read."""


class ConsentPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """These people have agreed to be written to on `channels`: who says so, and what proves it."""

    channels: Channels
    source: Annotated[str, Meta(min_length=1, max_length=200, pattern=_PLAIN)]
    proof: Long | None = None


class Plan(msgspec.Struct, frozen=True):
    """What the import will do."""

    reading: Reading
    columns: list[Column]
    key: KeyKind = "phone"
    policy: Policy = "update"
    region: str | None = None
    tags: list[str] = msgspec.field(default_factory=list)
    consent: ConsentPlan | None = None
    fixes: bool = False
    """The rejected rows of another import come back: marks that our report set against formulas are taken off."""


class ColumnEdit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    index: Annotated[int, Meta(ge=0, le=999)]
    target: Annotated[str, Meta(max_length=80)] | None = None
    kind: Kind = "text"
    date_order: DateOrder = "dmy"


class PlanPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is left out stays as proposed."""

    columns: Annotated[list[ColumnEdit], Meta(max_length=1000)] | UnsetType = UNSET
    header: bool | UnsetType = UNSET
    skip_rows: Annotated[int, Meta(ge=0, le=SKIP_ROWS_MAX)] | UnsetType = UNSET
    key: KeyKind | UnsetType = UNSET
    policy: Policy | UnsetType = UNSET
    region: Region | UnsetType | None = UNSET
    tags: Tags | UnsetType = UNSET
    consent: ConsentPlan | UnsetType | None = UNSET


class Counts(msgspec.Struct, frozen=True):
    """rows = created + updated + unchanged + skipped + duplicates + rejected + blank, once the import is done."""

    rows: int = 0
    created: int = 0
    updated: int = 0
    unchanged: int = 0
    skipped: int = 0
    duplicates: int = 0
    rejected: int = 0
    blank: int = 0
    noted: int = 0
    repaired: int = 0


class Progress(msgspec.Struct, frozen=True):
    """`parsed` and `merged` are rows; `eta_s` is none while nothing can be said."""

    phase: str
    rows: int
    parsed: int
    merged: int
    rows_per_s: float | None
    eta_s: float | None


class Import(msgspec.Struct, frozen=True):
    import_id: UUID
    file_name: str
    size: int
    status: Status
    paused: bool
    plan: Plan
    counts: Counts
    created_at: datetime
    version: int
    created_by: str
    sha256: str
    fixes: UUID | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: str | None = None
    undo_kept: int = 0
    """Contacts that an undo left alone, or restored only in part, because they had changed since."""


class ImportView(msgspec.Struct, frozen=True):
    """An import with how far it is."""

    info: Import
    progress: Progress


class PreviewRow(msgspec.Struct, frozen=True):
    """A row of the head and what would become of it: create, update, unchanged by policy, or reject with a reason."""

    row: int
    outcome: Literal["create", "match", "duplicate", "reject", "blank"]
    values: dict[str, Any]
    reason: str | None = None
    field: str | None = None
    notes: list[str] = msgspec.field(default_factory=list)
    suggestion: str | None = None
    """For `PHONE_OTHER_COUNTRY`, the number with the plus that was perhaps lost."""


class Preview(msgspec.Struct, frozen=True):
    plan: Plan
    rows: list[PreviewRow]


class Cause(msgspec.Struct, frozen=True):
    """How many rows one reason met, and what to do about it."""

    severity: Literal["reject", "note", "repair"]
    code: str
    field: str | None
    rows: int
    meaning: str
    fix: str
    example: str | None = None


class Report(msgspec.Struct, frozen=True):
    info: Import
    causes: list[Cause]


class Kept(msgspec.Struct, frozen=True):
    """A contact that an undo did not put back whole."""

    contact_id: UUID
    fields: list[str]
    why: str
