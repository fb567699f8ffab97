"""What PostgreSQL knows: every view as a row, the total for ever, and who was seen. The truth the caps rebuild from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, time
from typing import Any

import msgspec

from handbill.caps.model import SCOPE_IDS, By, Kind, Rule, Subject, Viewer, kind_of, scope
from handbill.infra import sqlfiles
from handbill.infra.postgres import Tx
from handbill.kit.clock import from_ms, to_ms

S = sqlfiles.load("handbill.caps")

_COLUMNS = (
    "tenant_id", "event_key", "event_id", "banner_id", "placement_id", "campaign_id", "user_id", "device_id",
    "session_id", "view_timestamp", "view_duration_ms", "dismissed", "counted", "received_at", "lane", "marks",
    "variant",
)  # fmt: skip
_PAGE = 5_000
Place = tuple[int, str, int, datetime, bytes]
"""Where a walk over everybody's views stands: tenant, user, banner, time, key."""
SHARED_ROWS = 10_000
"""Views of one user and one banner among which those of limited campaigns and placements are sought."""


class NewView(msgspec.Struct, frozen=True):
    """A view on its way into the table. One that does not count is kept all the same."""

    tenant_id: int
    event_key: bytes
    event_id: str
    banner_id: int
    user_id: str
    at_ms: int
    received_ms: int
    placement_id: int | None = None
    campaign_id: int | None = None
    device_id: str | None = None
    session_id: str | None = None
    duration_ms: int = 0
    dismissed: bool = False
    counted: bool = True
    marks: tuple[str, ...] = ()
    variant: str | None = None


class Needed(msgspec.Struct, frozen=True):
    """What the limits of one scope ask for: so many of its newest views, since a moment."""

    scope: int
    keep: int
    since: datetime


class PastView(msgspec.Struct, frozen=True):
    """A counted view as PostgreSQL remembers it."""

    tenant_id: int
    user_id: str
    banner_id: int
    placement_id: int | None
    campaign_id: int | None
    at_ms: int
    event_key: bytes
    device_id: str | None = None
    session_id: str | None = None

    @property
    def viewer(self) -> Viewer:
        return Viewer(self.tenant_id, self.user_id, self.device_id, self.session_id)


class Past(msgspec.Struct, frozen=True):
    """All that is known of one subject, of one moment: rows in any order, perhaps twice; totals by scope where rows may
    be gone.

    `totals` counts every view there ever was; `archived` only those whose rows were dropped.
    """

    views: list[PastView]
    totals: dict[int, int]
    archived: dict[int, int]


class ViewStore:
    async def make_month(self, tx: Tx, month: date) -> None:
        await tx.fetchval(S.make_month, month)

    async def add(self, tx: Tx, views: Sequence[NewView], lane: int) -> None:
        """Rows, totals and users of views that are counted for the first time; the caller's keys have seen to that."""
        await tx.copy_records("caps.user_views", _COLUMNS, [_row(view, lane) for view in views])
        totals: dict[tuple[int, str, int], list[int]] = defaultdict(lambda: [0, 0])
        users: dict[tuple[int, str, str], int] = {}
        for view in views:
            if not view.user_id:
                continue  # kept, but nobody's: no cap to count for
            person = (view.tenant_id, view.user_id, view.device_id or "")
            users[person] = min(view.received_ms, users.get(person, view.received_ms))
            if view.counted:
                total = totals[view.tenant_id, view.user_id, view.banner_id]
                total[0] += 1
                total[1] = max(total[1], view.at_ms)
        if totals:
            keys = sorted(totals)
            await tx.execute(
                S.add_totals,
                *_columns(keys),
                [totals[key][0] for key in keys],
                [from_ms(totals[key][1]) for key in keys],
            )
        if users:
            people = sorted(users)
            await tx.execute(S.add_users, *_columns(people), [from_ms(users[person]) for person in people])

    async def of(self, tx: Tx, subject: Subject, needed: Sequence[Needed], others: Sequence[str] = ()) -> Past:
        """Counted views that are needed and whose rows are still there, and what the totals say beyond them.

        `others` are ids of the same person.
        """
        tenant_id = subject.tenant_id
        user_id, _, within = subject.id.partition("\0")
        rows = await tx.fetch(
            S.views_of_subject,
            tenant_id,
            [user_id, *others],
            subject.kind,
            subject.id if subject.kind == "device" else within,
            [each.scope for each in needed],
            [each.keep for each in needed],
            [each.since for each in needed],
            SHARED_ROWS,
        )
        found = Past([], {}, {})
        for row in rows:
            if row["total"] is None:
                found.views.append(_past(row, tenant_id, row["user_id"]))
            elif row["scope"] is None:
                each = scope(Kind.BANNER, row["banner_id"])
                found.totals[each] = found.totals.get(each, 0) + row["total"]
            else:
                found.archived[row["scope"]] = found.archived.get(row["scope"], 0) + row["total"]
        return found

    async def any_of(self, tx: Tx, tenant_id: int, user_ids: Sequence[str]) -> bool:
        """Whether anybody of them ever saw a banner."""
        return bool(await tx.fetchval(S.any_user, tenant_id, user_ids))

    async def page(self, tx: Tx, here: Place, last_tenant: int, since: datetime) -> list[PastView]:
        """Counted views since then, person by person, behind `here`; a page may end inside a person."""
        rows = await tx.fetch(S.views_page, *here, since, _PAGE, last_tenant)
        return [_past(row, row["tenant_id"], row["user_id"]) for row in rows]

    async def totals_page(self, tx: Tx, here: tuple[int, str, int], last_tenant: int) -> list[tuple[int, str, int]]:
        """(tenant, user, banner) of everybody who ever saw something, behind `here`."""
        rows = await tx.fetch(S.totals_page, *here, _PAGE, last_tenant)
        return [(row["tenant_id"], row["user_id"], row["banner_id"]) for row in rows]

    async def archived_page(
        self, tx: Tx, here: tuple[int, str, str, int], last_tenant: int
    ) -> list[tuple[int, str, str, int]]:
        """(tenant, kind, subject, scope) of every total that was archived, behind `here`."""
        rows = await tx.fetch(S.archived_page, *here, _PAGE, last_tenant)
        return [(row["tenant_id"], row["kind"], row["subject"], row["scope"]) for row in rows]

    async def archive(self, tx: Tx, tenant_id: int, rule: Rule, start: date, end: date) -> int:
        """Fold the views of a month that is about to be dropped into the totals of one lifetime limit."""
        kind, number = kind_of(rule.scope), rule.scope & SCOPE_IDS - 1
        told = (tenant_id, rule.scope, number, _day(start), _day(end))
        if rule.by is By.DEVICE:
            return await tx.execute(S.archive_devices, *told)
        if kind is Kind.BANNER:
            return 0  # the totals of users and banners outlive their rows by themselves
        return await tx.execute(S.archive_campaign if kind is Kind.CAMPAIGN else S.archive_placement, *told)

    async def erase(self, tx: Tx, tenant_id: int, user_ids: list[str]) -> dict[str, int]:
        return {
            "caps.user_views": await tx.execute(S.erase_views, tenant_id, user_ids),
            "caps.cap_totals": await tx.execute(S.erase_totals, tenant_id, user_ids),
            "caps.cap_archive": await tx.execute(S.erase_archive, tenant_id, user_ids),
            "caps.users": await tx.execute(S.erase_users, tenant_id, user_ids),
        }

    async def export(self, tx: Tx, tenant_id: int, user_id: str, most: int) -> dict[str, list[dict[str, Any]]]:
        views = await tx.fetch(S.export_views, tenant_id, user_id, most)
        users = await tx.fetch(S.export_users, tenant_id, user_id, most)
        return {"caps.user_views": [dict(row) for row in views], "caps.users": [dict(row) for row in users]}


def _past(row: Mapping[str, Any], tenant_id: int, user_id: str) -> PastView:
    return PastView(
        tenant_id, user_id, row["banner_id"], row["placement_id"], row["campaign_id"],
        to_ms(row["view_timestamp"]), row["event_key"], row["device_id"], row["session_id"],
    )  # fmt: skip


def _row(view: NewView, lane: int) -> tuple[object, ...]:
    return (
        view.tenant_id, view.event_key, view.event_id, view.banner_id, view.placement_id, view.campaign_id,
        view.user_id, view.device_id, view.session_id, from_ms(view.at_ms), view.duration_ms, view.dismissed,
        view.counted, from_ms(view.received_ms), lane, list(view.marks), view.variant,
    )  # fmt: skip


def _day(day: date) -> datetime:
    return datetime.combine(day, time.min, UTC)


def _columns(keys: Sequence[tuple[object, ...]]) -> list[list[object]]:
    return [list(column) for column in zip(*keys, strict=True)]
