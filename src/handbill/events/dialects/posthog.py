"""PostHog's older wire format: many addresses, many shapes of body, one meaning.

A body may be plain JSON, a form with `data`, or base64, each packed or not; a GET carries it in the query. The answer
is 200 for whatever was taken, since its clients send everything again on any other success.
"""

from __future__ import annotations

import base64
import binascii
import functools
from collections.abc import Sequence

import msgspec
from msgspec import Raw

from handbill.events.dialects.bounded import elements
from handbill.events.dialects.canon import HISTORICAL, CapturedEvent, Dialect, Moment, Opened, Parsed, Refused, Terms
from handbill.events.dialects.collect import Warned, collected, each
from handbill.events.dialects.ids import event_id, record_id
from handbill.events.dialects.losses import cut_name
from handbill.events.dialects.posthog_event import (
    Desk,
    Head,
    Sent,
    captured,
    desk_of,
    opened,
    whose,
)
from handbill.events.dialects.reading import (
    BYTE_ORDER_MARK,
    Fields,
    bad_json,
    decoded,
    encode,
    fields_of,
    id_text,
    mended,
    plain,
    text,
)
from handbill.events.dialects.times import (
    FUTURE_MS,
    RequestTime,
    arrival,
    fixed,
    newest_uuid7,
    read_ms,
    read_us,
    request_time,
    sequence,
)
from handbill.events.dialects.unpack import Steps, unpacking
from handbill.events.model import IMPORTED
from handbill.events.reasons import Reason
from handbill.kit.errors import Fault, Invalid
from handbill.kit.fast import FastRequest
from handbill.kit.forms import parse_form
from handbill.kit.untrusted_json import UNREADABLE

_STEMS = ("/batch", "/capture", "/e", "/i/v0/e", "/track", "/engage")
PATHS = tuple(path for stem in _STEMS for path in (stem, stem + "/"))
METHODS = ("POST", "GET")
BODY_BYTES = 20 * 1024 * 1024
BATCH_MAX = 10_000
_KEYS = ("api_key", "token", "$token")
_KNOWN = frozenset(
    {"event", "distinct_id", "$distinct_id", "properties", "timestamp", "offset", "uuid", "$set", "$set_once", "$unset"}
) | {*_KEYS, "sent_at", "sentAt"}
_DIGESTED = ("event", "distinct_id", "$distinct_id", "$set", "$set_once", "$unset")
"""What names a record of history that has no id, beside its time and its properties."""
_OURS = ("hbw_", "hbs_")
"""How keys of ours begin. A query may have a `token` of its own that is none of them."""
_BROWSER = "web"
"""What posthog-js calls itself in `$lib`."""
_OBJECT, _LIST = 0x7B, 0x5B
_JSON = (_OBJECT, _LIST)
_raw = msgspec.json.Decoder(Raw)
_NOTHING = Raw(b"")

Query = dict[bytes, list[bytes]]
Item = Sent | Reason


class _Root(msgspec.Struct, frozen=True, rename={"dollar_token": "$token"}):
    """What may be said once for all events. A single event is its own root."""

    batch: Raw = _NOTHING
    api_key: Raw = _NOTHING
    token: Raw = _NOTHING
    dollar_token: Raw = _NOTHING
    sent_at: Raw = _NOTHING
    sentAt: Raw = _NOTHING
    historical_migration: Raw = _NOTHING


class _Whole(msgspec.Struct, frozen=True):
    """The request, opened: its events and what was said once for all of them."""

    items: list[Item]
    key: str | None
    sent_at: int | None
    historical: bool


_root = msgspec.json.Decoder(_Root)


def key_of(request: FastRequest) -> str | None:
    """The key in the query, if there is one of ours; None where only the body can have it. Raises Invalid."""
    found = _queried(_query(request.query))
    return found if found is not None and found.startswith(_OURS) else None


def open_posthog(request: FastRequest, body: bytes, moment: Moment) -> Opened:
    """Raises Invalid when nothing of the plain body can be read."""
    query = _query(request.query)
    body = mended(body).strip()
    if not body or body[0] not in _JSON:
        raise bad_json("The body holds no JSON object and no list")
    whole = _whole(body, query)

    def capture(terms: Terms) -> Parsed:
        time = _time(whole, query, moment.received)
        marks = (HISTORICAL,) if whole.historical else ()
        desk = desk_of(request, moment, terms, Dialect.POSTHOG, time, marks)
        default = "$identify" if request.path.rstrip("/") == "/engage" else None
        parsed = collected(Dialect.POSTHOG, whole.key, whole.items, functools.partial(_captured, desk, default))
        return msgspec.structs.replace(parsed, beacon=query.get(b"beacon") == [b"1"])

    return Opened(Dialect.POSTHOG, whole.key, len(whole.items), capture)


def read_history(parts: Sequence[Fields | Refused], moment: Moment, terms: Terms) -> Parsed:
    """Events of a file, in the words of PostHog's clients."""
    items = [part if isinstance(part, Refused) else _item(part) for part in parts]
    time = request_time(None, moment.received, (), is_history=True)
    desk = Desk(terms, moment, None, None, False, Dialect.POSTHOG, time, (IMPORTED,))
    return collected(Dialect.POSTHOG, None, items, functools.partial(_captured, desk, None))


def _item(fields: Fields) -> Sent | Refused:
    try:
        return opened(fields)
    except Refused as refused:
        return refused


def _query(query: bytes) -> Query:
    try:
        return parse_form(query, max_fields=100)
    except ValueError:
        raise bad_json("The query has too many fields, or is no query") from None


def _queried(query: Query) -> str | None:
    for name in (b"api_key", b"token"):
        if name in query:
            return query[name][0].decode("utf-8", "replace")
    return None


def body_of(request: FastRequest, inline: int) -> Steps[bytes]:
    """The plain body, out of a query, a form or base64 where it is in one. Raises Invalid, TooLarge or Unsupported."""
    encoding = request.headers.get(b"content-encoding", b"")
    body = request.body
    if request.method == "GET":
        body = b"".join(_query(request.query).get(b"data", ())[:1])
    body = yield from unpacking(body, BODY_BYTES, encoding, inline)
    body = body.strip()
    if body.startswith((b"data=", b"ip=", b"compression=", b"ver=", b"_=")):
        try:
            form = parse_form(body, max_fields=100)
        except ValueError:
            raise bad_json("The form has too many fields, or is no form") from None
        body = b"".join(form.get(b"data", ())[:1]).strip()
    body = body.removeprefix(BYTE_ORDER_MARK).strip()
    if body and body[0] not in _JSON:
        body = yield from unpacking(_unbase64(body), BODY_BYTES, inline=inline)
    return body


def _unbase64(body: bytes) -> bytes:
    """Lenient as browsers need it: either alphabet, pluses that a form made spaces, padding or none."""
    tidy = body.translate(bytes.maketrans(b"-_ ", b"+/+"), b"\r\n=")
    try:
        return base64.b64decode(tidy + b"=" * (-len(tidy) % 4), validate=True)
    except binascii.Error:
        raise bad_json("The body is neither JSON, nor a form, nor base64") from None


def _whole(body: bytes, query: Query) -> _Whole:
    root = _Root()
    try:
        if body[0] == _LIST:
            raws = elements(decoded(_raw, body), BATCH_MAX, "batch")
        else:
            body = bytes(decoded(_raw, body))
            root = _root.decode(body)
            raws = elements(root.batch, BATCH_MAX, "batch") if root.batch else [Raw(body)]
    except UNREADABLE:
        raise bad_json() from None
    items = each(_part, raws)
    sent_at = read_ms(plain(root.sent_at) or plain(root.sentAt))
    return _Whole(items, _key(root, items, query), sent_at, plain(root.historical_migration) is True)


def _part(raw: Raw) -> Sent:
    return opened(fields_of(raw))


def _key(root: _Root, items: list[Item], query: Query) -> str | None:
    """The key of ours in the query, else the one for all events, else the one that every event has, else the query's.

    Raises Invalid (TWO_KEYS) where the events name more than one.
    """
    queried = _queried(query)
    if queried is not None and queried.startswith(_OURS):
        return queried
    found = _first(root.api_key, root.token, root.dollar_token)
    if found is not None:
        return found
    keys = {key for item in items if isinstance(item, Sent) and (key := _said(item))}
    if len(keys) > 1:
        why = "names more than one project; send one request for each"
        raise Invalid("Nothing was kept.", code="TWO_KEYS", faults=[Fault("api_key", why)])
    return keys.pop() if keys else queried


def _first(*raws: Raw | None) -> str | None:
    values = (plain(raw) for raw in raws)
    return next((value for value in values if isinstance(value, str) and value), None)


def _said(item: Sent) -> str | None:
    return _first(*(item.fields.get(name) for name in _KEYS)) or text(item.inside.token)


def _time(whole: _Whole, query: Query, received: int) -> RequestTime:
    """By the query's `_`, which is new whenever a body is sent again, else by what the body says of its sending."""
    events = [item for item in whole.items if isinstance(item, Sent)]
    sent_at = None
    if b"_" in query and query[b"_"][0].isdigit():
        sent_at = read_ms(int(query[b"_"][0][:20]))
    if sent_at is None:
        sent_at = whole.sent_at
    if sent_at is None:
        times = (_sent_at(sent, received) for sent in events)
        sent_at = max((each for each in times if each is not None), default=None)
    ids = (id_text(sent.fields.get("uuid")) for sent in events)
    return request_time(sent_at, received, ids, is_history=whole.historical)


def _sent_at(sent: Sent, received: int) -> int | None:
    """When the client sent an event that tells its `$time` and how long ago that was; None for a far future."""
    at, offset = _own_time(sent), _offset(sent, received)
    if at is None or offset is None:
        return None
    sent_at = (at + offset) // 1000
    return sent_at if sent_at <= received + FUTURE_MS else None


def _own_time(sent: Sent) -> int | None:
    """`$time`, by the client's clock, in microseconds."""
    value = sent.inside.time
    return read_us(value) if type(value) in (int, float) else None


def _offset(sent: Sent, received: int) -> int | None:
    """How long before it was sent the event happened, in microseconds."""
    value = plain(sent.fields.get("offset"))
    if (type(value) is int or type(value) is float) and abs(value) < received:
        return round(value * 1000)
    return None


def _captured(desk: Desk, default: str | None, sent: Sent, index: int, warned: Warned) -> CapturedEvent:
    fields = sent.fields
    name = id_text(fields.get("event")) or default
    if name is None:
        raise Refused(Reason.MISSING_EVENT_NAME)
    found = id_text(fields.get("uuid"))
    rest = {key: raw for key, raw in fields.items() if key not in _KNOWN}
    extra = {"$extra": encode(rest)} if rest else {}
    at = _at(sent, desk, index, warned)
    identity = event_id(found) if found else _made_id(sent, desk, at)
    head = Head(identity, at, _sequence(sent, found, desk, index), cut_name(name, warned), whose(sent), extra)
    return captured(sent, head, desk, warned)


def _made_id(sent: Sent, desk: Desk, at: int) -> str:
    if not desk.time.is_history:
        return desk.moment.new_id()
    fields = sent.fields
    return record_id(desk.terms.tenant, at, [fields.get(name) for name in _DIGESTED], fields.get("properties"))


def _sequence(sent: Sent, uuid: str | None, desk: Desk, index: int) -> int:
    """posthog-js sends an event with options at once, and so before those that it queued in the same millisecond. Its
    ids are UUIDv7 whose digits rise from event to event, so those of one millisecond get one sequence: ids order them.
    """
    is_live_browser = sent.inside.lib == _BROWSER and not desk.time.is_history
    made = newest_uuid7((uuid,), desk.moment.received) if is_live_browser else None
    return desk.time.first_sequence + index if made is None else sequence(made, 0)


def _at(sent: Sent, desk: Desk, index: int, warned: Warned) -> int:
    """In microseconds. `$time` counts before `offset`: that of a body which is sent again still is the first one's."""
    time = desk.time
    ahead = 0 if sent.inside.ignore_sent_at is True else time.ahead
    stamp = plain(sent.fields.get("timestamp"))
    if stamp is not None and stamp != "":
        at = read_us(stamp)
        if at is not None:
            return fixed(at - ahead, time, index)
        if time.is_history:
            raise Refused(Reason.INVALID_TIMESTAMP)
        warned.append(Reason.TIME_UNREADABLE)
    at = _own_time(sent)
    if at is not None:
        return fixed(at - ahead, time, index)
    offset = _offset(sent, desk.moment.received)
    if offset is None or time.is_history:  # history says when it was, not how long ago
        return arrival(time, index)
    return fixed(time.received - offset, time, index)
