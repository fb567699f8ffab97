"""Every statement that erases a person or prunes old rows reads few rows of a large table, whatever its name."""

from __future__ import annotations

import hashlib
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from handbill.infra import sqlfiles
from tests.kit.engines import Engines
from tests.kit.many_rows import PERSON, PHONE, fill
from tests.kit.plans import plan_of

LIMIT = 50
"""Rows or pages that a portion may read in this test."""
MOST = 1_000
"""Rows that a statement may read in all: of 20,000 in each table."""
MOST_KEYS = 16 * 2 * 200
"""A page of each of the 16 partitions, read twice: of 320,000 keys."""
NIL = uuid.UUID(int=0)
_BY_ADDRESS = ("inbound", "reached", "undeliverable", "preferences", "single_messages")
_NAMED = re.compile(r"(erase|forget|prune|purge|sweep)_")
_ALSO = {
    "active_hours": ("activity_of_people", "drop_activity", "export_activity", "take_changed", "tenants_with_activity"),
    "banners": ("places_of_impressions", "places_of_clicks", "export_impressions_at", "export_clicks_at",
                "export_impressions", "export_clicks"),
    "contacts": ("old_reports", "import_ids", "drop_staged"),
    "events": ("drop_parked", "waiting_ids", "count_parked", "healable", "healable_tenants", "list_parked",
               "all_bodies"),
    "messaging": ("campaign_ids",),
}  # fmt: skip
EXEMPT = {
    "events.forget_consumers": "a row for each process that reads lanes",
    "segments.forget_segment": "one segment, by its primary key",
    "tenants.erase_exports": "a tenant keeps at most twenty exports, for a day",
    "tenants.sweep_exports": "by the index on their expiry, every hour; a tenant keeps at most twenty",
}


def md5_id(number: int) -> uuid.UUID:
    return uuid.UUID(bytes=_md5(number))


def _md5(number: int) -> bytes:
    return hashlib.md5(str(number).encode()).digest()


def cases(tenant: int, now: datetime) -> dict[str, tuple[Any, ...]]:
    """The arguments of each statement, as its caller gives them."""
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = (month + timedelta(days=32)).replace(day=1)
    about = (tenant, [PERSON], month, after)
    tids = [(0, n) for n in range(1, LIMIT)]
    pages = ((0, 0), (4, 0))
    day = (tenant, now - timedelta(days=395), now - timedelta(days=395) + timedelta(minutes=15))
    ids, some = [md5_id(n) for n in range(1, 5)], [PERSON, f"{PERSON}5000"]
    person, address, spelt = (tenant, some), (tenant, [PHONE]), (tenant, [PHONE, PHONE[1:]])
    old = now - timedelta(days=100)
    return {
        "active_hours.activity_of_people": (tenant, ids, LIMIT),
        "active_hours.drop_activity": (tenant, 2_850, LIMIT),
        "active_hours.erase_activity": person,
        "active_hours.export_activity": (tenant, PERSON, LIMIT),
        "active_hours.take_changed": (tenant, now, LIMIT),
        "active_hours.tenants_with_activity": (),
        **{f"banners.erase_{kind}_at": (*about, tids) for kind in ("impressions", "clicks")},
        **{f"banners.erase_{kind}": (*about, *pages) for kind in ("impressions", "clicks")},
        **{f"banners.export_{kind}_at": (*about, tids) for kind in ("impressions", "clicks")},
        **{f"banners.export_{kind}": (*about, *pages, LIMIT) for kind in ("impressions", "clicks")},
        **{f"banners.places_of_{kind}": (tenant, month, after, LIMIT) for kind in ("impressions", "clicks")},
        "banners.forget_empty_stats": day,
        "banners.forget_marks": day,
        **{f"caps.erase_{what}": person for what in ("views", "totals", "users", "archive")},
        "contacts.forget_consents": (tenant, ids),
        "contacts.sweep_suppressions": (old, tenant, "", "", LIMIT),
        "contacts.erase_find": (tenant, PERSON, PHONE, None),
        "contacts.erase_contacts": (tenant, ids),
        "contacts.erase_changes": (tenant, ids, [md5_id(n) for n in range(10)]),
        "contacts.erase_staged": (tenant, PERSON, [PHONE], [], NIL, 0, 0, LIMIT),
        "contacts.erase_findings": (tenant, [PHONE], NIL, 0, 0, LIMIT),
        "contacts.erase_suppression_notes": (tenant, [PHONE, f"{PHONE}5000"], ["sms", "whatsapp", "email"]),
        "contacts.drop_staged": (tenant, md5_id(3), -1, -1, LIMIT),
        "contacts.old_reports": (old, tenant, NIL, LIMIT),
        "contacts.import_ids": (tenant, NIL, LIMIT),
        "contacts.sweep_findings": (tenant, md5_id(3), LIMIT),
        "events.forget_batches": ("v0", "10-0", timedelta(days=1), LIMIT),
        "events.forget_keys": ((0, 0), (1, 0), old),
        "events.forget_finished_corrections": (old, LIMIT),
        "events.forget_old_corrections": (old, LIMIT),
        "events.drop_parked": (tenant, "REJECTED", None, LIMIT, md5_id(0)),
        "events.waiting_ids": (tenant, None, NIL, md5_id(0), LIMIT, None, 1 << 20),
        "events.count_parked": (tenant, None, None, md5_id(0), LIMIT),
        "events.prune_parked_requests": (old, LIMIT),
        "events.erase_parked": (tenant, ids),
        "events.healable": (tenant, timedelta(minutes=5), 3, NIL, LIMIT),
        "events.healable_tenants": (timedelta(minutes=5),),
        "events.list_parked": (tenant, "REJECTED", False, None, LIMIT),
        "events.all_bodies": (tenant, NIL, LIMIT),
        "events.forget_replayed": (old, NIL, LIMIT),
        "jobs.purge_dead": (tenant, None, None, None, None, None, ids, LIMIT),
        "jobs.prune_handled": (86_400.0, 0, 2),
        "messaging.sweep_claims": (old, LIMIT),
        "messaging.sweep_attempts": (old, LIMIT),
        "messaging.sweep_unknown": (old, LIMIT, now),
        "messaging.forget_reached": (old, 0, "", LIMIT),
        "messaging.forget_deliveries": (old, LIMIT),
        "messaging.forget_webhooks": (old, LIMIT),
        "messaging.erase_messages": (*address, [md5_id(n) for n in range(LIMIT)]),
        "messaging.campaign_ids": (tenant, NIL, LIMIT),
        **{f"messaging.erase_{what}": address for what in _BY_ADDRESS},
        "messaging.erase_webhooks": (*spelt, b"", LIMIT),
        "messaging.erase_alerts": (*spelt, "", LIMIT),
        "messaging.erase_deliveries": (*spelt, NIL, LIMIT),
        **{f"people.erase_{what}": person for what in ("edges", "books", "ids", "plans")},
        "people.erase_marks": (*person, False, 0, LIMIT),
        "people.erase_followups": (*person, 0, LIMIT),
        "segments.erase_people": person,
        "tenants.forget_subject": (tenant, _md5(100)),
        "tenants.sweep_replays": (old, LIMIT),
        "tenants.sweep_sessions": (old, LIMIT),
    }


def test_every_eraser_and_pruner_has_a_case() -> None:
    names = {
        f"{statement.room}.{statement.name}"
        for room in sqlfiles.all_rooms()
        for statement in room
        if _NAMED.match(statement.name) or statement.name in _ALSO.get(statement.room, ())
    }
    assert names == cases(1, datetime.now(UTC)).keys() | EXEMPT.keys()


async def test_no_eraser_or_pruner_reads_a_whole_table(engines: Engines, tenant: int) -> None:
    statements = {f"{each.room}.{each.name}": each for room in sqlfiles.all_rooms() for each in room}
    owner = await asyncpg.connect(engines.postgres_url)
    transaction = owner.transaction()
    await transaction.start()
    read: dict[str, float] = {}
    try:
        await fill(owner, tenant)
        for name, args in cases(tenant, datetime.now(UTC)).items():
            part = owner.transaction()
            await part.start()
            read[name] = (await plan_of(owner, statements[name].text, *args)).rows_read()
            await part.rollback()
    finally:
        await transaction.rollback()
        await owner.close()
    allowed = {"events.forget_keys": MOST_KEYS}
    assert {name: rows for name, rows in read.items() if rows > allowed.get(name, MOST)} == {}
