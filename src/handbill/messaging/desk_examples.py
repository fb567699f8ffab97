"""What the bodies of connections, webhooks and the inbox look like, for a reader of the OpenAPI page."""

from __future__ import annotations

from typing import Any

ID = "0190163d-8694-739b-aea5-966c26f8ad91"
AT = "2026-07-01T09:30:00Z"
NUMBER = "100000000000001"


def page(*items: dict[str, Any]) -> dict[str, Any]:
    return {"items": list(items), "next": None}


NEW_CONNECTION: dict[str, Any] = {
    "name": "Shop, Netherlands",
    "waba_id": "200000000000001",
    "numbers": [NUMBER],
    "token": "EAAG...",
    "app_secret": "0f1e2d...",
}
CONNECTION: dict[str, Any] = {
    "connection_id": ID,
    "name": "Shop, Netherlands",
    "channel": "whatsapp",
    "waba_id": "200000000000001",
    "portfolio": "200000000000001",
    "numbers": [
        {
            "number_id": NUMBER,
            "display": "+31 6 1234 5678",
            "quality": "GREEN",
            "per_second": 80,
            "tier": 2000,
            "paused_until": None,
            "pause_reason": None,
        }
    ],
    "webhook": f"/webhooks/whatsapp/{ID}",
    "webhook_url": f"https://ads.example.com/webhooks/whatsapp/{ID}",
    "verify_token": "8d1f0c4e9a7b6d5c3f2e1a0b9c8d7e6f5a4b3c2d",
    "version": 1,
    "created_at": AT,
    "token_state": "valid",
    "token_note": None,
    "token_ends_at": None,
    "token_checked_at": AT,
}
TEMPLATE: dict[str, Any] = {
    "connection_id": ID,
    "name": "spring_sale",
    "language": "en_US",
    "template_id": "594425479261596",
    "category": "MARKETING",
    "state": "APPROVED",
    "components": [{"type": "BODY", "text": "Hello {{1}}, everything is 20 % off today."}],
    "named": False,
    "reason": "",
    "changed_at": AT,
}
HOOK: dict[str, Any] = {
    "hook_id": ID,
    "url": "https://shop.example.com/handbill",
    "events": ["campaign.completed", "campaign.paused"],
    "active": True,
    "off_reason": None,
    "failing_since": None,
    "created_at": AT,
}
NEW_HOOK: dict[str, Any] = {"url": HOOK["url"], "events": HOOK["events"]}
HOOK_MADE: dict[str, Any] = {"hook": HOOK, "secret": "hbk_pWJ1..."}
DELIVERY: dict[str, Any] = {
    "delivery_id": ID,
    "hook_id": ID,
    "event": "campaign.completed",
    "state": "delivered",
    "attempts": 2,
    "status": 200,
    "error": None,
    "created_at": AT,
    "finished_at": AT,
}
EVENT: dict[str, Any] = {"event": "campaign.completed", "says": "Everybody in the campaign's audience has an outcome."}
INBOUND: dict[str, Any] = {
    "wamid": "wamid.HBgLMzE2MTIzNDU2Nzg=",
    "connection_id": ID,
    "number_id": NUMBER,
    "address": "+31612345678",
    "name": "Ada",
    "at": AT,
    "kind": "text",
    "text": "STOP",
    "payload": "",
    "media_id": None,
    "reply_to": None,
    "wish": "stop",
}
CALLBACK: dict[str, Any] = {
    "url": f"https://ads.example.com/webhooks/whatsapp/{ID}",
    "verify_token": "0f5c1e0c8d7b4a6e9f3b2a1d0c9e8f7a6b5c4d3e",
}
ALERT: dict[str, Any] = {
    "alert_key": "5b1c0f6e7a8d9c0b1a2f3e4d5c6b7a89",
    "connection_id": ID,
    "at": AT,
    "field": "account_update",
    "event": "ACCOUNT_VIOLATION",
    "body": '{"event":"ACCOUNT_VIOLATION"}',
}
PARKED: dict[str, Any] = {
    "digest": "5b1c0f6e",
    "connection_id": ID,
    "received_at": AT,
    "tries": 5,
    "error": "PostgresError: keep_inbound: value too long",
    "size": 512,
}
