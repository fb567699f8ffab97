"""What is stored with an event only in part, or becomes no property of its person: reported to the sender, and counted.

The limits are those of people and of the lists of names, which leave out the same later.
"""

from __future__ import annotations

import msgspec

from handbill.events.dialects.collect import Warned
from handbill.events.dialects.profiles import Changes
from handbill.events.model import (
    EVENT_PROPERTIES,
    PERSON_PROPERTIES,
    PERSON_VALUE_BYTES,
    PROPERTY_DEPTH,
    PROPERTY_NAME_CHARACTERS,
)
from handbill.events.reasons import Reason
from handbill.kit.untrusted_json import UNREADABLE, has_huge_number, is_deep

EVENT_NAME_CHARACTERS = 200
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])


def cut_name(name: str, warned: Warned) -> str:
    """An event's name as it is kept, in dialects whose clients do not read that it is too long."""
    if len(name) <= EVENT_NAME_CHARACTERS:
        return name
    warned.append(Reason.EVENT_NAME_CUT)
    return name[:EVENT_NAME_CHARACTERS]


def warn_of_losses(properties: bytes, changes: Changes, warned: Warned) -> None:
    """Each reason once for an event, however many of its properties it concerns."""
    found: set[Reason] = set()
    _look(properties, EVENT_PROPERTIES, found)
    for part in changes[:2]:
        if part is None:
            continue
        members = _look(part, PERSON_PROPERTIES, found)
        if has_huge_number(part) or any(_is_large(value) for value in members.values()):
            found.add(Reason.PROPERTY_TOO_LARGE)
    if found:
        warned += sorted(found)


def _look(part: bytes, most: int, found: set[Reason]) -> dict[str, msgspec.Raw]:
    """What is wrong with an object and the names in it; its members, where one of them may be too large.

    Most are looked at no further: too short for a long name, and without an empty one.
    """
    if len(part) > PROPERTY_DEPTH and is_deep(part, PROPERTY_DEPTH):
        found.add(Reason.PROPERTIES_TOO_DEEP)
        return {}
    if len(part) <= PROPERTY_NAME_CHARACTERS and b'""' not in part:
        return {}
    try:
        members = _members.decode(part)
    except UNREADABLE:
        return {}
    if len(members) > most:
        found.add(Reason.TOO_MANY_PROPERTIES)
    if members and ("" in members or max(map(len, members)) > PROPERTY_NAME_CHARACTERS):
        found.add(Reason.PROPERTY_NAME_UNUSABLE)
    return members if len(part) > PERSON_VALUE_BYTES else {}


def _is_large(value: msgspec.Raw) -> bool:
    """As it is kept: without spaces."""
    return len(value) > PERSON_VALUE_BYTES and len(msgspec.json.format(bytes(value), indent=-1)) > PERSON_VALUE_BYTES
