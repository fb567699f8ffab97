"""The event store's statements, read once from their file. They have a folder of their own: those in sql/ are
PostgreSQL's, which prepares them at boot."""

from __future__ import annotations

import re

from handbill.infra import sqlfiles
from handbill.kit.errors import Broken

_SLOT = re.compile(r"<<(\w+)>>")
Q = sqlfiles.queries("handbill.insights")


def filled(name: str, **slots: str) -> str:
    """A statement with every slot filled; a slot nobody fills is a fault of this code."""
    slots = {"people": Q.people, "scope": Q.scope, **slots}

    def fill(slot: re.Match[str]) -> str:
        if slot[1] not in slots:
            raise Broken(f"The slot {slot[1]} of the statement {name} was not filled.")
        return slots[slot[1]]

    return _SLOT.sub(fill, Q[name])
