"""Lists of this room are ordered by id, and their cursors hold the last one."""

from __future__ import annotations

from uuid import UUID

from handbill.kit import pages
from handbill.kit.errors import Fault, Invalid


def id_of(last: UUID) -> tuple[str]:
    return (str(last),)


def after_id(cursor: str | None) -> UUID | None:
    if cursor is None:
        return None
    (text,) = pages.decode(cursor, [str])
    try:
        return UUID(str(text))
    except ValueError:
        raise Invalid(
            "The cursor is not one of ours; start again without it.",
            code="BAD_CURSOR",
            faults=[Fault("cursor", "not a cursor of this list")],
        ) from None
