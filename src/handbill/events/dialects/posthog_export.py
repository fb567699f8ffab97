"""A row of PostHog's exports (batch exports and the events API) in the words of its clients."""

from __future__ import annotations

import msgspec
from msgspec import Raw

from handbill.events.dialects.canon import NO_PROPERTIES, Refused
from handbill.events.dialects.reading import Fields, encode, merged, object_of, plain, spliced
from handbill.events.reasons import Reason
from handbill.kit.untrusted_json import UNREADABLE

_SETS = ("$set", "set", "people_set")
_SETS_ONCE = ("$set_once", "set_once", "people_set_once")
_IDS = ("uuid", "id")


class _Inside(msgspec.Struct, frozen=True, rename={"set": "$set"}):
    set: Raw = Raw(b"")


_inside = msgspec.json.Decoder(_Inside)
_text = msgspec.json.Decoder(str)
_raw = msgspec.json.Decoder(Raw)
_NULL = b"null"


def export_fields(fields: Fields) -> Fields:
    """What a client would have sent. Objects may be texts that hold JSON, as databases export them.

    `person_properties` are set below what the event itself sets. What only PostHog has a use for is left out:
    elements, numbers of teams and persons, times of ingestion. Raises Refused where JSON in a text is none.
    """
    found: Fields = {name: fields[name] for name in ("event", "distinct_id", "$unset") if name in fields}
    if identity := next((fields[name] for name in _IDS if name in fields and bytes(fields[name]) != _NULL), None):
        found["uuid"] = identity
    if "timestamp" in fields:
        found["timestamp"] = _time(fields["timestamp"])
    properties = _first(fields, ("properties",)) or NO_PROPERTIES
    if "ip" in fields and bytes(fields["ip"]) != _NULL:
        properties = spliced(properties, {"$ip": bytes(fields["ip"])})
    found["properties"] = Raw(properties)
    set_ = _first(fields, _SETS)
    if (person := _first(fields, ("person_properties",))) is not None:
        set_ = merged(merged(person, _inner_set(properties)), set_)
    for name, value in (("$set", set_), ("$set_once", _first(fields, _SETS_ONCE))):
        if value is not None:
            found[name] = Raw(value)
    return found


def _inner_set(properties: bytes) -> bytes | None:
    """What the event sets inside its properties, which counts before what the person had."""
    try:
        return object_of(_inside.decode(properties).set)
    except UNREADABLE:
        raise Refused(Reason.MALFORMED_PROPERTIES) from None


def _first(fields: Fields, names: tuple[str, ...]) -> bytes | None:
    values = (_object(fields[name]) for name in names if name in fields)
    return next((value for value in values if value is not None), None)


def _object(raw: Raw) -> bytes | None:
    """A JSON object, as it is or in a text; None for null, nothing and an empty text."""
    if not bytes(raw).startswith(b'"'):
        return object_of(raw)
    try:
        text = _text.decode(raw).strip()
        return object_of(Raw(bytes(_raw.decode(text)))) if text else None
    except UNREADABLE:
        raise Refused(Reason.MALFORMED_PROPERTIES) from None


def _time(raw: Raw) -> Raw:
    """`2026-07-01 09:30:00 UTC`, as BigQuery writes it, with the zone that ISO 8601 knows."""
    stamp = plain(raw)
    if isinstance(stamp, str) and stamp.endswith(" UTC"):
        return Raw(encode(stamp.removesuffix(" UTC") + "Z"))
    return raw
