"""One event in PostHog's words, as both of its versions send it, made into ours."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from handbill.events.dialects.canon import (
    NO_PROPERTIES,
    PERSONLESS,
    CapturedEvent,
    Dialect,
    Edge,
    Moment,
    Refused,
    Terms,
)
from handbill.events.dialects.collect import Warned
from handbill.events.dialects.ids import EDGES, distinct, edge
from handbill.events.dialects.losses import warn_of_losses
from handbill.events.dialects.profiles import Changes, without_profile
from handbill.events.dialects.reading import (
    SMALL,
    WIDE,
    Fields,
    address,
    check_size,
    id_text,
    merged,
    names_of,
    number_or_text,
    object_of,
    plain,
    screen,
    spliced,
    text,
    without_ip,
)
from handbill.events.dialects.senders import Sender, is_persons_agent, sender_of
from handbill.events.dialects.times import RequestTime
from handbill.events.reasons import Reason
from handbill.kit.fast import FastRequest
from handbill.kit.untrusted_json import UNREADABLE

NAME_CHARACTERS = 200
_NOTHING = Raw(b"")


class Inside(
    msgspec.Struct,
    frozen=True,
    rename={
        "set": "$set",
        "set_once": "$set_once",
        "unset": "$unset",
        "anon": "$anon_distinct_id",
        "session": "$session_id",
        "ip": "$ip",
        "url": "$current_url",
        "referrer": "$referrer",
        "agent": "$raw_user_agent",
        "browser": "$browser",
        "browser_version": "$browser_version",
        "os": "$os",
        "os_version": "$os_version",
        "device_type": "$device_type",
        "width": "$screen_width",
        "height": "$screen_height",
        "language": "$browser_language",
        "timezone": "$timezone",
        "lib": "$lib",
        "ignore_sent_at": "$ignore_sent_at",
        "is_server": "$is_server",
        "profile": "$process_person_profile",
        "time": "$time",
    },
):
    """The names inside properties that mean something to us; the others are passed over."""

    distinct_id: Raw = _NOTHING
    token: Any = None
    alias: Raw = _NOTHING
    set: Raw = _NOTHING
    set_once: Raw = _NOTHING
    unset: Raw = _NOTHING
    anon: Raw = _NOTHING
    session: Any = None
    ip: Any = None
    url: Any = None
    referrer: Any = None
    agent: Any = None
    browser: Any = None
    browser_version: Any = None
    os: Any = None
    os_version: Any = None
    device_type: Any = None
    width: Any = None
    height: Any = None
    language: Any = None
    timezone: Any = None
    lib: Any = None
    ignore_sent_at: Any = None
    is_server: Any = None
    profile: Any = None
    time: Any = None


class Sent(msgspec.Struct, frozen=True):
    """One event, opened: its fields, its properties as bytes, and what was found in them."""

    fields: Fields
    properties: bytes
    inside: Inside


class Desk(msgspec.Struct, frozen=True):
    """What every event of one request has in common."""

    terms: Terms
    moment: Moment
    ip: str | None
    user_agent: str | None
    is_persons: bool  # the user agent is that of a browser or an app
    dialect: Dialect
    time: RequestTime
    marks: tuple[str, ...] = ()


class Head(msgspec.Struct, frozen=True):
    """What the two versions find each in its own way."""

    id: str
    at: int  # in microseconds
    sequence: int
    name: str
    distinct_id: str
    extra: dict[str, bytes] = {}
    session: str | None = None
    lib: str | None = None
    profile: bool | None = None
    """Whether the event is about a person with a profile; None: its properties say it, or nothing does."""


_inside = msgspec.json.Decoder(Inside)
_NO_INSIDE = Inside()


def desk_of(
    request: FastRequest, moment: Moment, terms: Terms, dialect: Dialect, time: RequestTime, marks: tuple[str, ...] = ()
) -> Desk:
    if time.is_history:  # who brings history is not who made it
        return Desk(terms, moment, None, None, False, dialect, time, marks)
    agent = text(request.headers.get(b"user-agent", b"").decode("utf-8", "replace"), WIDE)
    ip = address(request.client_ip, terms.truncate_ip)
    return Desk(terms, moment, ip, agent, is_persons_agent(agent), dialect, time, marks)


def opened(fields: Fields) -> Sent:
    """Raises Refused when the properties are no object."""
    properties = object_of(fields.get("properties"))
    if properties is None:
        return Sent(fields, NO_PROPERTIES, _NO_INSIDE)
    try:
        return Sent(fields, properties, _inside.decode(properties))
    except UNREADABLE:
        raise Refused(Reason.MALFORMED_PROPERTIES) from None


def captured(sent: Sent, head: Head, desk: Desk, warned: Warned) -> CapturedEvent:
    inside, terms = sent.inside, desk.terms
    properties = spliced(sent.properties, head.extra) if head.extra else sent.properties
    changes = _changes(sent, warned)
    link = _edge(head, inside, warned)
    marks = desk.marks
    if (inside.profile if head.profile is None else head.profile) is False:
        changes, link, marks = without_profile(head.name, changes, link, warned), None, (*marks, PERSONLESS)
    set_, set_once, unset = changes
    check_size(properties, set_, set_once, unset)
    warn_of_losses(properties, changes, warned)
    if terms.truncate_ip:
        properties = without_ip(properties)
        set_, set_once = set_ and without_ip(set_), set_once and without_ip(set_once)
    lib = text(inside.lib, SMALL, warned) or head.lib
    sender = sender_of(inside.is_server, lib, is_persons=desk.is_persons)
    is_persons, is_server = sender is Sender.PERSON, sender is Sender.SERVER
    return CapturedEvent(
        tenant=terms.tenant,
        id=head.id,
        at=head.at // 1000,
        received=desk.moment.received,
        name=head.name,
        distinct_id=head.distinct_id,
        dialect=desk.dialect.value,
        properties=properties,
        set=set_,
        set_once=set_once,
        unset=unset,
        edge=link,
        session=text(inside.session, SMALL, warned) or head.session,
        ip=address(inside.ip, terms.truncate_ip) or (desk.ip if is_persons else None),
        user_agent=text(inside.agent, WIDE, warned) or (desk.user_agent if is_persons else None),
        url=text(inside.url, WIDE, warned),
        referrer=text(inside.referrer, WIDE, warned),
        browser=text(inside.browser, SMALL, warned),
        browser_version=number_or_text(inside.browser_version, warned),
        os=None if is_server else text(inside.os, SMALL, warned),
        os_version=None if is_server else number_or_text(inside.os_version, warned),
        device_type=text(inside.device_type, SMALL, warned),
        screen_width=screen(inside.width),
        screen_height=screen(inside.height),
        language=text(inside.language, SMALL, warned),
        timezone=text(inside.timezone, SMALL, warned),
        lib=lib,
        marks=marks,
        micros=head.at % 1000,
        sequence=head.sequence,
    )


def whose(sent: Sent) -> str:
    """The distinct id from wherever it stands. Raises Refused if there is none, or none that may be used."""
    fields = sent.fields
    found = (
        id_text(fields.get("distinct_id")) or id_text(fields.get("$distinct_id")) or id_text(sent.inside.distinct_id)
    )
    if found is None:
        raise Refused(Reason.MISSING_DISTINCT_ID)
    return distinct(found)


def _changes(sent: Sent, warned: Warned) -> Changes:
    """From beside the properties or from inside them; where both have a name, the one beside them stands."""
    fields, inside = sent.fields, sent.inside
    try:
        set_ = merged(object_of(inside.set), object_of(fields.get("$set")))
        set_once = merged(object_of(inside.set_once), object_of(fields.get("$set_once")))
    except Refused:
        warned.append(Reason.SET_UNREADABLE)
        set_ = set_once = None
    lists = [plain(raw) for raw in (inside.unset, fields.get("$unset")) if raw]
    return set_, set_once, names_of(lists) if lists else None


def _edge(head: Head, inside: Inside, warned: Warned) -> Edge | None:
    kind = EDGES.get(head.name)
    if kind is None:
        return None
    other = id_text(inside.anon if head.name == "$identify" else inside.alias)
    if other is None:
        return None
    try:
        return edge(kind, other, head.distinct_id)
    except Refused as refused:
        warned.append(refused.reason)
        return None
