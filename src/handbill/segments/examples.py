"""What the routes' bodies look like, for a reader of the OpenAPI page."""

from __future__ import annotations

from typing import Any

ID = "0190163d-8694-739b-aea5-966c26f8ad91"
_AT = "2026-07-01T09:30:00Z"
_PERSON = "5f0c8a5e-63c6-5b0e-9a43-0a5f6d3f5b1c"

NEW_SEGMENT: dict[str, Any] = {
    "name": "Large teams",
    "rule": {"person.plan": ["pro", "team"], "person.seats": {"op": "gte", "value": 5}, "created": {"within_days": 90}},
}
SEGMENT: dict[str, Any] = {
    "segment_id": ID,
    "name": "Large teams",
    "description": "",
    "rule": NEW_SEGMENT["rule"],
    "size": 1204,
    "state": "ready",
    "evaluated_at": _AT,
    "version": 1,
    "created_at": _AT,
    "updated_at": _AT,
}
MEMBER: dict[str, Any] = {
    "person_id": _PERSON,
    "named_by": "ann@example.com",
    "properties": {"plan": "pro", "seats": 12},
    "created_at": _AT,
}
PREVIEW: dict[str, Any] = {"size": 1204, "exact": True, "looked_at": 20000, "sample": [MEMBER]}
BELONGS: dict[str, Any] = {"belongs": False, "person_id": _PERSON, "rule": "person.seats gte 5"}


def page(item: dict[str, Any]) -> dict[str, Any]:
    return {"items": [item], "next": None}
