"""What the routes' bodies look like, for a reader of the OpenAPI page."""

from __future__ import annotations

from typing import Any

_AT = "2026-07-01T09:30:00Z"
PERSON: dict[str, Any] = {
    "person_id": "b551e15c-9cfe-502a-a567-ef93a684e8f8",
    "named_by": "alice",
    "ids": 2,
    "identified_at": _AT,
    "properties": {"plan": "pro"},
    "created_at": _AT,
    "updated_at": "2026-07-01T09:00:00Z",
}
EDGE: dict[str, Any] = {
    "edge_id": "5d41402abc4b2a76b9719d911017c592",
    "kind": "identify",
    "source": "anon-1",
    "target": "alice",
    "at": _AT,
    "event_id": "0190163d-8694-739b-aea5-966c26f8ad91",
    "outcome": "joined",
    "voided_at": None,
    "voided_by": None,
}
VOIDED: dict[str, Any] = {**EDGE, "outcome": "voided", "voided_at": _AT, "voided_by": "key hb_…1a2b"}
PERSON_PAGE: dict[str, Any] = {
    "person": PERSON,
    "distinct_ids": [
        {"distinct_id": "anon-1", "first_seen_at": _AT},
        {"distinct_id": "alice", "first_seen_at": _AT},
    ],
    "edges": [EDGE],
}
MERGE: dict[str, Any] = {"source": "anon-1", "target": "alice"}
WARNING: dict[str, Any] = {
    "edge_id": EDGE["edge_id"],
    "code": "refused_identified",
    "detail": "“bob” was not merged into “alice”: it is an identified person already. If they are one person, merge "
    "them explicitly.",
    "at": _AT,
    "kind": "identify",
    "source": "bob",
    "target": "alice",
}
EVENT: dict[str, Any] = {"name": "order placed", "first_seen_at": _AT, "last_seen_at": _AT, "value_type": None}
PROPERTY: dict[str, Any] = {"name": "price", "first_seen_at": _AT, "last_seen_at": _AT, "value_type": "Numeric"}
NAMES: dict[str, Any] = {"events": ["$pageview", "order placed"], "properties": ["price", "sku"]}


def page(item: dict[str, Any]) -> dict[str, Any]:
    return {"items": [item], "next": None}
