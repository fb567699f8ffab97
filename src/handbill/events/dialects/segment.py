"""Segment's wire format, which RudderStack shares: batches, and one address for each type of message."""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from handbill.events.dialects.bounded import elements
from handbill.events.dialects.canon import (
    HISTORICAL,
    NO_PROPERTIES,
    CapturedEvent,
    Dialect,
    Edge,
    EdgeKind,
    Moment,
    Opened,
    Parsed,
    Refused,
    Terms,
)
from handbill.events.dialects.collect import Warned, collected, each
from handbill.events.dialects.ids import distinct, edge, event_id, record_id
from handbill.events.dialects.losses import cut_name, warn_of_losses
from handbill.events.dialects.reading import (
    SMALL,
    WIDE,
    Fields,
    address,
    bad_json,
    check_size,
    decoded,
    encode,
    fields_of,
    id_text,
    mended,
    number_or_text,
    object_of,
    plain,
    screen,
    spliced,
    text,
    without_ip,
)
from handbill.events.dialects.senders import Sender, is_persons_agent, sender_of
from handbill.events.dialects.times import RequestTime, arrival, read_ms, read_us, request_time, skew
from handbill.events.dialects.unpack import Steps, unpacking
from handbill.events.dialects.utm import utm_properties
from handbill.events.model import IMPORTED
from handbill.events.reasons import Reason
from handbill.kit.fast import FastRequest
from handbill.kit.forms import parse_form
from handbill.kit.untrusted_json import UNREADABLE

TYPES = ("track", "identify", "page", "screen", "group", "alias")
IMPORT = "/v1/import"
"""The address for history: events of any age."""
BATCHES = ("/v1/batch", "/v1/b", IMPORT, "/beacon/v1/batch")
SINGLES = {f"/v1/{word}": kind for kind in TYPES for word in (kind, kind[0])}
"""Servers write the type out; browsers write its first letter."""
PATHS = (*BATCHES, *SINGLES)
BODY_BYTES = 500 * 1024
MESSAGE_BYTES = 32 * 1024
BATCH_MAX = 5_000
_NAMES = {
    "identify": "$identify",
    "page": "$pageview",
    "screen": "$screen",
    "group": "$groupidentify",
    "alias": "$create_alias",
}
_KNOWN = frozenset({
    "type", "event", "userId", "anonymousId", "previousId", "groupId", "properties", "traits", "context",
    "integrations", "timestamp", "originalTimestamp", "sentAt", "messageId", "name", "category", "writeKey",
})  # fmt: skip
_DIGESTED = (
    "type", "event", "userId", "anonymousId", "previousId", "groupId", "name", "category", "properties", "traits",
)  # fmt: skip
"""What names a record of history that has no id, beside its time."""
_NOTHING = Raw(b"")


class _Root(msgspec.Struct, frozen=True):
    """What may be said once for all messages. A single message is its own root."""

    batch: Raw = _NOTHING
    writeKey: Raw = _NOTHING
    sentAt: Raw = _NOTHING
    context: Raw = _NOTHING


class _Context(msgspec.Struct, frozen=True):
    """The parts of a context that have a place of their own with us; each may be anything at all."""

    ip: Any = None
    userAgent: Any = None
    locale: Any = None
    timezone: Any = None
    sessionId: Any = None
    page: Any = None
    os: Any = None
    device: Any = None
    screen: Any = None
    library: Any = None
    campaign: Any = None
    traits: Raw = _NOTHING


class _Desk(msgspec.Struct, frozen=True):
    """What every message of one request has in common."""

    terms: Terms
    moment: Moment
    time: RequestTime
    times: list[int | None]
    sequences: list[int]
    ip: str | None
    user_agent: str | None
    is_persons: bool  # the user agent is that of a browser or an app
    context: Raw  # of messages that bring none
    only: str | None  # the type that the address names
    marks: tuple[str, ...] = ()


_root = msgspec.json.Decoder(_Root)
_raw = msgspec.json.Decoder(Raw)
_context = msgspec.json.Decoder(_Context)
_NO_CONTEXT = _Context()


def key_of(request: FastRequest) -> str | None:
    """The key outside the body; None where only the body can have it."""
    return _basic(request.headers.get(b"authorization", b"")) or _queried(request.query)


def body_of(request: FastRequest, inline: int) -> Steps[bytes]:
    """The plain body. Raises Invalid, TooLarge or Unsupported."""
    return unpacking(request.body, BODY_BYTES, request.headers.get(b"content-encoding", b""), inline)


def open_segment(request: FastRequest, body: bytes, moment: Moment) -> Opened:
    """Raises Invalid when nothing of the plain body can be read."""
    headers = request.headers
    body = mended(body).strip()
    only = SINGLES.get(request.path)
    try:
        body = bytes(decoded(_raw, body))
        root = _root.decode(body)
        raws = [Raw(body)] if only else elements(root.batch, BATCH_MAX, "batch")
    except UNREADABLE:
        raise bad_json() from None
    items = each(_part, raws)
    key = key_of(request) or text(plain(root.writeKey)) or _inner(items)

    def capture(terms: Terms) -> Parsed:
        agent = text(headers.get(b"user-agent", b"").decode("utf-8", "replace"), WIDE)
        ip = address(request.client_ip, terms.truncate_ip)
        sent_at = read_ms(plain(root.sentAt))
        time = _time(sent_at, items, moment.received, is_history=request.path == IMPORT)
        times = [_at(item, sent_at, time) for item in items]
        sequences = _sequences(times, time)
        marks = (HISTORICAL,) if time.is_history else ()
        if time.is_history:  # who brings history is not who made it
            ip = agent = None
        is_persons = is_persons_agent(agent)
        desk = _Desk(terms, moment, time, times, sequences, ip, agent, is_persons, root.context, only, marks)
        return collected(Dialect.SEGMENT, key, items, functools.partial(_captured, desk))

    return Opened(Dialect.SEGMENT, key, len(items), capture)


def read_history(items: Sequence[Fields | Refused], moment: Moment, terms: Terms) -> Parsed:
    """Messages of a file, each with its own `type`."""
    time = request_time(None, moment.received, (), is_history=True)
    times = [None if isinstance(item, Refused) else _at(item, None, time) for item in items]
    sequences = _sequences(times, time)
    desk = _Desk(terms, moment, time, times, sequences, None, None, False, _NOTHING, None, (IMPORTED,))
    return collected(Dialect.SEGMENT, None, items, functools.partial(_captured, desk))


def _basic(authorization: bytes) -> str | None:
    """The write key as the user of Basic authentication; the password is empty, or anything."""
    scheme, _, packed = authorization.strip().partition(b" ")
    if scheme.lower() != b"basic":
        return None
    try:
        user = base64.b64decode(packed.strip(), validate=True).partition(b":")[0]
    except binascii.Error:
        return None
    return user.decode("utf-8", "replace").strip() or None


def _queried(query: bytes) -> str | None:
    """A beacon has neither headers nor a key in its body."""
    try:
        found = parse_form(query, max_fields=100).get(b"writeKey")
    except ValueError:
        return None
    return found[0].decode("utf-8", "replace") if found else None


def _inner(items: list[Fields | Reason]) -> str | None:
    """Some clients write the key into each message; the first one that has it speaks for all."""
    keys = (text(plain(item.get("writeKey"))) for item in items if not isinstance(item, Reason))
    return next((key for key in keys if key), None)


def _time(sent_at: int | None, items: list[Fields | Reason], received: int, *, is_history: bool = False) -> RequestTime:
    """By the batch's `sentAt`, else by the greatest of its messages': one for all, so that positions order them."""
    messages = [item for item in items if not isinstance(item, Reason)]
    if sent_at is None:
        times = (_sent_at(fields) for fields in messages)
        sent_at = max((each for each in times if each is not None), default=None)
    ids = (id_text(fields.get("messageId")) for fields in messages)
    return request_time(sent_at, received, ids, is_history=is_history)


def _sent_at(fields: Fields) -> int | None:
    return read_ms(plain(fields.get("sentAt")))


def _part(raw: Raw) -> Fields:
    if len(raw) > MESSAGE_BYTES:
        raise Refused(Reason.EVENT_TOO_LARGE)
    return fields_of(raw)


def _captured(desk: _Desk, fields: Fields, index: int, warned: Warned) -> CapturedEvent:
    kind = desk.only or plain(fields.get("type"))
    if kind not in TYPES:
        raise Refused(Reason.UNKNOWN_TYPE)
    user, anonymous = id_text(fields.get("userId")), id_text(fields.get("anonymousId"))
    said = user or anonymous
    if said is None:
        raise Refused(Reason.MISSING_DISTINCT_ID)
    whose = distinct(said)
    found = id_text(fields.get("messageId"))
    context = fields.get("context") or desk.context
    there = _there(context)
    properties = _properties(
        kind, fields, context if there is not _NO_CONTEXT else None, desk, utm_properties(_dict(there.campaign))
    )
    traits = _traits(fields, there) if kind == "identify" else None
    check_size(properties, traits)
    warn_of_losses(properties, (traits, None, None), warned)
    page, system, device, display, library = (
        _dict(part) for part in (there.page, there.os, there.device, there.screen, there.library)
    )
    lib = text(library.get("name"), SMALL, warned)
    is_persons = sender_of(None, lib, is_persons=desk.is_persons) is Sender.PERSON
    at = desk.times[index]
    if at is None:
        at = arrival(desk.time, index)
        if (stamp := _stamp(fields)) and read_us(stamp) is None:
            warned.append(Reason.TIME_UNREADABLE)
    return CapturedEvent(
        tenant=desk.terms.tenant,
        id=event_id(found) if found else _made_id(fields, desk, at),
        at=at // 1000,
        received=desk.moment.received,
        name=_name(kind, fields, warned),
        distinct_id=whose,
        dialect=Dialect.SEGMENT.value,
        properties=properties,
        set=traits,
        edge=_edge(kind, fields, user, anonymous, whose, warned),
        session=number_or_text(there.sessionId, warned),
        ip=address(there.ip, desk.terms.truncate_ip) or (desk.ip if is_persons else None),
        user_agent=text(there.userAgent, WIDE, warned) or (desk.user_agent if is_persons else None),
        url=text(page.get("url"), WIDE, warned),
        referrer=text(page.get("referrer"), WIDE, warned),
        os=text(system.get("name"), SMALL, warned),
        os_version=number_or_text(system.get("version"), warned),
        device_type=text(device.get("type"), SMALL, warned),
        screen_width=screen(display.get("width")),
        screen_height=screen(display.get("height")),
        language=text(there.locale, SMALL, warned),
        timezone=text(there.timezone, SMALL, warned),
        lib=lib,
        marks=desk.marks,
        micros=at % 1000,
        sequence=desk.sequences[index],
    )


def _made_id(fields: Fields, desk: _Desk, at: int) -> str:
    if not desk.time.is_history:
        return desk.moment.new_id()
    return record_id(desk.terms.tenant, at, [fields.get(name) for name in _DIGESTED])


def _traits(fields: Fields, context: _Context) -> bytes | None:
    """Where RudderStack's clients write them in an identify: in its context, with no `traits` beside it."""
    own = object_of(fields.get("traits"))
    if own is not None and own[1:-1].strip():
        return own
    inside = bytes(context.traits)
    return inside if inside.startswith(b"{") else own


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _there(raw: Raw | None) -> _Context:
    if not raw:
        return _NO_CONTEXT
    try:
        return _context.decode(raw)
    except UNREADABLE:
        return _NO_CONTEXT


def _name(kind: str, fields: Fields, warned: Warned) -> str:
    if kind != "track":
        return _NAMES[kind]
    name = id_text(fields.get("event"))
    if name is None:
        raise Refused(Reason.MISSING_EVENT_NAME)
    return cut_name(name, warned)


def _properties(kind: str, fields: Fields, context: Raw | None, desk: _Desk, extra: dict[str, bytes]) -> bytes:
    """The message's own properties, and beside them whatever else it said: nothing that was sent is lost."""
    own = object_of(fields.get("properties")) or NO_PROPERTIES
    for name, known in (("groupId", "$group_key"), ("name", "$name"), ("category", "$category")):
        if name in fields:
            extra[known] = bytes(fields[name])
    if kind != "identify" and (traits := object_of(fields.get("traits"))):
        extra["$group_set" if kind == "group" else "$traits"] = traits
    if "previousId" in fields:
        extra["alias"] = bytes(fields["previousId"])
    if "anonymousId" in fields:
        extra["$anonymous_id"] = bytes(fields["anonymousId"])
    if context:
        extra["$context"] = without_ip(bytes(context), "ip") if desk.terms.truncate_ip else bytes(context)
    if "integrations" in fields:
        extra["$integrations"] = bytes(fields["integrations"])
    rest = {key: raw for key, raw in fields.items() if key not in _KNOWN}
    if rest:
        extra["$extra"] = encode(rest)
    return spliced(own, extra) if extra else own


def _at(item: Fields | Reason, batch_sent_at: int | None, time: RequestTime) -> int | None:
    """What the message says of its time, in microseconds; its own `sentAt` counts before the batch's."""
    if isinstance(item, Reason):
        return None
    if time.is_history:  # Segment's own correction, of the client's clock against its servers'
        at = read_us(plain(item.get("timestamp")) or plain(item.get("originalTimestamp")))
        return at if at is not None and 0 <= at <= time.latest else None
    stamp = _stamp(item)
    at = read_us(stamp) if stamp else None
    if at is None:
        return None
    sent_at = _sent_at(item)
    at -= skew(batch_sent_at if sent_at is None else sent_at, time.received // 1000)
    return None if at > time.latest else max(at, 0)


def _stamp(fields: Fields) -> Any:
    return plain(fields.get("originalTimestamp")) or plain(fields.get("timestamp"))


def _sequences(times: list[int | None], time: RequestTime) -> list[int]:
    """By position; and of requests that were sent in one millisecond, the one comes first whose events are earlier.

    Node's clients of Segment and RudderStack send several batches at once, cut anywhere among the calls of one
    millisecond. These are the last calls of one batch, all of the next ones, and the first of another.
    """
    first = time.first_sequence
    known = {at for at in times if at is not None}
    if not first or time.is_history or len(known) < 2:
        return [first + index for index in range(len(times))]
    shifts = {min(known): BATCH_MAX, max(known): -BATCH_MAX}
    return [first + index + (0 if at is None else shifts.get(at, 0)) for index, at in enumerate(times)]


def _edge(
    kind: str, fields: Fields, user: str | None, anonymous: str | None, whose: str, warned: Warned
) -> Edge | None:
    if user is None or kind not in ("identify", "alias"):
        return None
    other = anonymous if kind == "identify" else id_text(fields.get("previousId"))
    if other is None:
        return None
    try:
        return edge(EdgeKind.IDENTIFY if kind == "identify" else EdgeKind.ALIAS, other, whose)
    except Refused as refused:
        warned.append(refused.reason)
        return None
