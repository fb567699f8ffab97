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
    """The phone number with + and country code; null: none."""
    whatsapp: str | None
    """The phone number as WhatsApp counts it, with + and country code; null: none."""
    email: str | None
    external_id: str | None
    name: str | None
    locale: str | None
    attributes: dict[str, Any]
    tags: list[str]
    granted: list[str]
    """Channels over which the contact agreed to messages."""
    denied: list[str]
    """Channels over which the contact wants no messages."""
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
    """Further values by name; null removes one."""
    add_tags: Tags = msgspec.field(default_factory=list)
    """Tags that the contact gets."""
    remove_tags: Tags = msgspec.field(default_factory=list)
    """Tags that the contact loses."""
    region: Region | None = None


class ContactFilter(msgspec.Struct, frozen=True):
    search: str | None = None
    tag: str | None = None
    channel: Channel | None = None


class Consent(msgspec.Struct, frozen=True):
    """One line of a contact's consent log: what was said, where, and what proves it."""

    at: datetime
    """When it was given or refused."""
    channel: str
    granted: bool
    source: str
    proof: str | None
    actor: str
    import_id: UUID | None = None
    """The id of the import that brought it; null: it was none."""


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
    """Why nothing may be sent to it: an opt-out, a bounce, a complaint, not valid, or by hand."""
    until: datetime | None
    created_at: datetime
    note: str | None = None


class NewSuppression(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    channel: Channel
    address: Annotated[str, Meta(min_length=3, max_length=320, pattern=_PLAIN)]
    reason: Why = "manual"
    """Why nothing may be sent to it; `manual` if not given."""
    until: Annotated[datetime, Meta(tz=True)] | None = None
    note: Text | None = None
    region: Region | None = None


class Audience(msgspec.Struct, frozen=True):
    """Whom a campaign means: any of these tags, all of those, none of the others; or exactly these contacts."""

    tags_any: tuple[str, ...] = ()
    tags_all: tuple[str, ...] = ()
    tags_none: tuple[str, ...] = ()
    contact_ids: tuple[UUID, ...] = ()


class FoundRecipient(msgspec.Struct, frozen=True):
    """One person on one channel; no contact may have the address."""

    contact_id: UUID | None
    address: str


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
    phone: str | None = None
    email: str | None = None


class Column(msgspec.Struct, frozen=True):
    """One column of the file and where it goes.

    `target`: phone, email, external_id, name, first_name, last_name, locale, tags, consent, `attribute:NAME`, or
    nothing: the column is left out.
    """

    name: Annotated[str, Meta(max_length=500)]
    """The name of the column in the file."""
    target: Annotated[str, Meta(max_length=80)] | None = None
    kind: Kind = "text"
    date_order: DateOrder = "dmy"


class Reading(msgspec.Struct, frozen=True):
    """How the file is read: found by looking at its head. Only `header` and `skip_rows` are edited by hand."""

    format: Format
    """The format of the file; TSV counts as csv."""
    encoding: str = "utf-8"
    """The encoding of its text, e.g. utf-8."""
    delimiter: str = ","
    """The character between cells."""
    quote: str = '"'
    """The character around cells that contain the delimiter."""
    header: bool = True
    sheet: str | None = None
    """The sheet of a workbook that is read; null for other formats."""
    packed: bool = False
    """Whether the file is compressed with gzip."""
    skip_rows: int = 0
    """Rows above the header, or above the first row of data: titles, and a line `sep=;`."""
    member: str | None = None
    """The file of a `.zip` that is read."""


class ConsentPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """These people have agreed to be written to on `channels`: who says so, and what proves it."""

    channels: Channels
    """The channels over which these people agreed to messages."""
    source: Annotated[str, Meta(min_length=1, max_length=200, pattern=_PLAIN)]
    proof: Long | None = None


class Plan(msgspec.Struct, frozen=True):
    """What the import will do."""

    reading: Reading
    """How the file is read."""
    columns: list[Column]
    key: KeyKind = "phone"
    policy: Policy = "update"
    region: str | None = None
    tags: list[str] = msgspec.field(default_factory=list)
    """Tags that contacts of the import get."""
    consent: ConsentPlan | None = None
    fixes: bool = False
    """The rejected rows of another import come back: marks that our report set against formulas are taken off."""


class ColumnEdit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    index: Annotated[int, Meta(ge=0, le=999)]
    """The position of the column in the file, from 0."""
    target: Annotated[str, Meta(max_length=80)] | None = None
    kind: Kind = "text"
    date_order: DateOrder = "dmy"


class PlanPatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is left out stays as proposed."""

    columns: Annotated[list[ColumnEdit], Meta(max_length=1000)] | UnsetType = UNSET
    header: bool | UnsetType = UNSET
    skip_rows: Annotated[int, Meta(ge=0, le=SKIP_ROWS_MAX)] | UnsetType = UNSET
    """Rows above the header, or above the first row of data, that are left out."""
    key: KeyKind | UnsetType = UNSET
    policy: Policy | UnsetType = UNSET
    region: Region | UnsetType | None = UNSET
    tags: Tags | UnsetType = UNSET
    """Tags that contacts of the import get."""
    consent: ConsentPlan | UnsetType | None = UNSET


class Counts(msgspec.Struct, frozen=True):
    """rows = created + updated + unchanged + skipped + duplicates + rejected + blank, once the import is done."""

    rows: int = 0
    """How many rows were read."""
    created: int = 0
    """Rows that created a contact."""
    updated: int = 0
    """Rows that changed a contact."""
    unchanged: int = 0
    """Rows whose contact was as they say already."""
    skipped: int = 0
    """Rows whose contact is there already, where the policy is `skip`."""
    duplicates: int = 0
    """Rows for a contact that another row of the file is for, too."""
    rejected: int = 0
    """Rows that were not taken; see the report."""
    blank: int = 0
    """Rows without any value."""
    noted: int = 0
    """Rows that were taken without a value that is not valid."""
    repaired: int = 0
    """Values that were put right, e.g. a phone number in national form."""


class Progress(msgspec.Struct, frozen=True):
    """`parsed` and `merged` are rows; `eta_s` is none while nothing can be said."""

    phase: str
    """What is done now: the status of the import, or `paused`."""
    rows: int
    """How many rows the file has; 0 until that is known."""
    parsed: int
    """Rows that were read."""
    merged: int
    """Rows that are done."""
    rows_per_s: float | None
    """Rows a second so far; null while that is not known."""
    eta_s: float | None
    """Seconds until it is done, estimated; null while that is not known."""


class Import(msgspec.Struct, frozen=True):
    import_id: UUID
    file_name: str
    """The name of the file as it was uploaded."""
    size: int
    """The size of the upload in bytes."""
    status: Status
    """Where the import is on its way from ready to done or undone."""
    paused: bool
    """Whether somebody paused it."""
    plan: Plan
    counts: Counts
    """What became of the rows so far."""
    created_at: datetime
    version: int
    created_by: str
    sha256: str
    """The SHA-256 of the upload, in hexadecimal."""
    fixes: UUID | None = None
    """The id of the import whose rejected rows it brings again; null: none."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    error: str | None = None
    undo_kept: int = 0
    """Contacts that an undo left alone, or restored only in part, because they had changed since."""


class ImportView(msgspec.Struct, frozen=True):
    """An import with how far it is."""

    info: Import
    """The import itself."""
    progress: Progress
    """How far it is and how long it will take."""


class PreviewRow(msgspec.Struct, frozen=True):
    """A row of the head and what would become of it: create, update, unchanged by policy, or reject with a reason."""

    row: int
    """The number of the row in the file."""
    outcome: Literal["create", "match", "duplicate", "reject", "blank"]
    """What would become of the row; `match`: its contact is there already."""
    values: dict[str, Any]
    """What would be stored, by field."""
    reason: str | None = None
    """Why the row would be rejected, as a constant; null: it would not."""
    field: str | None = None
    """The field that is at fault; null: none."""
    notes: list[str] = msgspec.field(default_factory=list)
    """What would be left out or put right, and why."""
    suggestion: str | None = None
    """For `PHONE_OTHER_COUNTRY`, the number with the plus that was perhaps lost."""


class Preview(msgspec.Struct, frozen=True):
    plan: Plan
    rows: list[PreviewRow]
    """The first rows of the file and what would become of them."""


class Cause(msgspec.Struct, frozen=True):
    """How many rows one reason met, and what to do about it."""

    severity: Literal["reject", "note", "repair"]
    """reject: the row was not taken; note: a value was left out; repair: a value was put right."""
    code: str
    field: str | None
    """The field that is at fault; null: the row as a whole."""
    rows: int
    """How many rows it happened to."""
    meaning: str
    """What is wrong, in words."""
    fix: str
    """What to do about it, in words."""
    example: str | None = None
    """A value that it happened to; null: none is stored."""


class Report(msgspec.Struct, frozen=True):
    info: Import
    """The import itself."""
    causes: list[Cause]
    """What happened to rows, by cause, with how many."""


class Kept(msgspec.Struct, frozen=True):
    """A contact that an undo did not put back whole."""

    contact_id: UUID
    fields: list[str]
    """Fields that stay as they are now; empty: the whole contact stays."""
    why: str
    """Why they stay, as a constant, e.g. CHANGED_SINCE."""
