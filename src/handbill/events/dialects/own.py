"""Our own dialect: `POST /v1/events`, 1 to 500 events, strict, told event by event what was wrong.

One typed decode reads the whole batch; properties stay the bytes they came as. Only when that decode fails is the batch
taken apart, to find the events at fault and keep the others.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from handbill.events.dialects.bounded import check_count, elements
from handbill.events.dialects.canon import (
    NO_PROPERTIES,
    CapturedEvent,
    Dialect,
    Edge,
    Moment,
    Opened,
    Parsed,
    Refused,
    Terms,
)
from handbill.events.dialects.collect import Warned, collected
from handbill.events.dialects.ids import EDGES, distinct, edge, event_id
from handbill.events.dialects.reading import (
    PAYLOAD_BYTES,
    SMALL,
    WIDE,
    address,
    bad_json,
    check_size,
    decoded,
    encode,
    mended,
    merged,
    names_of,
    object_of,
    plain,
    screen,
    spliced,
    text,
    without_ip,
)
from handbill.events.dialects.times import RequestTime, fixed, read_ms, read_us, request_time
from handbill.events.dialects.unpack import Steps, unpacking
from handbill.events.reasons import Reason
from handbill.kit.errors import Fault, Invalid
from handbill.kit.fast import FastRequest
from handbill.kit.faults import MOST, unknown_names
from handbill.kit.forms import parse_form
from handbill.kit.report_ids import sequence_of_report
from handbill.kit.untrusted_json import UNREADABLE

PATH = "/v1/events"
BODY_BYTES = 5_000_000
BATCH_MAX = 500
NAME_CHARACTERS = 200
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


class _InsideIn(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={"set": "$set", "set_once": "$set_once", "unset": "$unset", "anon": "$anon_distinct_id"},
):
    """The few names inside properties that mean something to us."""

    set: Raw = _NOTHING
    set_once: Raw = _NOTHING
    unset: Raw = _NOTHING
    anon: Any = None
    alias: Any = None


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


class _BatchIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    events: list[EventIn]
    sent_at: Raw = _NOTHING
    api_key: Raw = _NOTHING


class _LooseIn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    events: Raw
    sent_at: Raw = _NOTHING
    api_key: Raw = _NOTHING


class Desk(msgspec.Struct, frozen=True):
    """What every event of one request has in common."""

    tenant: int
    truncate: bool
    moment: Moment
    received: int
    time: RequestTime
    ip: str | None
    user_agent: str | None
    large: bool  # only in a large body can one event be too large


_batch = msgspec.json.Decoder(_BatchIn)
_loose = msgspec.json.Decoder(_LooseIn)
_event = msgspec.json.Decoder(_LooseEventIn)
_members = msgspec.json.Decoder(dict[str, Raw])
_inside = msgspec.json.Decoder(_InsideIn)
_NO_CONTEXT = ContextIn()
_NO_INSIDE = _InsideIn()
_BLAME = {
    "event": Reason.MISSING_EVENT_NAME,
    "distinct_id": Reason.MALFORMED_DISTINCT_ID,
    "timestamp": Reason.INVALID_TIMESTAMP,
    "user_properties": Reason.MALFORMED_PROPERTIES,
}


def key_of(request: FastRequest) -> str | None:
    """The key outside the body; None where only the body can have it."""
    headers = request.headers
    named = headers.get(b"x-api-key") or headers.get(b"x-write-key")
    return named.decode("latin-1") if named else _queried(request.query)


def body_of(request: FastRequest, inline: int) -> Steps[bytes]:
    """The plain body. Raises Invalid, TooLarge or Unsupported."""
    return unpacking(request.body, BODY_BYTES, request.headers.get(b"content-encoding", b""), inline)


def open_own(request: FastRequest, body: bytes, moment: Moment) -> Opened:
    """Raises Invalid when nothing of the plain body can be read."""
    headers = request.headers
    body = mended(body)
    sent, events = _read(body)
    key = key_of(request) or text(plain(sent.api_key))

    def capture(terms: Terms) -> Parsed:
        received = moment.received
        ids = (each.event_id for each in events if not isinstance(each, Refused))
        time = request_time(read_ms(plain(sent.sent_at)), received, ids)
        ip = address(request.client_ip, terms.truncate_ip)
        agent = text(headers.get(b"user-agent", b"").decode("utf-8", "replace"), WIDE)
        large = len(body) > PAYLOAD_BYTES
        desk = Desk(terms.tenant, terms.truncate_ip, moment, received, time, ip, agent, large)
        return collected(Dialect.OWN, key, events, functools.partial(captured, desk))

    return Opened(Dialect.OWN, key, len(events), capture)


def _queried(query: bytes) -> str | None:
    """A beacon cannot have headers."""
    if b"write_key=" not in query:
        return None
    try:
        found = parse_form(query, max_fields=100).get(b"write_key")
    except ValueError:
        return None
    return found[0].decode("utf-8", "replace") if found else None


def _read(body: bytes) -> tuple[_BatchIn | _LooseIn, list[EventIn | Refused]]:
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
        return loose, [_tried(raw) for raw in elements(loose.events, BATCH_MAX, "events")]
    except UNREADABLE:
        _refuse_unknown_members(body)
        raise bad_json("The body is no JSON object with a list of `events`") from None


def _tried(raw: Raw) -> EventIn | Refused:
    try:
        return _alone(raw)
    except Refused as refused:
        return refused


def _alone(raw: Raw) -> EventIn:
    if len(raw) > PAYLOAD_BYTES:
        raise Refused(Reason.EVENT_TOO_LARGE)
    try:
        sent = _event.decode(raw)
        faults = unknown_names(sent.context or (), ContextIn.__struct_fields__, "context")
        if faults:
            raise Refused(Reason.UNKNOWN_FIELD, faults[:MOST])
        return sent.tight()
    except msgspec.ValidationError as error:
        if faults := _unknown_members(raw):
            raise Refused(Reason.UNKNOWN_FIELD, faults) from None
        field = str(error).rpartition("`$.")[2].partition("`")[0].partition(".")[0]
        raise Refused(_BLAME.get(field, Reason.MALFORMED_EVENT)) from None
    except UNREADABLE:
        raise Refused(Reason.MALFORMED_EVENT) from None


def _refuse_unknown_members(body: bytes) -> None:
    """Raises Invalid, naming the members of a request that are not known, if there are any."""
    try:
        names = decoded(_members, body)
    except UNREADABLE:
        return
    if faults := unknown_names(names, _BatchIn.__struct_fields__)[:MOST]:
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


def captured(desk: Desk, sent: EventIn, index: int, warned: Warned) -> CapturedEvent:
    name = sent.event
    if not name:
        raise Refused(Reason.MISSING_EVENT_NAME)
    if len(name) > NAME_CHARACTERS:
        raise Refused(Reason.EVENT_NAME_TOO_LONG)
    whose = sent.distinct_id
    if whose is None:
        raise Refused(Reason.MISSING_DISTINCT_ID)
    whose = distinct(whose if type(whose) is str else str(whose))
    properties = object_of(sent.properties) or NO_PROPERTIES
    # A name of ours begins with a dollar; most properties have none and are not looked into.
    inside = _look(properties) if b'"$' in properties or name in EDGES else _NO_INSIDE
    changes = _changes(sent.user_properties, inside)
    bond = None
    if name in EDGES:
        bond = _edge(name, sent, inside, whose, warned)
    elif sent.anonymous_id is not None:
        properties = spliced(properties, {"$anonymous_id": encode(sent.anonymous_id)})
    if desk.large:
        check_size(properties, *changes)
    if desk.truncate:
        properties = without_ip(properties)
        changes = changes[0] and without_ip(changes[0]), changes[1] and without_ip(changes[1]), changes[2]
    there = sent.context or _NO_CONTEXT
    at = _at(sent.timestamp, desk.time, index)
    return CapturedEvent(
        desk.tenant,
        event_id(sent.event_id) if sent.event_id else desk.moment.new_id(),
        at // 1000,
        desk.received,
        name,
        whose,
        "own",
        properties,
        *changes,
        bond,
        there.session_id or None,
        address(there.ip, desk.truncate) if there.ip else desk.ip,
        there.user_agent or desk.user_agent,
        there.url or None,
        there.referrer or None,
        there.browser or None,
        there.browser_version or None,
        there.os or None,
        there.os_version or None,
        there.device_type or None,
        screen(there.screen_width),
        screen(there.screen_height),
        there.language or None,
        there.timezone or None,
        there.lib or None,
        (),
        at % 1000,
        sequence_of_report(sent.event_id or "", desk.received) or desk.time.first_sequence + index,
    )


def _at(timestamp: str | int | float | None, time: RequestTime, index: int) -> int:
    """In microseconds."""
    if timestamp is None:
        return time.received + index
    at = read_us(timestamp)
    if at is None:
        raise Refused(Reason.INVALID_TIMESTAMP)
    return fixed(at - time.ahead, time, index)


def _look(properties: bytes) -> _InsideIn:
    try:
        return _inside.decode(properties)
    except UNREADABLE:
        raise Refused(Reason.MALFORMED_PROPERTIES) from None


def _changes(person: PersonIn | None, inside: _InsideIn) -> tuple[bytes | None, bytes | None, bytes | None]:
    """$set, $set_once and $unset from either place; where both have a name, `user_properties` stands."""
    if inside is _NO_INSIDE:
        if person is None:
            return None, None, None
        unset = names_of([plain(person.unset)]) if person.unset else None
        return object_of(person.set), object_of(person.set_once), unset
    outer = person or PersonIn()
    return (
        merged(object_of(inside.set), object_of(outer.set)),
        merged(object_of(inside.set_once), object_of(outer.set_once)),
        names_of([plain(raw) for raw in (inside.unset, outer.unset) if raw]),
    )


def _edge(name: str, sent: EventIn, inside: _InsideIn, whose: str, warned: Warned) -> Edge | None:
    if name == "$identify":
        other = inside.anon if sent.anonymous_id is None else sent.anonymous_id
    else:
        other = sent.anonymous_id if inside.alias is None else inside.alias
    if other is None or other == "":
        return None
    try:
        return edge(EDGES[name], str(other), whose)
    except Refused as refused:
        warned.append(refused.reason)
        return None
