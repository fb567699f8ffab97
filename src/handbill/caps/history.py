"""PostgreSQL's word on a subject: the committed views as changes that complete a packed value.

A lifetime limit needs the number of views even when retention has dropped their rows. The totals say how many there
were; those that no row and no kept time accounts for become "ancient" ones: at the beginning of time, numbered from
zero, so that adding them again changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from handbill.caps import ledger
from handbill.caps.book import Book, by_of, changes, limits_for, moves_of, sweep_ms
from handbill.caps.model import EPOCH_MS, FOREVER_MS, By, Change, Kind, Limits, State, Subject, Verb, scope
from handbill.caps.packed import Malformed, Shelf
from handbill.caps.views import Needed, Past, PastView, Place, ViewStore
from handbill.infra.postgres import Database
from handbill.kit.clock import Clock, from_ms

_LAST_TENANT = 2**31 - 1

SiblingsOf = Callable[[Sequence[Subject]], Awaitable[Mapping[Subject, list[Subject]]]]
"""The other subjects whose views count for each of these: the other ids of its person."""


class History:
    def __init__(self, database: Database, views: ViewStore, book: Book, clock: Clock) -> None:
        self._database = database
        self._views = views
        self._book = book
        self._clock = clock
        self.siblings: SiblingsOf | None = None

    async def of(self, subject: Subject, value: bytes) -> list[Change]:
        """What completes this value. It was read before we ask, so that every confirmed time in it is in the total."""
        others = (await self.siblings([subject])).get(subject, []) if self.siblings is not None else []
        needed = self._needed(subject)
        async with self._database.tenant(subject.tenant_id) as tx:
            past = await self._views.of(tx, subject, needed, [other.id for other in others])
        mine = (subject, *others)
        found = []
        for view in past.views:
            told = self._told(view)
            found += [change for each in mine for change in told.get(each, ())]
        totals = self._totals(subject, past, found)
        if totals:
            now_ms = self._clock.now_ms()
            sweep = sweep_ms(self._book, subject.tenant_id)
            shelf = Shelf(ledger.apply(_readable(value), found, now_ms, sweep).value)
            for each, (total, limits) in totals.items():
                found += _ancient(each, total, limits, shelf)
        return found

    def _needed(self, subject: Subject) -> list[Needed]:
        now_ms, by = self._clock.now_ms(), by_of(subject)
        return [
            Needed(rule.scope, rule.limits.keep, from_ms(max(EPOCH_MS, now_ms - rule.limits.horizon_ms)))
            for rule in self._book.all_rules(subject.tenant_id)
            if rule.by is by
        ]

    async def pages(self, tenant_id: int | None = None) -> AsyncIterator[dict[Subject, list[Change]]]:
        """Committed views that a window may still need, of one tenant or of all; each page in its own transaction."""
        lasting = any(tenant_id in (None, tenant) for tenant, _ in self._book.lasting())
        since = from_ms(EPOCH_MS if lasting else self._clock.now_ms() - sweep_ms(self._book, tenant_id))
        here: Place = (tenant_id or 0, "", 0, from_ms(0), b"")
        while True:
            async with self._database.worker() as tx:
                views = await self._views.page(tx, here, tenant_id or _LAST_TENANT, since)
            if not views:
                return
            last = views[-1]
            here = (last.tenant_id, last.user_id, last.banner_id, from_ms(last.at_ms), last.event_key)
            page: dict[Subject, list[Change]] = {}
            for view in views:
                for subject, told in self._told(view).items():
                    page.setdefault(subject, []).extend(told)
            yield page

    async def lifetimes(self, tenant_id: int | None = None) -> AsyncIterator[list[Subject]]:
        """Everybody whose lifetime limit may have lost its rows."""
        lasting = {(tenant, rule.scope, rule.by) for tenant, rule in self._book.lasting()}
        if not lasting:
            return
        async for row in self._walk(self._views.totals_page, (tenant_id or 0, "", 0), tenant_id):
            found = {Subject(t, user) for t, user, banner in row if (t, scope(Kind.BANNER, banner), By.USER) in lasting}
            yield sorted(found, key=lambda subject: (subject.tenant_id, subject.id))
        kept = {(tenant, each) for tenant, each, _ in lasting}
        async for rows in self._walk(self._views.archived_page, (tenant_id or 0, "", "", 0), tenant_id):
            subjects = {Subject(t, subject, kind) for t, kind, subject, each in rows if (t, each) in kept}
            yield sorted(subjects, key=lambda subject: (subject.tenant_id, subject.kind, subject.id))

    async def _walk(self, page: Any, here: tuple[Any, ...], tenant_id: int | None) -> AsyncIterator[list[Any]]:
        while True:
            async with self._database.worker() as tx:
                rows = await page(tx, here, tenant_id or _LAST_TENANT)
            if not rows:
                return
            here = rows[-1]
            yield rows

    def _told(self, view: PastView) -> Mapping[Subject, list[Change]]:
        moves = moves_of(view.event_key, view.at_ms, view.banner_id, view.campaign_id, view.placement_id)
        return changes(self._book, Verb.CONFIRM, view.viewer, moves)

    def _totals(self, subject: Subject, past: Past, found: list[Change]) -> dict[int, tuple[int, Limits]]:
        """The number of views of each scope whose rows may be gone, where a lifetime limit asks for it."""
        totals: dict[int, tuple[int, Limits]] = {}
        for each in past.totals.keys() | past.archived.keys():
            limits = limits_for(self._book, subject, each)
            if limits is None or limits.horizon_ms != FOREVER_MS:
                continue
            if each in past.totals:
                totals[each] = (past.totals[each], limits)
            elif each in past.archived:
                rows = len({change.fingerprint for change in found if change.scope == each})
                totals[each] = (past.archived[each] + rows, limits)
        return totals


def _ancient(each: int, total: int, limits: Limits, shelf: Shelf) -> list[Change]:
    real = sum(1 for seen in shelf.seen(each) if seen.state is State.CONFIRMED and seen.at_ms > EPOCH_MS)
    number = max(0, min(total - real, limits.keep))
    return [Change(Verb.CONFIRM, each, EPOCH_MS, n, limits.keep, FOREVER_MS) for n in range(number)]


def _readable(value: bytes) -> bytes:
    try:
        Shelf(value)
    except Malformed:
        return b""
    return value
