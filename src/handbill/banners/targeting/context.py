"""What is known of a request, as targeting reads it: only what some rule asks for is worked out.

What the caller says comes first; then the user agent for device, system and browser, the Accept-Language header, and
the country of the client's address where a GeoIP file is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC
from typing import Any, Protocol

import msgspec

from handbill.kit.agents import agent_of, device_of, from_header
from handbill.kit.bounds import ADDRESS_CHARS, LANGUAGE_MAX, MINUTES_OF_WEEK, ZONE_NAME_MAX
from handbill.kit.caches import GenerationCache
from handbill.kit.clock import from_ms
from handbill.kit.zones import find_zone

_UTC = "UTC"
_SYSTEMS = {"Mac OS X": "macos", "Windows": "windows", "iOS": "ios", "Android": "android", "Chrome OS": "chromeos"}
_BROWSERS = ("chrome", "firefox", "safari", "edge", "opera", "samsung internet", "ie")


def system_of(user_agent: str) -> str | None:
    family = agent_of(user_agent).os
    return _SYSTEMS.get(family, family.lower()) or None


def browser_of(user_agent: str) -> str | None:
    """The family in one word: Chrome on a phone is chrome, Mobile Safari is safari."""
    family = agent_of(user_agent).browser.lower()
    for name in _BROWSERS:
        if name in family:
            return name
    return family or None


def minute_of_week(zone: str, minute: int) -> int:
    """Minutes since Monday 00:00 in the zone; in UTC where there is no zone by this name."""
    key = (zone if len(zone) <= ZONE_NAME_MAX else _UTC, minute)
    result = _minutes.get(key)
    if result is None:
        here = from_ms(minute * 60_000).astimezone(find_zone(zone) or UTC)
        result = _minutes[key] = here.weekday() * 1_440 + here.hour * 60 + here.minute
    return result


_minutes: GenerationCache[tuple[str, int], int] = GenerationCache(MINUTES_OF_WEEK)


class Context(Protocol):
    """What the caller says of the moment."""

    @property
    def url(self) -> str | None: ...
    @property
    def referrer(self) -> str | None: ...
    @property
    def country(self) -> str | None: ...
    @property
    def region(self) -> str | None: ...
    @property
    def language(self) -> str | None: ...
    @property
    def time_zone(self) -> str | None: ...
    @property
    def user_agent(self) -> str | None: ...
    @property
    def custom(self) -> Mapping[str, Any]: ...
    @property
    def consent(self) -> Sequence[str]: ...


class Asked(msgspec.Struct, frozen=True):
    """One request's facts before anybody has asked for them. `zone` is the user's, or else the tenant's."""

    who: str
    now_ms: int
    context: Context
    headers: Mapping[bytes, bytes]
    address: str
    zone: str = "UTC"


Country = Callable[[str], str | None]


class Questions:
    """What the rules of a tenant ask of a request, worked out once for all requests."""

    __slots__ = ("_custom", "_readers", "moment")

    def __init__(self, attributes: Iterable[str]) -> None:
        wanted = sorted(attributes)
        self._custom = tuple((name, name[7:]) for name in wanted if name.startswith("custom:"))
        self._readers = tuple((name, _READERS[name]) for name in wanted if name in _READERS)
        self.moment = "moment" in wanted

    def answered(self, asked: Asked, country: Country | None = None) -> dict[str, Any]:
        """Attribute by attribute; what is not known is not in it. `country` looks an address up, where it can."""
        found: dict[str, Any] = {}
        for name, reader in self._readers:
            value = reader(asked)
            if value is None and name == "country" and country is not None:
                value = country(asked.address)
            if value is not None:
                found[name] = value
        if self._custom:
            custom = asked.context.custom
            for name, key in self._custom:
                value = custom.get(key)
                if value is not None:
                    found[name] = value
        return found


def agent_text(sent: str | None, headers: Mapping[bytes, bytes]) -> str:
    """The user agent: as the caller sent it, else the request's own."""
    return sent if sent is not None else from_header(headers.get(b"user-agent", b""))


def _agent(asked: Asked) -> str:
    return agent_text(asked.context.user_agent, asked.headers)


def _language(asked: Asked) -> str | None:
    said = asked.context.language
    if said is None:
        header = asked.headers.get(b"accept-language", b"")[:LANGUAGE_MAX]
        said = header.decode("latin-1").partition(",")[0].partition(";")[0]
    return said.strip().lower().replace("_", "-") or None


def _lower(value: str | None) -> str | None:
    return value.lower() if value is not None else None


def _cut(value: str | None) -> str | None:
    return value[:ADDRESS_CHARS] if value is not None else None


_READERS: dict[str, Callable[[Asked], Any]] = {
    "who": lambda asked: asked.who,
    "url": lambda asked: _cut(asked.context.url),
    "referrer": lambda asked: _cut(asked.context.referrer),
    "country": lambda asked: _lower(asked.context.country),
    "region": lambda asked: _lower(asked.context.region),
    "language": _language,
    "device": lambda asked: device_of(_agent(asked)),
    "os": lambda asked: system_of(_agent(asked)),
    "browser": lambda asked: browser_of(_agent(asked)),
    "consent": lambda asked: frozenset(asked.context.consent),
    "moment": lambda asked: minute_of_week(asked.zone, asked.now_ms // 60_000),
}
