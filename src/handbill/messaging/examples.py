"""What the campaigns' routes take and give, for a reader of the OpenAPI page."""

from __future__ import annotations

from typing import Any

ID = "0190163d-8694-739b-aea5-966c26f8ad91"
CONNECTION_ID = "0190163d-8694-739b-aea5-966c26f8ad92"
_AT = "2026-07-01T09:30:00Z"

NEW_CAMPAIGN: dict[str, Any] = {
    "name": "Summer sale",
    "connection_id": CONNECTION_ID,
    "content": {"type": "template", "name": "summer_sale", "language": "en_US"},
    "bindings": {"body.1": {"field": "name", "fallback": "friend"}},
    "audience": {"tags_any": ["summer"], "tags_none": ["staff"]},
    "expires_at": "2026-07-03T18:00:00Z",
    "quiet": {"since": "21:00:00", "until": "08:00:00", "by": "contact"},
    "person_cap": {"count": 2, "hours": 168},
    "price": "0.0523",
    "spend_cap": "250.00",
}
CAMPAIGN: dict[str, Any] = {
    "campaign_id": ID,
    "name": "Summer sale",
    "channel": "whatsapp",
    "connection_id": CONNECTION_ID,
    "numbers": ["100000000000001"],
    "content": {"type": "template", "name": "summer_sale", "language": "en_US"},
    "bindings": {"body.1": {"field": "name", "fallback": "friend"}},
    "audience": {"segment_id": None, "tags_any": ["summer"], "tags_all": [], "tags_none": ["staff"], "contact_ids": []},
    "purpose": "marketing",
    "state": "running",
    "reason": None,
    "resume_to": None,
    "scheduled_at": _AT,
    "expires_at": "2026-07-03T18:00:00Z",
    "quiet": {"since": "21:00:00", "until": "08:00:00", "by": "contact", "zone": "Europe/Berlin"},
    "person_cap": {"count": 2, "hours": 168},
    "price": "0.0523",
    "spend_cap": "250.00",
    "spent": "41.8400",
    "currency": "USD",
    "audience_done": True,
    "audience_size": 4120,
    "queued_at": _AT,
    "started_at": _AT,
    "ended_at": None,
    "version": 3,
    "created_by": "key 0190163d",
    "created_at": _AT,
    "updated_at": _AT,
}
MESSAGE: dict[str, Any] = {
    "message_id": ID,
    "address": "+4917212345678",
    "contact_id": ID,
    "number_id": "100000000000001",
    "state": "delivered",
    "reason": None,
    "attempts": 1,
    "due_at": _AT,
    "attempted_at": _AT,
    "settled_at": _AT,
    "wamid": "wamid.HBgL",
    "accepted_at": _AT,
    "sent_at": _AT,
    "failed_at": None,
    "delivered_at": _AT,
    "read_at": None,
    "error_code": None,
    "error_details": None,
    "created_at": _AT,
}
OUTCOMES = {
    "states": {"delivered": 3900, "read": 120, "failed": 60, "skipped": 40},
    "reasons": {"failed": {"provider_131026": 60}, "skipped": {"suppressed_opt_out": 40}},
}
ESTIMATE = {
    "estimated_at": _AT,
    "begins_at": _AT,
    "audience": 4120,
    "ready": 4060,
    "skipped": {"consent_missing": 40, "variable_missing": 20},
    "missing": {"body.1": 20},
    "too_long": 0,
    "later": {"quiet_hours": 0, "tier": 0},
    "unaffordable": 0,
    "seconds": 406,
    "price": "0.0523",
    "cost": "212.3380",
    "currency": "USD",
    "within_cap": True,
    "problems": [
        {
            "code": "consent_missing",
            "detail": "have not agreed to messages on this channel",
            "people": 40,
            "is_blocking": False,
        },
        {
            "code": "variable_missing",
            "detail": "lack a value for a variable, and there is no fallback",
            "people": 20,
            "is_blocking": False,
        },
    ],
    "is_complete": True,
}
VERIFIED = {
    "campaign_id": ID,
    "state": "completed",
    "audience": 4120,
    "messages": 4120,
    "sent": 4000,
    "failed": 60,
    "skipped": 60,
    "unknown": 0,
    "open": 0,
    "twice": 0,
    "without_reason": 0,
    "without_attempt": 0,
    "skipped_though_sent": 0,
    "holds": True,
    "faults": [],
    "estimate": ESTIMATE,
    "differences": [
        {
            "name": "sent",
            "estimated": 4060,
            "actual": 4000,
            "explanation": "What became of the others: failed:provider_131026 60, skipped:consent_missing 40, "
            "skipped:variable_missing 20.",
        },
        {
            "name": "failed:provider_131026",
            "estimated": 0,
            "actual": 60,
            "explanation": "The provider refused them: not deliverable to this address.",
        },
    ],
}
OPT_OUT_WORDS = {
    "languages": ["de", "en"],
    "stop": ["no more news"],
    "start": ["news please"],
    "without": ["austragen"],
    "all_stop": ["abbestellen", "abmelden", "no more news", "stop", "unsubscribe"],
    "all_start": ["anmelden", "news please", "start", "subscribe"],
    "version": 2,
    "updated_at": _AT,
}
NEW_OPT_OUT_WORDS = {
    "languages": ["de", "en"],
    "stop": ["no more news"],
    "start": ["news please"],
    "without": ["austragen"],
}
FAIRNESS = {
    "window_s": 60,
    "messages": 540,
    "jain": None,
    "tenants": [{"tenant_id": 7, "messages": 540, "rate": 9.0, "share": None, "wait_s": 0.4, "wait_p95_s": 0.9}],
}
SWITCH = {"stopped": False, "reason": None, "per_second": None, "updated_at": _AT}


def page(item: dict[str, Any]) -> dict[str, Any]:
    return {"items": [item], "next": None}
