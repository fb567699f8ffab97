"""The shapes of `POST /v1/events`, as they are decoded."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Raw

from handbill.events.dialects.reading import SMALL, WIDE, text

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


class InsideIn(
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


class LooseEventIn(EventIn, frozen=True, gc=False):
    """The same event with a context that is too long, or not of the right types: it is cut, the event is kept."""

    context: dict[str, Any] | None = None  # type: ignore[assignment]

    def tight(self) -> EventIn:
        found = {
            name: value if name.startswith("screen_") else text(value, WIDE if name in _WIDE else SMALL)
            for name, value in (self.context or {}).items()
        }
        fields = {name: getattr(self, name) for name in EventIn.__struct_fields__}
        return EventIn(**{**fields, "context": ContextIn(**found)})


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
