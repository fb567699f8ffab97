"""What a caller asks, made fit to be asked: ids, cursors, values; and the errors of questions that have no answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from handbill.kit import pages
from handbill.kit.clock import from_ms, to_ms
from handbill.kit.errors import Fault, HandbillError, Invalid, NotFound
from handbill.kit.pages import Page
from handbill.kit.untrusted_json import UNREADABLE
from handbill.people.model import Definition, illegal_side


def storable(text: str) -> bool:
    """No column holds NUL or half a character, so nobody is known by them."""
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_sides(source: str, target: str) -> None:
    faults = [
        Fault(field, "stands for nobody, or has more than 400 characters")
        for field, side in (("source", source), ("target", target))
        if illegal_side(side) or not storable(side)
    ]
    if source == target:
        faults.append(Fault("source", "is the target itself"))
    if faults:
        raise Invalid("These two ids cannot be merged; nothing was changed.", code="ILLEGAL_MERGE", faults=faults)


def like(name: str | None, value: str | None) -> str | None:
    if name is None and value is None:
        return None
    if name is None or value is None or not storable(name) or not storable(value):
        raise Invalid(
            "A property is searched by its name and its value.",
            faults=[Fault("property" if name is None else "value", "is needed beside the other, without NUL")],
        )
    try:
        wanted = msgspec.json.decode(value)
    except UNREADABLE:
        wanted = value
    if isinstance(wanted, str):
        wanted = wanted if storable(wanted) else value
    elif isinstance(wanted, dict | list):
        wanted = value
    return msgspec.json.encode({name: wanted}).decode()


def named(rows: Sequence[Definition], limit: int) -> Page[Definition]:
    return pages.page(rows, limit, lambda row: (row.name,))


def after_name(cursor: str | None) -> str:
    if cursor is None:
        return ""
    name = str(pages.decode(cursor, (str,))[0])
    if not storable(name):
        raise bad_cursor()
    return name


def after_person(cursor: str | None) -> tuple[datetime, UUID] | None:
    if cursor is None:
        return None
    at, person = pages.decode(cursor, (int, str))
    try:
        return moment(at), UUID(hex=str(person))
    except ValueError:
        raise bad_cursor() from None


def micros(at: datetime) -> int:
    return to_ms(at) * 1000 + at.microsecond % 1000


def moment(micros: str | int) -> datetime:
    if not isinstance(micros, int) or not 0 <= micros < 253_402_300_800_000_000:
        raise bad_cursor()
    return from_ms(micros // 1000) + timedelta(microseconds=micros % 1000)


def edge_key_of(text: str | int, refused: Callable[[], HandbillError]) -> bytes:
    try:
        key = bytes.fromhex(str(text))
    except ValueError:
        raise refused() from None
    if len(key) != 16:
        raise refused()
    return key


def bad_cursor() -> Invalid:
    return Invalid("The cursor is not one of ours; start again without it.", code="BAD_CURSOR")


def nobody() -> NotFound:
    return NotFound("Nobody is known by this id in this tenant.", code="PERSON_NOT_FOUND")


def no_edge() -> NotFound:
    return NotFound("There is no such edge; nothing was changed.", code="EDGE_NOT_FOUND")
