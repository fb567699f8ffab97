"""What the routes' bodies look like, for a reader of the OpenAPI page."""

from __future__ import annotations

from typing import Any

_ID = "0190163d-8694-739b-aea5-966c26f8ad91"
_AT = "2026-07-01T09:30:00Z"

TENANT: dict[str, Any] = {
    "tenant": {
        "tenant_id": 7,
        "public_id": _ID,
        "slug": "acme",
        "name": "Acme Shop",
        "tier": "standard",
        "time_zone": "Europe/Paris",
        "status": "active",
        "version": 3,
        "created_at": _AT,
    },
    "settings": {
        "jwt": {"kind": "hs256", "jwks": None, "jwks_url": None, "audience": None, "issuer": None, "leeway_s": 10},
        "jwt_secret_set": True,
        "limits": {},
        "privacy": {"truncate_ip": True, "respect_dnt": False, "retention_days": 90},
        "version": 2,
        "default_region": "FR",
    },
}
TENANT_PATCH: dict[str, Any] = {
    "time_zone": "Europe/Paris",
    "settings": {"privacy": {"truncate_ip": True, "retention_days": 90}, "default_region": "FR"},
}
NEW_KEY: dict[str, Any] = {"kind": "secret", "name": "nightly export", "scopes": ["audit:read"]}
KEY: dict[str, Any] = {
    "key_id": _ID,
    "kind": "secret",
    "name": "nightly export",
    "hint": "hbs_...x7Qa",
    "scopes": ["audit:read"],
    "created_at": _AT,
    "expires_at": None,
    "revoked_at": None,
    "last_used_at": None,
    "replaces": None,
    "clear_key": None,
}
KEY_REVOKED = {**KEY, "revoked_at": _AT}
KEY_MADE: dict[str, Any] = {"info": KEY, "key": "hbs_" + "x" * 32}
NEW_USER: dict[str, Any] = {
    "email": "ada@example.com",
    "password": "correct horse battery staple",
    "name": "Ada",
    "role": "operator",
}
USER: dict[str, Any] = {
    "user_id": _ID,
    "email": "ada@example.com",
    "name": "Ada",
    "role": "operator",
    "version": 1,
    "created_at": _AT,
}
LOGIN: dict[str, Any] = {"email": "ada@example.com", "password": "correct horse battery staple"}
SESSION: dict[str, Any] = {
    "token": "hbt_" + "x" * 32,
    "csrf_token": "c" * 32,
    "expires_at": _AT,
    "tenant_id": 7,
    "user": USER,
}
AUDIT: dict[str, Any] = {
    "audit_id": _ID,
    "at": _AT,
    "actor": f"user {_ID}",
    "action": "key.create",
    "object": f"key {_ID}",
    "before": None,
    "after": {"name": "nightly export", "kind": "secret"},
    "request_id": "req-1",
}
ERASURE: dict[str, Any] = {
    "erasure_id": _ID,
    "status": "done",
    "report": {"events": {"impressions": 12}},
    "requested_by": f"user {_ID}",
    "created_at": _AT,
    "finished_at": _AT,
    "started_at": _AT,
    "steps_done": 7,
    "steps_total": 7,
    "error": None,
}
PERSON_EXPORT: dict[str, Any] = {
    "export_id": _ID,
    "status": "done",
    "report": {"caps": {"caps.user_views": 1}},
    "requested_by": f"user {_ID}",
    "created_at": _AT,
    "expires_at": "2026-07-02T09:30:00Z",
    "started_at": _AT,
    "finished_at": _AT,
    "steps_done": 7,
    "steps_total": 7,
    "error": None,
}
EXPORT: dict[str, Any] = {
    "subject": "user-42",
    "ids": ["user-42"],
    "rooms": {"caps": {"caps.user_views": [{"banner_id": 7, "view_timestamp": _AT}]}},
    "cut": [],
    "away": [],
}
ME: dict[str, Any] = {
    "kind": "secret_key",
    "actor": "key nightly export (hbs_...x7Qa)",
    "scopes": ["audit:read"],
    "role": None,
}


def page(item: dict[str, Any]) -> dict[str, Any]:
    return {"items": [item], "next": None}
