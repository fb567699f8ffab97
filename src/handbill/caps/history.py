"""PostgreSQL's word on a person: the committed views as changes that complete a packed value.

A lifetime limit needs the number of views even when retention has dropped their rows. The total says how many there
were; those that no row and no kept time accounts for become "ancient" ones: at the beginning of time, numbered from
zero, so that adding them again changes nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

from handbill.caps import ledger
from handbill.caps.book import Book, changes, moves_of, sweep_ms
from handbill.caps.model import EPOCH_MS, FOREVER_MS, Change, Kind, Limits, State, Subject, Verb, scope
from handbill.caps.packed import Malformed, Shelf
from handbill.caps.views import PastView, ViewStore
from handbill.infra.postgres import Database
from handbill.kit.clock import Clock, from_ms


class History:
    def __init__(self, database: Database, views: ViewStore, book: Book, clock: Clock) -> None:
        self._database = database
        self._views = views
        self._book = book
        self._clock = clock

    async def of(self, subject: Subject, value: bytes) -> list[Change]:
        """What completes this value. It was read before we ask, so that every confirmed time in it is in the total."""
        tenant_id = subject.tenant_id
        async with self._database.tenant(tenant_id) as tx:
            past, totals = await self._views.of_user(tx, tenant_id, subject.id)
        found = [change for view in past for change in self._told(view)]
        lasting = {banner_id: total for banner_id, total in totals.items() if self._lifetime(tenant_id, banner_id)}
        if lasting:
            now_ms = self._clock.now_ms()
            shelf = Shelf(ledger.apply(_readable(value), found, now_ms, sweep_ms(self._book, tenant_id)).value)
            for banner_id, total in lasting.items():
                found += self._ancient(tenant_id, banner_id, total, shelf)
        return found

    async def pages(self) -> AsyncIterator[dict[Subject, list[Change]]]:
        """Everybody's committed views inside the longest window, a page at a time, each in its own transaction."""
        since = from_ms(self._clock.now_ms() - sweep_ms(self._book, None))
        here: tuple[int, str, int, datetime, bytes] = (0, "", 0, from_ms(0), b"")
        while True:
            async with self._database.worker() as tx:
                views = await self._views.page(tx, here, since)
            if not views:
                return
            last = views[-1]
            here = (last.tenant_id, last.user_id, last.banner_id, from_ms(last.at_ms), last.event_key)
            page: dict[Subject, list[Change]] = {}
            for view in views:
                page.setdefault(Subject(view.tenant_id, view.user_id), []).extend(self._told(view))
            yield page

    async def lifetimes(self) -> AsyncIterator[list[Subject]]:
        """Everybody who ever saw a banner with a lifetime limit."""
        here: tuple[int, str, int] = (0, "", 0)
        while True:
            async with self._database.worker() as tx:
                totals = await self._views.totals_page(tx, here)
            if not totals:
                return
            here = totals[-1]
            yield sorted(
                {Subject(tenant, user) for tenant, user, banner in totals if self._lifetime(tenant, banner)},
                key=lambda subject: (subject.tenant_id, subject.id),
            )

    def _told(self, view: PastView) -> list[Change]:
        moves = moves_of(view.event_key, view.at_ms, view.banner_id, view.campaign_id, view.placement_id)
        return changes(self._book, Verb.CONFIRM, view.tenant_id, moves)

    def _lifetime(self, tenant_id: int, banner_id: int) -> Limits | None:
        limits = self._book.limits(tenant_id, scope(Kind.BANNER, banner_id))
        return limits if limits is not None and limits.horizon_ms == FOREVER_MS else None

    def _ancient(self, tenant_id: int, banner_id: int, total: int, shelf: Shelf) -> list[Change]:
        limits = self._lifetime(tenant_id, banner_id)
        assert limits is not None
        each = scope(Kind.BANNER, banner_id)
        real = sum(1 for seen in shelf.seen(each) if seen.state is State.CONFIRMED and seen.at_ms > EPOCH_MS)
        number = max(0, min(total - real, limits.keep))
        return [Change(Verb.CONFIRM, each, EPOCH_MS, n, limits.keep, FOREVER_MS) for n in range(number)]


def _readable(value: bytes) -> bytes:
    try:
        Shelf(value)
    except Malformed:
        return b""
    return value
