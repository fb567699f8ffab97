"""What the bytes of a parked event say: about whom it is, and how an export shows it."""

from __future__ import annotations

from typing import Any

import msgspec

from handbill.events.model import CapturedEvent, Dropped, View, decode
from handbill.events.reader import ParkedBody

_flat = msgspec.json.Decoder(dict[str, str])


def is_about(body: bytes, names: frozenset[str]) -> bool:
    """Is this somebody's event, or does it say that somebody is them? By whole ids: "7" is not in "1978"."""
    try:
        event = decode(body)
    except msgspec.DecodeError:
        return _flat_is_about(body, names)
    if type(event) is Dropped:
        return False
    if type(event) is CapturedEvent:
        return not names.isdisjoint((event.distinct_id, event.session, event.edge.other if event.edge else None))
    return not names.isdisjoint((event.user, event.session, event.device_id if type(event) is View else None))


def describe(row: ParkedBody) -> dict[str, Any]:
    """As it was taken; the bytes as text where nobody can read them."""
    about: dict[str, Any] = {"id": str(row.id), "parked_at": row.parked_at}
    try:
        event = decode(row.body)
    except msgspec.DecodeError:
        return {**about, "body": row.body.decode("utf-8", "replace")}
    fields = {name: getattr(event, name) for name in event.__struct_fields__}
    return {**about, "kind": event.kind, **{name: _plain(value) for name, value in fields.items() if value}}


def _plain(value: Any) -> Any:
    """Properties are kept as the JSON they were sent in."""
    return value.decode() if isinstance(value, bytes) else msgspec.to_builtins(value)


def _flat_is_about(body: bytes, names: frozenset[str]) -> bool:
    """An entry of the compatibility stream, or bytes that nobody can read: those go if the name is in them at all."""
    try:
        return not names.isdisjoint(_flat.decode(body).values())
    except (msgspec.DecodeError, UnicodeDecodeError):
        return any(name.encode("utf-8", "surrogatepass") in body for name in names)
