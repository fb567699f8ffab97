"""What is known of an event beyond its own words: the sender's own fields first, then its user agent and its address.

A function of the event and of the GeoIP file at hand; nothing is asked of an engine.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from handbill.events.model import CapturedEvent
from handbill.kit.agents import NOBODY, Agent, agent_of
from handbill.kit.untrusted_json import UNREADABLE

Country = Callable[[str], str | None]
"""The country of an address in two small letters; None when nobody knows."""

_GEO = b"$geoip_"
_OFF = frozenset({b"", b"false", b"null", b"0", b'""'})
"""What `$geoip_disable` may be without disabling anything."""
_MOST = 65_535
# In this order: a backslash that is meant, a pair that is whole, and (caught) half a pair.
_ESCAPES = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


class _Geo(msgspec.Struct, frozen=True):
    country: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw, name="$geoip_country_code")
    disable: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw, name="$geoip_disable")


_NO_GEO = _Geo()
_geo = msgspec.json.Decoder(_Geo)
_text = msgspec.json.Decoder(str)


def agent(event: CapturedEvent) -> Agent:
    """Fields that the sender filled stand; the user agent fills the others."""
    if event.browser and event.os and event.device_type:
        found = NOBODY
    else:
        found = agent_of(event.user_agent) if event.user_agent else NOBODY
    return Agent(
        event.browser or found.browser,
        event.browser_version or ("" if event.browser else found.browser_version),
        event.os or found.os,
        event.os_version or ("" if event.os else found.os_version),
        event.device_type or found.device_type,
    )


def country(event: CapturedEvent, of: Country) -> str:
    """Two capital letters; empty when nobody knows, or when the sender wants no place looked up."""
    geo = _geo_of(event.properties) if _GEO in event.properties else _NO_GEO
    if said := _said(geo):
        return said
    if event.ip is None or bytes(geo.disable) not in _OFF:
        return ""
    return (of(event.ip) or "").upper()


def _geo_of(properties: bytes) -> _Geo:
    try:
        return _geo.decode(properties)
    except UNREADABLE:
        return _NO_GEO


def _said(geo: _Geo) -> str:
    try:
        code = _text.decode(geo.country)
    except UNREADABLE:
        return ""
    return code.upper() if len(code) == 2 and code.isascii() and code.isalpha() else ""


def sound(json: bytes | None) -> bytes:
    """JSON whose escapes are all characters. One half of a pair makes ClickHouse see nothing of the whole object."""
    if not json or b"\\u" not in json:
        return json or b""
    return _ESCAPES.sub(_whole, json)


def _whole(found: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if found[1] else found[0]


def pixels(number: int | None) -> int | None:
    """A screen has some; anything else is no dimension."""
    return number if number is not None and 0 <= number <= _MOST else None
