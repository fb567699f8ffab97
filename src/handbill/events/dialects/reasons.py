"""Why an event of a client was not taken, or was taken with something left out: one typed list."""

from __future__ import annotations

from enum import StrEnum


class CaptureReason(StrEnum):
    MALFORMED_EVENT = "MALFORMED_EVENT"
    MISSING_EVENT_NAME = "MISSING_EVENT_NAME"
    EVENT_NAME_TOO_LONG = "EVENT_NAME_TOO_LONG"
    MISSING_DISTINCT_ID = "MISSING_DISTINCT_ID"
    DISTINCT_ID_TOO_LARGE = "DISTINCT_ID_TOO_LARGE"
    MALFORMED_DISTINCT_ID = "MALFORMED_DISTINCT_ID"
    ILLEGAL_DISTINCT_ID = "ILLEGAL_DISTINCT_ID"
    MISSING_EVENT_UUID = "MISSING_EVENT_UUID"
    DUPLICATE_EVENT_UUID = "DUPLICATE_EVENT_UUID"
    INVALID_TIMESTAMP = "INVALID_TIMESTAMP"
    MALFORMED_PROPERTIES = "MALFORMED_PROPERTIES"
    INVALID_OPTIONS = "INVALID_OPTIONS"
    EVENT_TOO_LARGE = "EVENT_TOO_LARGE"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    ILLEGAL_MERGE = "ILLEGAL_MERGE"
    TIME_UNREADABLE = "TIME_UNREADABLE"
    SET_UNREADABLE = "SET_UNREADABLE"


DOCS: dict[CaptureReason, str] = {
    CaptureReason.MALFORMED_EVENT: "It is no JSON object, or a field has a type that cannot be read.",
    CaptureReason.MISSING_EVENT_NAME: "It has no name, or the name is no text.",
    CaptureReason.EVENT_NAME_TOO_LONG: "Its name is longer than 200 characters.",
    CaptureReason.MISSING_DISTINCT_ID: "It does not say whose it is: no distinct id, or an empty one.",
    CaptureReason.DISTINCT_ID_TOO_LARGE: "Its distinct id is longer than 200 characters.",
    CaptureReason.MALFORMED_DISTINCT_ID: "Its distinct id is no text, or holds characters that no text may hold.",
    CaptureReason.ILLEGAL_DISTINCT_ID: "Its distinct id is a word like `null` or `guest`, shared by a crowd.",
    CaptureReason.MISSING_EVENT_UUID: "This dialect asks for an id on every event, and it has none.",
    CaptureReason.DUPLICATE_EVENT_UUID: "Another event of the same request has its id; the first one stands.",
    CaptureReason.INVALID_TIMESTAMP: "Its time cannot be read.",
    CaptureReason.MALFORMED_PROPERTIES: "Its properties, or the person's, are no JSON object.",
    CaptureReason.INVALID_OPTIONS: "Its options are not what this dialect knows.",
    CaptureReason.EVENT_TOO_LARGE: "It is larger than one event may be.",
    CaptureReason.UNKNOWN_TYPE: "Its type is none of track, identify, page, screen, group and alias.",
    CaptureReason.ILLEGAL_MERGE: "Kept, but the merge it asked for was left out: one of the two ids names nobody.",
    CaptureReason.TIME_UNREADABLE: "Kept, but its time could not be read: the time of arrival stands instead.",
    CaptureReason.SET_UNREADABLE: "Kept, but what it would set on the person is no JSON object and was left out.",
}

KEPT = frozenset({CaptureReason.ILLEGAL_MERGE, CaptureReason.TIME_UNREADABLE, CaptureReason.SET_UNREADABLE})
"""Warnings: the event itself was taken."""
