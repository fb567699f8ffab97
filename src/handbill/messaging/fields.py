"""The fields of a contact that may fill a variable: one list for the check at creation, the audience and the docs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ATTRIBUTES = "attributes."
CONTACT_FIELDS: dict[str, str] = {
    "name": "The contact's name.",
    "first_name": "The first word of the name.",
    "last_name": "The rest of the name.",
    "email": "The e-mail address.",
    "phone": "The phone number with + and country code.",
    "external_id": "The contact's id in your own system.",
    "locale": "The language and region, e.g. pt-BR.",
    "attributes.NAME": "The attribute NAME.",
}
"""Name of the field, and what it holds."""


def find_fault(field: str) -> str | None:
    """Why this is no field of a contact; None if it is one."""
    if field.startswith(ATTRIBUTES) and len(field) > len(ATTRIBUTES):
        return None
    if field in CONTACT_FIELDS:
        return None
    return f"is no field of a contact; {', '.join(CONTACT_FIELDS)} are. For an attribute write `{ATTRIBUTES}{field}`"


def contact_fields(own: Mapping[str, Any], attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of one contact. An attribute stands in for a field of that name which the contact lacks.

    Attributes stand there under their bare names as well: campaigns of earlier releases name them so.
    """
    first, _, last = str(own.get("name") or "").strip().partition(" ")
    parts = {"first_name": first or None, "last_name": last.strip() or None}
    dotted = {ATTRIBUTES + name: value for name, value in attributes.items()}
    given = {name: value for name, value in own.items() if value is not None}
    return {**parts, **own, **attributes, **dotted, **given}
