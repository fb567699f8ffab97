"""PostHog's newer wire format: one address, typed headers, a word back about every event by its uuid."""

from __future__ import annotations

import functools
from typing import Any

import msgspec
from msgspec import Raw

from handbill.events.dialects.bounded import elements
from handbill.events.dialects.canon import HISTORICAL, CapturedEvent, Dialect, Moment, Opened, Parsed, Refused, Terms
from handbill.events.dialects.collect import Warned, collected, each
from handbill.events.dialects.ids import event_id
from handbill.events.dialects.posthog_event import NAME_CHARACTERS, Desk, Head, Sent, captured, desk_of, opened, whose
from handbill.events.dialects.reading import (
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
from handbill.events.dialects.times import fixed, read_ms, read_us, request_time
from handbill.events.dialects.unpack import Steps, unpacking
from handbill.events.reasons import Reason
from handbill.kit.errors import Fault, Invalid, Unsupported
from handbill.kit.fast import FastRequest
from handbill.kit.untrusted_json import UNREADABLE

PATH = "/i/v1/analytics/events"
BODY_BYTES = 20 * 1024 * 1024
BATCH_MAX = 10_000
HEADERS = (b"posthog-sdk-info", b"posthog-attempt", b"posthog-request-id", b"posthog-request-timestamp")
_ENCODINGS = frozenset({b"", b"identity", b"gzip", b"deflate", b"zstd"})
_KNOWN = frozenset(
    {"event", "uuid", "distinct_id", "timestamp", "options", "properties", "$set", "$set_once", "$unset"}
    | {"session_id", "window_id"}
)
_NOTHING = Raw(b"")


class _Root(msgspec.Struct, frozen=True):
    batch: Raw
    created_at: Raw = _NOTHING
    historical_migration: Raw = _NOTHING


class _Options(msgspec.Struct, frozen=True):
    cookieless_mode: bool | None = None
    disable_skew_correction: bool | None = None
    process_person_profile: bool | None = None
    product_tour_id: str | None = None


class _Item(msgspec.Struct, frozen=True):
    sent: Sent
    options: _Options


_root = msgspec.json.Decoder(_Root)
_options = msgspec.json.Decoder(_Options)
_NO_OPTIONS = _Options()


def key_of(request: FastRequest) -> str:
    """The key, empty where there is none: it is never in the body. Raises Invalid (MISSING_HEADERS)."""
    headers = request.headers
    missing = [name.decode() for name in HEADERS if not headers.get(name)]
    if missing:
        faults = [Fault(name, "is missing") for name in missing]
        raise Invalid("Nothing was kept.", code="MISSING_HEADERS", faults=faults)
    return bearer(headers.get(b"authorization", b"")) or ""


def body_of(request: FastRequest, inline: int) -> Steps[bytes]:
    """The plain body. Raises Invalid, TooLarge or Unsupported."""
    encoding = request.headers.get(b"content-encoding", b"").strip().lower()
    if encoding not in _ENCODINGS:
        raise Unsupported("This content encoding is not read here; send gzip, deflate or zstd.")
    return unpacking(request.body, BODY_BYTES, encoding, inline)


def open_posthog_v1(request: FastRequest, body: bytes, moment: Moment) -> Opened:
    """Raises Invalid when nothing of the plain body can be read."""
    headers = request.headers
    key = key_of(request) or None
    body = mended(body).strip()
    try:
        root = decoded(_root, body)
        raws = elements(root.batch, BATCH_MAX, "batch")
    except UNREADABLE:
        raise bad_json() from None
    found = each(fields_of, raws)
    uuids = [_uuid(fields) for fields in found]
    items = _marked(each(_part, found), uuids)
    stamp = headers[b"posthog-request-timestamp"].decode("latin-1")
    sdk = headers[b"posthog-sdk-info"].decode("utf-8", "replace")

    def capture(terms: Terms) -> Parsed:
        sent_at = read_ms(stamp)
        sent_at = read_ms(plain(root.created_at)) if sent_at is None else sent_at
        is_history = plain(root.historical_migration) is True
        time = request_time(sent_at, moment.received, uuids, is_history=is_history)
        marks = (HISTORICAL,) if is_history else ()
        desk = desk_of(request, moment, terms, Dialect.POSTHOG_V1, time, marks)
        parsed = collected(Dialect.POSTHOG_V1, key, items, functools.partial(_captured, desk, sdk))
        return msgspec.structs.replace(parsed, ids=uuids)

    return Opened(Dialect.POSTHOG_V1, key, len(items), capture)


def bearer(authorization: bytes) -> str | None:
    scheme, _, key = authorization.decode("latin-1").strip().partition(" ")
    return key.strip() or None if scheme.lower() == "bearer" else None


def _uuid(fields: Fields | Reason) -> str | None:
    found = None if isinstance(fields, Reason) else plain(fields.get("uuid"))
    return found.strip() or None if isinstance(found, str) else None


def _part(fields: Fields | Reason) -> _Item:
    if isinstance(fields, Reason):
        raise Refused(fields)
    return _Item(opened(fields), _read_options(fields.get("options")))


def _read_options(raw: Raw | None) -> _Options:
    if not raw or raw == Raw(b"null"):
        return _NO_OPTIONS
    try:
        return _options.decode(raw)
    except UNREADABLE:
        raise Refused(Reason.INVALID_OPTIONS) from None


def _marked(items: list[_Item | Reason], uuids: list[str | None]) -> list[_Item | Reason]:
    """The same items, where the second and later bearers of one uuid are refused."""
    seen: set[str] = set()
    found: list[_Item | Reason] = []
    for item, uuid in zip(items, uuids, strict=True):
        found.append(Reason.DUPLICATE_EVENT_UUID if uuid in seen and isinstance(item, _Item) else item)
        if uuid is not None and isinstance(item, _Item):
            seen.add(uuid)
    return found


def _captured(desk: Desk, sdk: str, item: _Item, index: int, warned: Warned) -> CapturedEvent:
    fields = item.sent.fields
    name = plain(fields.get("event"))
    if not isinstance(name, str) or not name.strip():
        raise Refused(Reason.MISSING_EVENT_NAME)
    if len(name) > NAME_CHARACTERS:
        raise Refused(Reason.EVENT_NAME_TOO_LONG)
    uuid = id_text(fields.get("uuid"))
    if uuid is None or not uuid.strip():
        raise Refused(Reason.MISSING_EVENT_UUID)
    lib, _, version = sdk.partition("/")
    session = text(plain(fields.get("session_id")))
    extra = _extra(item, lib, version)
    at, sequence = _at(item, desk, index), desk.time.first_sequence + index
    profile = item.options.process_person_profile
    head = Head(event_id(uuid), at, sequence, name, whose(item.sent), extra, session, text(lib), profile)
    return captured(item.sent, head, desk, warned)


def _extra(item: _Item, lib: str, version: str) -> dict[str, bytes]:
    """What stands beside the properties here becomes the properties by which the older format says the same."""
    fields = item.sent.fields
    said: dict[str, Any] = {
        "$lib": text(lib),
        "$lib_version": text(version),
        "$session_id": plain(fields.get("session_id")),
        "$window_id": plain(fields.get("window_id")),
        "$product_tour_id": item.options.product_tour_id,
        "$cookieless_mode": item.options.cookieless_mode,
        "$ignore_sent_at": item.options.disable_skew_correction,
        "$process_person_profile": item.options.process_person_profile,
    }
    rest = {key: raw for key, raw in fields.items() if key not in _KNOWN}
    found = {name: encode(value) for name, value in said.items() if value is not None}
    return {**found, "$extra": encode(rest)} if rest else found


def _at(item: _Item, desk: Desk, index: int) -> int:
    """In microseconds."""
    stamp = plain(item.sent.fields.get("timestamp"))
    at = read_us(stamp) if isinstance(stamp, str) else None
    if at is None:
        raise Refused(Reason.INVALID_TIMESTAMP)
    ignored = item.options.disable_skew_correction or item.sent.inside.ignore_sent_at is True
    return fixed(at - (0 if ignored else desk.time.ahead), desk.time, index)
