"""Rows in every table that an eraser or a pruner reads, many of them, with one person among them."""

from __future__ import annotations

import uuid

import asyncpg

ROWS = 20_000
EVERY = 5_000
"""Each so-manieth row is of the person."""
PERSON = "ann"
PHONE = "+491701234567"
_WHO = f"case when n % {EVERY} = 0 then '{PERSON}' else 'u' || n end"
_ADDRESS = f"case when n % {EVERY} = 0 then '{PHONE}' else '+4930' || n end"
_KEY = "decode(md5(n::text), 'hex')"
_ID = "md5(n::text)::uuid"
_OLD = "now() - interval '400 days' + n * interval '1 minute'"
_GROUP = "md5((n / 2000)::text)::uuid"
_BODY = f"convert_to(repeat('x', 200) || {_ADDRESS}, 'UTF8')"

_TABLES: dict[str, dict[str, str]] = {
    "active_hours.activity": {
        "distinct_id": _WHO, "week": "2800 + n / 100", "counts": "array_fill(0, array[96])", "first_at": "now()",
        "last_at": "now()", "changed_at": _OLD,
    },
    "banners.banner_clicks": {
        "event_key": _KEY, "correlation_id": "n::text", "banner_id": "n % 7", "user_id": _WHO, "destination_url": "''",
        "occurred_at": "now()", "received_at": "now()", "lane": "1",
    },
    "banners.banner_impressions": {
        "event_key": _KEY, "correlation_id": "n::text", "banner_id": "n % 7", "user_id": _WHO, "occurred_at": "now()",
        "received_at": "now()", "lane": "1",
    },
    "banners.banner_stats": {"banner_id": "n", "bucket": _OLD, "lane": "1", "impressions": "1"},
    "banners.event_marks": {
        "event_key": _KEY, "reason": "'x'", "kind": "'click'", "banner_id": "n", "occurred_at": _OLD,
    },
    "caps.cap_archive": {
        "kind": "case n % 2 when 0 then 'user' else 'device' end", "subject": _WHO, "scope": "n", "total": "1",
    },
    "caps.cap_totals": {"user_id": _WHO, "banner_id": "n", "total": "1", "last_at": "now()"},
    "caps.user_views": {
        "event_key": _KEY, "event_id": "n::text", "banner_id": "n % 7", "user_id": _WHO, "view_timestamp": "now()",
        "view_duration_ms": "0", "dismissed": "false", "counted": "true", "received_at": "now()", "lane": "1",
    },
    "caps.users": {"user_id": _WHO, "device_id": "'d' || n", "created_at": "now()"},
    "contacts.consent_log": {
        "contact_id": _ID, "consent_id": _ID, "at": "now()", "channel": "'sms'", "granted": "true", "source": "'x'",
        "actor": "'x'",
    },
    "contacts.contacts": {
        "contact_id": _ID, "phone": _ADDRESS, "whatsapp": _ADDRESS, "external_id": _WHO, "created_at": "now()",
        "updated_at": "now()",
    },
    "contacts.import_changes": {"import_id": _GROUP, "contact_id": _ID, "before": "'{}'", "after": "'{}'"},
    "contacts.import_findings": {
        "import_id": _GROUP, "row_no": "n", "severity": "'reject'", "code": "'X'", "value": "''", "original": _ADDRESS,
    },
    "contacts.import_rows": {
        "import_id": _GROUP, "slice": "0", "row_no": "n", "contact_id": _ID, "phone": _ADDRESS, "attributes": "'{}'",
        "tags": "'{}'",
    },
    "contacts.imports": {
        "import_id": _ID, "file_name": "''", "file": "''", "size": "1", "sha256": "''", "status": "'done'",
        "plan": "'{}'", "created_by": "''", "created_at": _OLD,
    },
    "contacts.suppressions": {
        "channel": "'sms'", "address": _ADDRESS + " || n", "reason": "'bounce'", "note": "'x'", "created_at": "now()",
        "until": _OLD,
    },
    "events.parked": {
        "id": _ID, "kind": "'view'", "event_id": "n::text", "lane": "'v1'", "body": _BODY, "parked_at": _OLD,
        "reason": "case when n % 500 = 0 then 'REJECTED' else 'TOO_OLD' end",
        "replayed_at": "case n % 3 when 0 then now() - interval '200 days' end",
    },
    "events.parked_requests": {
        "parked_request_id": _ID, "action": "'drop'", "status": "'done'", "report": "'{}'", "requested_by": "'x'",
        "created_at": _OLD, "progressed_at": _OLD, "finished_at": "case when n % 10 > 0 then now() end",
    },
    "events.sequence_corrections": {"event_key": _KEY, "sequence": "n", "corrected_at": _OLD},
    "jobs.dead_letters": {
        "id": _ID, "queue": "'q'", "job_id": "n::text", "name": "'x'", "effect_id": _ID, "data": "'{}'",
        "reason": "'x'", "failed_at": _OLD,
    },
    "jobs.handled": {"outbox_id": _ID, "handled_at": _OLD},
    "messaging.alerts": {
        "alert_key": "n::text", "connection_id": _ID, "at": "now()", "field": "''", "event": "''", "body": _BODY,
    },
    "messaging.campaigns": {
        "campaign_id": _ID, "name": "'x'", "channel": "'whatsapp'", "connection_id": _ID, "numbers": "'{}'",
        "content": "'{}'", "audience": "'{}'", "purpose": "'utility'", "state": "'completed'", "created_by": "''",
        "created_at": "now()", "updated_at": "now()",
    },
    "messaging.hook_deliveries": {
        "delivery_id": _ID, "hook_id": _GROUP, "event": "'x'", "created_at": _OLD,
        "body": f"jsonb_build_object('a', {_ADDRESS})", "state": "'failed'",
    },
    "messaging.inbound": {
        "wamid": "n::text", "connection_id": _ID, "number_id": "'1'", "address": _ADDRESS, "name": "''", "at": "now()",
        "kind": "'text'", "text": "''", "payload": "''",
    },
    "messaging.messages": {
        "message_id": _ID, "campaign_id": _ID, "number_id": "'1'", "channel": "'whatsapp'", "address": _ADDRESS,
        "state": "'accepted'", "created_at": "now()", "due_at": "now()", "attempted_at": _OLD,
    },
    "messaging.preferences": {"channel": "'whatsapp'", "address": _ADDRESS + " || n", "wish": "'stop'", "at": "now()"},
    "messaging.reached": {"portfolio": "'p' || n % 3", "address": _ADDRESS + " || n", "last_at": _OLD},
    "messaging.undeliverable": {
        "channel": "'whatsapp'", "address": _ADDRESS + " || n", "hits": "1", "last_at": "now()",
    },
    "messaging.webhook_inbox": {
        "digest": _KEY, "connection_id": _ID, "received_at": _OLD, "body": _BODY, "state": "'done'",
    },
    "people.distinct_ids": {"distinct_id": _WHO + " || n", "person_id": _ID, "first_seen_at": "now()"},
    "people.followups": {"ids": f"array[{_WHO}]", "at": "now()"},
    "people.person_edges": {
        "edge_key": _KEY, "kind": "'alias'", "source_id": _WHO, "target_id": "'t' || n", "first_at": "now()",
        "first_event": "''", "outcome": "'joined'",
    },
    "people.properties": {"distinct_id": _WHO + " || n", "words": "''", "moments": "''"},
    "people.squashing": {"distinct_id": _WHO + " || n", "person_id": _ID, "version": "1"},
    "people.unfolded": {"distinct_id": _WHO, "marked_at": "now()", "regroup": "n % 2 = 0"},
    "segments.segment_members": {"segment_id": "n % 5", "person_id": _ID},
    "tenants.erasures": {
        "erasure_id": _ID, "subject": "case when n % 100 = 0 then 'x' end", "subject_hash": _KEY, "status": "'failed'",
        "requested_by": "''", "created_at": "now()",
    },
    "tenants.idempotency_keys": {
        "key": "n::text", "request_hash": _KEY, "created_at": "now()", "expires_at": _OLD,
    },
    "tenants.sessions": {
        "session_id": _ID, "user_id": _ID, "token_hash": _KEY, "created_at": "now()", "expires_at": _OLD,
    },
}  # fmt: skip
_NO_TENANT = {
    "events.ch_batches": {
        "id": _ID, "lane": "'v' || n % 2", "from_cursor": "'1-0'", "to_cursor": "n || '-0'", "survivors": "''",
        "events": "1", "created_at": _OLD, "done_at": f"case when n % 2 = 0 then {_OLD} end", "audited_at": _OLD,
    },
}  # fmt: skip


async def fill(owner: asyncpg.Connection, tenant_id: int) -> None:
    """All tables, inside the caller's transaction."""
    for table in [*_TABLES, *_NO_TENANT]:
        await fill_table(owner, table, tenant_id)
        await owner.execute(f"analyze {table}")
    await owner.execute(
        "insert into events.event_keys select $1, decode(md5($2::text || n), 'hex'), now() - interval '40 days'"
        " from generate_series(1, $3::int) n",
        tenant_id, uuid.uuid4().hex, ROWS * 16,
    )  # fmt: skip
    await owner.execute("analyze events.event_keys")


async def fill_table(
    owner: asyncpg.Connection, table: str, tenant_id: int, *, rows: int = ROWS, every: int = EVERY
) -> None:  # fmt: skip
    """Inside a transaction. Foreign keys are not looked at: a row stands for itself here."""
    columns = _TABLES.get(table) or _NO_TENANT[table]
    tenant = f"case when n % 50 = 0 then {tenant_id} end" if table == "events.parked" else str(tenant_id)
    named = columns if table in _NO_TENANT else {"tenant_id": tenant, **columns}
    values = ", ".join(named.values()).replace(f"n % {EVERY} =", f"n % {every} =")
    await owner.execute("set local session_replication_role = replica")
    await owner.execute(f"insert into {table} ({', '.join(named)}) select {values} from generate_series(1, {rows}) n")
