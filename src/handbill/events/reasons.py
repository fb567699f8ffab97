"""Why an event was not counted, or was taken with something left out: one typed list, for the tenant to read."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    DUPLICATE = "DUPLICATE"
    DUPLICATE_DIFFERENT = "DUPLICATE_DIFFERENT"
    TOO_OLD = "TOO_OLD"
    PAST_RETENTION = "PAST_RETENTION"
    DO_NOT_TRACK = "DO_NOT_TRACK"
    LINK_TOO_OLD = "LINK_TOO_OLD"
    UNREADABLE = "UNREADABLE"
    REJECTED = "REJECTED"
    TOO_MANY_REJECTED = "TOO_MANY_REJECTED"
    UNSHIPPED = "UNSHIPPED"
    UNKNOWN_OBJECT = "UNKNOWN_OBJECT"
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
    EVENT_NAME_CUT = "EVENT_NAME_CUT"
    CONTEXT_CUT = "CONTEXT_CUT"
    PROPERTY_NAME_UNUSABLE = "PROPERTY_NAME_UNUSABLE"
    PROPERTY_TOO_LARGE = "PROPERTY_TOO_LARGE"
    PROPERTIES_TOO_DEEP = "PROPERTIES_TOO_DEEP"
    TOO_MANY_PROPERTIES = "TOO_MANY_PROPERTIES"
    PERSON_PROFILE_OFF = "PERSON_PROFILE_OFF"
    QUOTA = "QUOTA"
    UNKNOWN_FIELD = "UNKNOWN_FIELD"
    UNPROVED_USER = "UNPROVED_USER"


DOCS: dict[Reason, str] = {
    Reason.DUPLICATE: "The same kind and event id was counted before; the first committed copy stands.",
    Reason.DUPLICATE_DIFFERENT: "As DUPLICATE, but the copies differed in content; the earlier one stands.",
    Reason.TOO_OLD: "It happened before the horizon of deduplication (35 days): it could not be told from a copy. Older"
    " events are taken as history, by `historical_migration`, `/v1/import` or `handbill events import`.",
    Reason.PAST_RETENTION: "It is history of a month that is past the tenant's retention: it would be deleted at once.",
    Reason.DO_NOT_TRACK: "The browser asked not to be tracked and the tenant respects that; only this drop is counted.",
    Reason.LINK_TOO_OLD: "A click through `/r/` whose decision is older than its token is good for: the user got to the"
    " banner's address, and the click was not counted.",
    Reason.UNREADABLE: "The bytes in the journal could not be read as an event; parked with the bytes.",
    Reason.REJECTED: "The database refused this one row; parked with the bytes, its neighbours were counted.",
    Reason.TOO_MANY_REJECTED: "Too many events of this tenant were REJECTED, so the rest of its batch was parked with"
    " them, untried; parked with the bytes, and a replay counts those that are good.",
    Reason.UNSHIPPED: "Counted, but ClickHouse refused its row, so no insight shows it; parked with the bytes.",
    Reason.UNKNOWN_OBJECT: "A job or an incoming entry named something that does not exist; nothing to count it for.",
    Reason.MALFORMED_EVENT: "It is no JSON object, or a field has a type that cannot be read.",
    Reason.MISSING_EVENT_NAME: "It has no name, or the name is no text.",
    Reason.EVENT_NAME_TOO_LONG: "Its name is longer than 200 characters.",
    Reason.MISSING_DISTINCT_ID: "It does not say whose it is: no distinct id, or an empty one.",
    Reason.DISTINCT_ID_TOO_LARGE: "Its distinct id is longer than 200 characters.",
    Reason.MALFORMED_DISTINCT_ID: "Its distinct id is no text, or holds characters that no text may hold.",
    Reason.ILLEGAL_DISTINCT_ID: "Its distinct id is a word like `null` or `guest`, shared by a crowd.",
    Reason.MISSING_EVENT_UUID: "This dialect asks for an id on every event, and it has none.",
    Reason.DUPLICATE_EVENT_UUID: "Another event of the same request has its id; the first one stands.",
    Reason.INVALID_TIMESTAMP: "Its time cannot be read; or it is history without a time, or of the future.",
    Reason.MALFORMED_PROPERTIES: "Its properties, or the person's, are no JSON object.",
    Reason.INVALID_OPTIONS: "Its options are not what this dialect knows.",
    Reason.EVENT_TOO_LARGE: "It is larger than one event may be.",
    Reason.UNKNOWN_TYPE: "Its type is none of track, identify, page, screen, group and alias.",
    Reason.ILLEGAL_MERGE: "Kept, but the merge it asked for was left out: one of the two ids names nobody"
    " or is longer than 200 characters.",
    Reason.TIME_UNREADABLE: "Kept, but its time could not be read: the time of arrival stands instead.",
    Reason.SET_UNREADABLE: "Kept, but what it would set on the person is no JSON object and was left out.",
    Reason.EVENT_NAME_CUT: "Kept, but its name was cut to 200 characters.",
    Reason.CONTEXT_CUT: "Kept, but a field of its context (URL, session, browser and the like) was cut to the length"
    " that is stored, or left out because it is no text.",
    Reason.PROPERTY_NAME_UNUSABLE: "Kept, but a property whose name is empty or longer than 200 characters stays with"
    " the event alone: it is not listed, and the person does not get it.",
    Reason.PROPERTY_TOO_LARGE: "Kept, but a value for the person of more than 8 kB, or with a number beyond 1e999,"
    " stays with the event alone.",
    Reason.PROPERTIES_TOO_DEEP: "Kept, but its properties, or what it would set on the person, nest deeper than 64"
    " levels: they stay with the event alone.",
    Reason.TOO_MANY_PROPERTIES: "Kept, but it has more than 10,000 properties, of which none is listed, or more than"
    " 2,000 for the person, who keeps the first by name.",
    Reason.PERSON_PROFILE_OFF: "Kept, but it says `$process_person_profile: false`, so that what it would change on the"
    " person, or the identity link it makes, was left out.",
    Reason.QUOTA: "The tenant's quota of events for the day is used up; the client was told not to send it again.",
    Reason.UNKNOWN_FIELD: "It has a field that is not known; the answer names it.",
    Reason.UNPROVED_USER: "The tenant requires users' tokens (jwt.required), and nothing proves whose click this is.",
}

KEPT = frozenset({
    Reason.CONTEXT_CUT, Reason.EVENT_NAME_CUT, Reason.ILLEGAL_MERGE, Reason.PERSON_PROFILE_OFF,
    Reason.PROPERTIES_TOO_DEEP, Reason.PROPERTY_NAME_UNUSABLE, Reason.PROPERTY_TOO_LARGE, Reason.SET_UNREADABLE,
    Reason.TIME_UNREADABLE, Reason.TOO_MANY_PROPERTIES,
})  # fmt: skip
"""Warnings: the event itself was taken."""
