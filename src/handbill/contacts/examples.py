"""Examples for the API's own page."""

from __future__ import annotations

from typing import Any

_ID = "0192f3c1-7a10-7c3e-8f00-5b1f6d1c2a01"
_AT = "2026-11-16T12:00:00Z"

CONTACT: dict[str, Any] = {
    "contact_id": _ID,
    "phone": "+5511987654321",
    "whatsapp": "+5511987654321",
    "email": "ana@example.com",
    "external_id": "C-1001",
    "name": "Ana Souza",
    "locale": "pt-BR",
    "attributes": {"city": "São Paulo"},
    "tags": ["spring"],
    "granted": ["whatsapp"],
    "denied": [],
    "version": 1,
    "created_at": _AT,
    "updated_at": _AT,
    "person_id": None,
}
NEW_CONTACT = {"phone": "(11) 98765-4321", "region": "BR", "name": "Ana Souza", "tags": ["spring"]}
CONTACT_PATCH = {"name": "Ana Maria Souza", "add_tags": ["vip"], "attributes": {"city": None}}
NEW_CONSENT = {"channel": "whatsapp", "granted": True, "source": "web form", "proof": "form 17, 2026-11-16"}
CONSENT = {**NEW_CONSENT, "at": _AT, "actor": "key:ops", "import_id": None}
NEW_SUPPRESSION = {"channel": "whatsapp", "address": "+5511987654321", "reason": "manual"}
SUPPRESSION = {**NEW_SUPPRESSION, "until": None, "created_at": _AT, "note": None}
PLAN: dict[str, Any] = {
    "reading": {
        "format": "csv",
        "encoding": "utf-8",
        "delimiter": ";",
        "quote": '"',
        "header": True,
        "sheet": None,
        "packed": False,
        "skip_rows": 0,
        "member": None,
    },
    "columns": [
        {"name": "Nome", "target": "name", "kind": "text", "date_order": "dmy"},
        {"name": "Celular", "target": "phone", "kind": "text", "date_order": "dmy"},
        {"name": "Cidade", "target": "attribute:Cidade", "kind": "text", "date_order": "dmy"},
    ],
    "key": "phone",
    "policy": "update",
    "region": "BR",
    "tags": ["spring"],
    "consent": {"channels": ["whatsapp"], "source": "loyalty form 2026", "proof": None},
    "fixes": False,
}
PLAN_PATCH = {"policy": "update_blanks", "region": "BR", "columns": [{"index": 2, "target": "attribute:city"}]}
COUNTS = {
    "rows": 1000,
    "created": 900,
    "updated": 60,
    "unchanged": 10,
    "skipped": 0,
    "duplicates": 15,
    "rejected": 14,
    "blank": 1,
    "noted": 3,
    "repaired": 120,
}
IMPORT: dict[str, Any] = {
    "import_id": _ID,
    "file_name": "clientes.csv",
    "size": 104_857,
    "status": "done",
    "paused": False,
    "plan": PLAN,
    "counts": COUNTS,
    "created_at": _AT,
    "version": 7,
    "created_by": "key:ops",
    "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "fixes": None,
    "started_at": _AT,
    "finished_at": _AT,
    "error": None,
    "undo_kept": 0,
}
PROGRESS = {"phase": "done", "rows": 1000, "parsed": 1000, "merged": 1000, "rows_per_s": 31_000.0, "eta_s": None}
IMPORT_VIEW = {"info": IMPORT, "progress": PROGRESS}
PREVIEW: dict[str, Any] = {
    "plan": PLAN,
    "rows": [
        {
            "row": 2,
            "outcome": "create",
            "values": {"phone": "+5511987654321", "name": "Ana Souza"},
            "reason": None,
            "field": None,
            "notes": ["REPAIRED_PLUS"],
            "suggestion": None,
        }
    ],
}
CAUSE = {
    "severity": "reject",
    "code": "PHONE_SCIENTIFIC",
    "field": "phone",
    "rows": 14,
    "meaning": "The spreadsheet rounded the number (4.41E+11); its digits are lost.",
    "fix": "Format the column as text before you export, and fill the number in again.",
    "example": "5.51E+12",
}
REPORT = {"info": IMPORT, "causes": [CAUSE]}
KEPT = {"contact_id": _ID, "fields": ["name"], "why": "CHANGED_SINCE"}


def page(item: Any) -> dict[str, Any]:
    return {"items": [item], "next": None}
