"""Flat entries of a Redis stream, as other programs' producers add them: every value a text, JSON where it is a tree.

    project_id | api_key     whose: a tenant's number or slug, or its write key
    event, distinct_id       required; `event_name` is another word for `event`
    event_id                 (`uuid`, `message_id`) the event's own; else the entry's id stands
    timestamp, sent_at       ISO 8601 or a number since 1970; else the time of the entry's own id
    anonymous_id, properties, user_properties       the two latter JSON objects, as in our own dialect
    session_id, ip, user_agent, url, referrer, browser, browser_version, os, os_version, device_type, screen_width,
    screen_height, language, timezone, lib          what is known of the moment

Any other field is kept in the properties, under `$extra`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw

from handbill.events.dialects.canon import Moment, Refused, Terms
from handbill.events.dialects.collect import Warned
from handbill.events.dialects.own import Desk, captured
from handbill.events.dialects.own_shapes import ContextIn, EventIn, PersonIn
from handbill.events.dialects.reading import SMALL, WIDE, decoded, encode, mended, spliced, text
from handbill.events.dialects.times import read_ms, request_time
from handbill.events.model import NO_PROPERTIES, CapturedEvent
from handbill.events.reasons import Reason
from handbill.kit.untrusted_json import UNREADABLE

DIALECT = "incoming"
TENANT_FIELDS = ("api_key", "write_key", "token", "project_id", "tenant_id")
_IDS = ("event_id", "uuid", "message_id")
_CONTEXT = ContextIn.__struct_fields__
_LONG = frozenset({"url", "referrer", "user_agent"})
_KNOWN = frozenset(
    {*TENANT_FIELDS, *_IDS, *_CONTEXT, "event", "event_name", "distinct_id", "timestamp", "sent_at"}
    | {"anonymous_id", "properties", "user_properties"}
)
_raw = msgspec.json.Decoder(Raw)
_person = msgspec.json.Decoder(PersonIn)


def texts(fields: Mapping[bytes, bytes]) -> dict[str, str]:
    """The entry's fields as texts; what no text may hold is replaced."""
    return {
        name.decode("utf-8", "replace"): value.decode("utf-8", "replace").replace("\0", "\ufffd")
        for name, value in fields.items()
    }


def event_id(fields: Mapping[str, str], entry: str) -> str:
    """The event's own, or else one made from the entry's."""
    return next((fields[name] for name in _IDS if fields.get(name)), f"{DIALECT}:{entry}")


def flat_event(fields: Mapping[str, str], entry: str, moment: Moment, terms: Terms, warned: Warned) -> CapturedEvent:
    """The one event of an entry. Raises Refused with the reason why it cannot be one."""
    try:
        sent = _sent(fields, entry)
    except UNREADABLE:
        raise Refused(Reason.MALFORMED_PROPERTIES) from None
    time = request_time(read_ms(_number(fields.get("sent_at"))), moment.received, (sent.event_id,))
    desk = Desk(terms.tenant, terms.truncate_ip, moment, moment.received, time, None, None, large=True)
    return msgspec.structs.replace(captured(desk, sent, 0, warned), dialect=DIALECT)


def _sent(fields: Mapping[str, str], entry: str) -> EventIn:
    properties = _object(fields.get("properties"))
    rest = {name: value for name, value in fields.items() if name not in _KNOWN}
    if rest:
        properties = spliced(properties, {"$extra": encode(rest)})
    person = mended(fields.get("user_properties", "").encode()).strip()
    return EventIn(
        event=fields.get("event") or fields.get("event_name") or None,
        distinct_id=fields.get("distinct_id") or None,
        event_id=event_id(fields, entry),
        timestamp=_number(fields.get("timestamp")),
        anonymous_id=fields.get("anonymous_id") or None,
        properties=Raw(properties),
        user_properties=decoded(_person, person) if person and person != b"null" else None,
        context=ContextIn(**{name: _word(name, fields[name]) for name in _CONTEXT if fields.get(name)}),
    )


def _object(sent: str | None) -> bytes:
    """Properties, read once so that nothing unreadable goes on; a list or a bare value is no object."""
    body = mended((sent or "").encode()).strip()
    if not body or body == b"null":
        return NO_PROPERTIES
    found = bytes(decoded(_raw, body))
    if found[:1] != b"{":
        raise Refused(Reason.MALFORMED_PROPERTIES)
    return found


def _word(name: str, sent: str) -> Any:
    if name.startswith("screen_"):
        return int(sent) if sent.isascii() and sent.isdigit() and len(sent) < 10 else None
    return text(sent, WIDE if name in _LONG else SMALL)


def _number(sent: str | None) -> str | int | float | None:
    """A time: digits are a number since 1970, anything else is read as a text."""
    if not sent:
        return None
    short = sent.strip()
    if short.replace(".", "", 1).isascii() and short.replace(".", "", 1).isdigit() and len(short) < 20:
        return float(short) if "." in short else int(short)
    return short
