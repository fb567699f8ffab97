"""Ids that are one person share their caps: the value of each holds the views of all.

A decision reads the value of the id it was asked for, and nothing else: still one round trip. The price is paid where
views are rare and time is plenty: a committed view is told to every id of its person. When people are joined or parted,
the values of their ids are written anew from PostgreSQL; what only Redis knows (views not committed yet, and leases)
belongs to the id it was reported for, and stays with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from handbill.caps import ledger
from handbill.caps.book import Book, limits_for, sweep_ms
from handbill.caps.history import History
from handbill.caps.model import Change, Subject, Verb
from handbill.caps.packed import Malformed
from handbill.caps.store import CapsStore
from handbill.caps.views import ViewStore
from handbill.infra.postgres import Database
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy

Groups = Callable[[int, Sequence[str]], Awaitable[Mapping[str, Sequence[str]]]]
"""Of each of a tenant's ids that is one of several of its person: all of that person's ids. Handed in by the wiring."""

SHARED = ("user", "alone")
"""Kinds of subjects that are people. A device is nobody's own, and a session belongs to one id."""
_TRIES = 20


class Together:
    def __init__(
        self, database: Database, store: CapsStore, views: ViewStore, history: History, book: Book, clock: Clock
    ) -> None:
        self._database = database
        self._store = store
        self._views = views
        self._history = history
        self._book = book
        self._clock = clock
        self.groups: Groups | None = None

    async def siblings(self, subjects: Iterable[Subject]) -> dict[Subject, list[Subject]]:
        """The other ids of each subject's person; nothing for those who have one id only."""
        asked: dict[int, set[str]] = {}
        shared = [subject for subject in subjects if subject.kind in SHARED]
        if self.groups is None or not shared:
            return {}
        for subject in shared:
            asked.setdefault(subject.tenant_id, set()).add(subject.id)
        groups = {tenant: await self.groups(tenant, sorted(ids)) for tenant, ids in asked.items()}
        found = {}
        for subject in shared:
            others = [each for each in groups[subject.tenant_id].get(subject.id, ()) if each != subject.id]
            if others:
                found[subject] = [Subject(subject.tenant_id, each, subject.kind) for each in others]
        return found

    async def spread(self, told: Mapping[Subject, list[Change]]) -> dict[Subject, list[Change]]:
        """The same changes, and those that are committed for every other id of the person too."""
        found = {subject: list(changes) for subject, changes in told.items()}
        for subject, others in (await self.siblings(told)).items():
            sure = [change for change in told[subject] if change.verb is Verb.CONFIRM]
            for other in others if sure else ():
                found.setdefault(other, []).extend(sure)
        return found

    async def regrouped(self, tenant_id: int, ids: Sequence[str]) -> None:
        """These ids were joined or parted: the value of each becomes what its person's committed views make it."""
        groups = await self.groups(tenant_id, ids) if self.groups is not None else {}
        everybody = sorted({*ids, *(each for group in groups.values() for each in group)})
        async with self._database.worker() as tx:
            if not await self._views.any_of(tx, tenant_id, everybody):
                return  # nobody of them ever saw a banner
        for each in ids:
            for kind in SHARED:
                await self._anew(Subject(tenant_id, each, kind))

    async def _anew(self, subject: Subject) -> None:
        sweep = sweep_ms(self._book, subject.tenant_id)
        for _ in range(_TRIES):
            value = await self._store.raw(subject)
            own = [change for change in self._readable(subject, value) if change.verb is Verb.MOVE]
            now_ms = self._clock.now_ms()
            kept = ledger.apply(b"", own, now_ms, sweep).value
            told = await self._history.of(subject, kept)
            if await self._store.replace(subject, value, own + told, now_ms, sweep):
                return
        raise Busy("A cap's value changed whenever it was to be written anew; it is tried again.", code="CAPS_BUSY")

    def _readable(self, subject: Subject, value: bytes) -> list[Change]:
        try:
            return ledger.changes_of(value, partial(limits_for, self._book, subject))
        except Malformed:
            return []
