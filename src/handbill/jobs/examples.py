"""What the routes' bodies look like, for a reader of the OpenAPI page."""

from __future__ import annotations

from typing import Any

_ID = "0190163d-8694-739b-aea5-966c26f8ad91"
_AT = "2026-07-01T09:30:00Z"

QUEUES: list[dict[str, Any]] = [{"queue": "message_dispatch", "pending": 120, "oldest_s": 4.2}]
JOB: dict[str, Any] = {
    "id": _ID,
    "queue": "message_dispatch",
    "name": "send-message",
    "state": "failed",
    "tenant_id": 7,
    "data": {"message_id": 42},
    "attempts_made": 3,
    "created_at": _AT,
    "due_at": None,
    "started_at": _AT,
    "finished_at": _AT,
    "progress": None,
    "result": None,
    "failed_reason": "the number is not on the network",
    "traceback": [],
    "logs": [],
}
DEAD_LETTER: dict[str, Any] = {
    "id": _ID,
    "tenant_id": 7,
    "queue": "message_dispatch",
    "job_id": _ID,
    "name": "send-message",
    "effect_id": _ID,
    "data": {"message_id": 42},
    "opts": {"attempts": 3},
    "attempts": 3,
    "reason": "the number is not on the network",
    "traceback": "",
    "source": "event",
    "status": "dead",
    "failures": 1,
    "redrives": 0,
    "queued_at": _AT,
    "failed_at": _AT,
    "recorded_at": _AT,
    "redriven_at": None,
}
SELECTION: dict[str, Any] = {"queue": "message_dispatch", "reason": "network", "dry_run": True}
OUTCOME: dict[str, Any] = {"count": 12, "done": False}


def page(item: dict[str, Any]) -> dict[str, Any]:
    return {"items": [item], "next": None}
