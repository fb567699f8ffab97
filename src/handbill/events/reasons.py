"""Why an event was not counted: one typed list. Each is counted per tenant and day, and the tenant can read it."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    DUPLICATE = "DUPLICATE"
    DUPLICATE_DIFFERENT = "DUPLICATE_DIFFERENT"
    TOO_OLD = "TOO_OLD"
    DO_NOT_TRACK = "DO_NOT_TRACK"
    UNREADABLE = "UNREADABLE"
    REJECTED = "REJECTED"
    UNKNOWN_OBJECT = "UNKNOWN_OBJECT"


DOCS: dict[Reason, str] = {
    Reason.DUPLICATE: "The same kind and event id was counted before; the first committed copy stands.",
    Reason.DUPLICATE_DIFFERENT: "As DUPLICATE, but the copies differed in content; the earlier one stands.",
    Reason.TOO_OLD: "It happened before the horizon of deduplication (35 days): it could not be told from a copy.",
    Reason.DO_NOT_TRACK: "The browser asked not to be tracked and the tenant respects that; only this drop is counted.",
    Reason.UNREADABLE: "The bytes in the journal could not be read as an event; parked with the bytes.",
    Reason.REJECTED: "The database refused this one row; parked with the bytes, its neighbours were counted.",
    Reason.UNKNOWN_OBJECT: "A job named a banner or placement that does not exist; nothing to count it for.",
}
