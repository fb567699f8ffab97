"""Requests of our own dialect as they are decoded: one typed decode reads the whole batch.

Only when that fails is the batch taken apart, to find the events at fault and keep the others.
"""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from handbill.events.dialects.bounded import check_count, elements
from handbill.events.dialects.canon import Refused
from handbill.events.dialects.reading import PAYLOAD_BYTES, SMALL, WIDE, bad_json, decoded, text
from handbill.events.reasons import Reason
from handbill.kit.errors import Fault, Invalid
from handbill.kit.faults import MOST, unknown_names
from handbill.kit.untrusted_json import UNREADABLE

BATCH_MAX = 500
_NOTHING = Raw(b"")


Small = Annotated[str, Meta(max_length=SMALL)]
Side = int | float | str | bool | None
Wide = Annotated[str, Meta(max_length=WIDE)]


class ContextIn(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What the sender knows of the moment; what it leaves out is read from the request where that is possible."""

    session_id: Small | None = None
    browser: Small | None = None
    browser_version: Small | None = None
    os: Small | None = None
    os_version: Small | None = None
    device_type: Small | None = None
    screen_width: Side = None
    screen_height: Side = None
    url: Wide | None = None
    referrer: Wide | None = None
    language: Small | None = None
    timezone: Small | None = None
    user_agent: Wide | None = None
    ip: Small | None = None
    lib: Small | None = None


_WIDE = frozenset({"url", "referrer", "user_agent"})


class PersonIn(
    msgspec.Struct,
    frozen=True,
    gc=False,
    forbid_unknown_fields=True,
    rename={"set": "$set", "set_once": "$set_once", "unset": "$unset"},
):
    """What the event changes on its person."""

    set: Raw = _NOTHING
    set_once: Raw = _NOTHING
    unset: Raw = _NOTHING


class EventIn(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    event: str | None = None
    distinct_id: str | int | None = None
    event_id: str | None = None
    timestamp: str | int | float | None = None
    anonymous_id: str | int | None = None
    properties: Raw = _NOTHING
    user_properties: PersonIn | None = None
    context: ContextIn | None = None


class _LooseEventIn(EventIn, frozen=True, gc=False):
    """The same event with a context that is too long, or not of the right types: it is cut, the event is kept."""

    context: dict[str, Any] | None = None  # type: ignore[assignment]

    def tight(self) -> EventIn:
        found = {
            name: value if name.startswith("screen_") else text(value, WIDE if name in _WIDE else SMALL)
            for name, value in (self.context or {}).items()
        }
        fields = {name: getattr(self, name) for name in EventIn.__struct_fields__}
        return EventIn(**{**fields, "context": ContextIn(**found)})


class CutEvent(msgspec.Struct, frozen=True):
    """An event of whose context something was left out."""

    event: EventIn


Item = EventIn | CutEvent | Refused


class BatchIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    events: list[EventIn]
    sent_at: Raw = _NOTHING
    api_key: Raw = _NOTHING
    historical_migration: Raw = _NOTHING


class LooseIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    events: Raw
    sent_at: Raw = _NOTHING
    api_key: Raw = _NOTHING
    historical_migration: Raw = _NOTHING


_batch = msgspec.json.Decoder(BatchIn)
_loose = msgspec.json.Decoder(LooseIn)
_event = msgspec.json.Decoder(_LooseEventIn)
_members = msgspec.json.Decoder(dict[str, Raw])
_BLAME = {
    "event": Reason.MISSING_EVENT_NAME,
    "distinct_id": Reason.MALFORMED_DISTINCT_ID,
    "timestamp": Reason.INVALID_TIMESTAMP,
    "user_properties": Reason.MALFORMED_PROPERTIES,
}


def read_batch(body: bytes) -> tuple[BatchIn | LooseIn, list[Item]]:
    """What was sent once for all events, and each event. Raises Invalid when nothing of it can be read."""
    try:
        if len(body) > PAYLOAD_BYTES:
            elements(decoded(_loose, body).events, BATCH_MAX, "events")
        sent = decoded(_batch, body)
    except UNREADABLE:
        pass
    else:
        check_count(len(sent.events), BATCH_MAX, "events")
        return sent, [*sent.events]
    try:
        loose = decoded(_loose, body)
        return loose, [read_event(raw) for raw in elements(loose.events, BATCH_MAX, "events")]
    except UNREADABLE:
        _refuse_unknown_members(body)
        raise bad_json("The body is no JSON object with a list of `events`") from None


def read_event(raw: Raw) -> Item:
    """One event by itself."""
    try:
        return _alone(raw)
    except Refused as refused:
        return refused


def _alone(raw: Raw) -> EventIn | CutEvent:
    if len(raw) > PAYLOAD_BYTES:
        raise Refused(Reason.EVENT_TOO_LARGE)
    try:
        sent = _event.decode(raw)
        faults = unknown_names(sent.context or (), ContextIn.__struct_fields__, "context")
        if faults:
            raise Refused(Reason.UNKNOWN_FIELD, faults[:MOST])
        event = sent.tight()
        return event if sent.context is None or _fits(event.context, sent.context) else CutEvent(event)
    except msgspec.ValidationError as error:
        if faults := _unknown_members(raw):
            raise Refused(Reason.UNKNOWN_FIELD, faults) from None
        field = str(error).rpartition("`$.")[2].partition("`")[0].partition(".")[0]
        raise Refused(_BLAME.get(field, Reason.MALFORMED_EVENT)) from None
    except UNREADABLE:
        raise Refused(Reason.MALFORMED_EVENT) from None


def _fits(context: ContextIn | None, sent: dict[str, Any]) -> bool:
    """Whether a context holds all that was sent."""
    return all(getattr(context, name) == value for name, value in sent.items() if value != "")


def _refuse_unknown_members(body: bytes) -> None:
    """Raises Invalid, naming the members of a request that are not known, if there are any."""
    try:
        names = decoded(_members, body)
    except UNREADABLE:
        return
    if faults := unknown_names(names, BatchIn.__struct_fields__)[:MOST]:
        code = "INVALID" if "events" in names else "BAD_JSON"
        raise Invalid("The request has a member that is not known; nothing was kept.", code=code, faults=faults)


def _unknown_members(raw: Raw) -> list[Fault]:
    """The members of one event that are not known, in its context and its person's properties too."""
    try:
        found = _members.decode(raw)
    except UNREADABLE:
        return []
    faults = unknown_names(found, EventIn.__struct_fields__)
    for name, kind in (("context", ContextIn), ("user_properties", PersonIn)):
        with contextlib.suppress(*UNREADABLE):
            inside = _members.decode(found.get(name, b"{}"))
            faults += unknown_names(inside, kind.__struct_encode_fields__, name)
    return faults[:MOST]


def event_of(item: Item) -> EventIn | None:
    """The event itself; None where it is refused."""
    if isinstance(item, Refused):
        return None
    return item.event if isinstance(item, CutEvent) else item
