"""Our own dialect: `POST /v1/events`, 1 to 500 events, strict, told event by event what was wrong.

Properties stay the bytes they came as.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from handbill.events.dialects.canon import (
    HISTORICAL,
    NO_PROPERTIES,
    PERSONLESS,
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
from handbill.events.dialects.ids import EDGES, distinct, edge, event_id, record_id
from handbill.events.dialects.losses import warn_of_losses
from handbill.events.dialects.own_wire import ContextIn, CutEvent, EventIn, PersonIn, event_of, read_batch, read_event
from handbill.events.dialects.profiles import Changes, without_profile
from handbill.events.dialects.reading import (
    PAYLOAD_BYTES,
    WIDE,
    address,
    check_size,
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
from handbill.events.dialects.senders import Sender, is_persons_agent, sender_of
from handbill.events.dialects.times import RequestTime, arrival, fixed, read_ms, read_us, request_time
from handbill.events.dialects.unpack import Steps, unpacking
from handbill.events.model import IMPORTED
from handbill.events.reasons import Reason
from handbill.kit.fast import FastRequest
from handbill.kit.forms import parse_form
from handbill.kit.report_ids import sequence_of_report
from handbill.kit.untrusted_json import UNREADABLE

PATH = "/v1/events"
BODY_BYTES = 5_000_000
NAME_CHARACTERS = 200
_NOTHING = Raw(b"")


class _InsideIn(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={
        "set": "$set",
        "set_once": "$set_once",
        "unset": "$unset",
        "anon": "$anon_distinct_id",
        "is_server": "$is_server",
        "profile": "$process_person_profile",
    },
):
    """The few names inside properties that mean something to us."""

    set: Raw = _NOTHING
    set_once: Raw = _NOTHING
    unset: Raw = _NOTHING
    anon: Any = None
    alias: Any = None
    is_server: Any = None
    profile: Any = None


class Desk(msgspec.Struct, frozen=True):
    """What every event of one request has in common."""

    tenant: int
    truncate: bool
    moment: Moment
    received: int
    time: RequestTime
    ip: str | None
    user_agent: str | None
    is_persons: bool  # the user agent is that of a browser or an app
    large: bool  # only in a large body can one event be too large
    marks: tuple[str, ...] = ()


_inside = msgspec.json.Decoder(_InsideIn)
_NO_CONTEXT = ContextIn()
_NO_INSIDE = _InsideIn()


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
    sent, events = read_batch(body)
    key = key_of(request) or text(plain(sent.api_key))

    def capture(terms: Terms) -> Parsed:
        received = moment.received
        ids = (each.event_id for each in map(event_of, events) if each is not None)
        is_history = plain(sent.historical_migration) is True
        time = request_time(read_ms(plain(sent.sent_at)), received, ids, is_history=is_history)
        ip = address(request.client_ip, terms.truncate_ip)
        agent = text(headers.get(b"user-agent", b"").decode("utf-8", "replace"), WIDE)
        large = len(body) > PAYLOAD_BYTES
        marks = (HISTORICAL,) if is_history else ()
        if is_history:  # who brings history is not who made it
            ip = agent = None
        is_persons = is_persons_agent(agent)
        desk = Desk(terms.tenant, terms.truncate_ip, moment, received, time, ip, agent, is_persons, large, marks)
        return collected(Dialect.OWN, key, events, functools.partial(_captured, desk))

    return Opened(Dialect.OWN, key, len(events), capture)


def read_history(parts: Sequence[Raw | Refused], moment: Moment, terms: Terms) -> Parsed:
    """Events of a file, each an element of `events`."""
    items = [part if isinstance(part, Refused) else read_event(part) for part in parts]
    time = request_time(None, moment.received, (), is_history=True)
    desk = Desk(terms.tenant, terms.truncate_ip, moment, moment.received, time, None, None, False, True, (IMPORTED,))
    return collected(Dialect.OWN, None, items, functools.partial(_captured, desk))


def _queried(query: bytes) -> str | None:
    """A beacon cannot have headers."""
    if b"write_key=" not in query:
        return None
    try:
        found = parse_form(query, max_fields=100).get(b"write_key")
    except ValueError:
        return None
    return found[0].decode("utf-8", "replace") if found else None


def _captured(desk: Desk, item: EventIn | CutEvent, index: int, warned: Warned) -> CapturedEvent:
    if isinstance(item, CutEvent):
        warned.append(Reason.CONTEXT_CUT)
        item = item.event
    return captured(desk, item, index, warned)


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
    marks = desk.marks
    if inside.profile is False:
        changes, bond, marks = without_profile(name, changes, bond, warned), None, (*marks, PERSONLESS)
    if desk.large:
        check_size(properties, *changes)
    warn_of_losses(properties, changes, warned)
    if desk.truncate:
        properties = without_ip(properties)
        changes = changes[0] and without_ip(changes[0]), changes[1] and without_ip(changes[1]), changes[2]
    there = sent.context or _NO_CONTEXT
    lib = there.lib or None
    is_persons = sender_of(inside.is_server, lib, is_persons=desk.is_persons) is Sender.PERSON
    at = _at(sent.timestamp, desk.time, index)
    return CapturedEvent(
        desk.tenant,
        event_id(sent.event_id) if sent.event_id else _made_id(desk, sent, at),
        at // 1000,
        desk.received,
        name,
        whose,
        "own",
        properties,
        *changes,
        bond,
        there.session_id or None,
        address(there.ip, desk.truncate) if there.ip else desk.ip if is_persons else None,
        there.user_agent or (desk.user_agent if is_persons else None),
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
        lib,
        marks,
        at % 1000,
        sequence_of_report(sent.event_id or "", desk.received) or desk.time.first_sequence + index,
    )


def _made_id(desk: Desk, sent: EventIn, at: int) -> str:
    if not desk.time.is_history:
        return desk.moment.new_id()
    ids = encode([sent.event, sent.distinct_id, sent.anonymous_id, sent.context and sent.context.session_id])
    person = sent.user_properties or PersonIn()
    return record_id(desk.tenant, at, ids, sent.properties, [person.set, person.set_once, person.unset])


def _at(timestamp: str | int | float | None, time: RequestTime, index: int) -> int:
    """In microseconds."""
    if timestamp is None:
        return arrival(time, index)
    at = read_us(timestamp)
    if at is None:
        raise Refused(Reason.INVALID_TIMESTAMP)
    return fixed(at - time.ahead, time, index)


def _look(properties: bytes) -> _InsideIn:
    try:
        return _inside.decode(properties)
    except UNREADABLE:
        raise Refused(Reason.MALFORMED_PROPERTIES) from None


def _changes(person: PersonIn | None, inside: _InsideIn) -> Changes:
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
