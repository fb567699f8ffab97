"""The face of the caps room: move at the edge, settle after the commit, read for a decision, rebuild after a loss."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from handbill.caps import ledger
from handbill.caps.book import Book, CapMove, changes, moves_of, sweep_ms
from handbill.caps.history import History
from handbill.caps.model import Change, Limits, Subject, Verb, Verdict
from handbill.caps.packed import Shelf
from handbill.caps.store import CapsStore, Reading
from handbill.caps.views import NewView, ViewStore
from handbill.infra.postgres import Database
from handbill.infra.redis import Keys, Redis
from handbill.infra.state import StateTable
from handbill.kit.clock import Clock
from handbill.kit.errors import Busy
from handbill.kit.telemetry import logs, metrics

__all__ = ["STATE", "Book", "CapEntry", "CapMove", "CapsService", "NewView", "UserCaps", "moves_of"]

_log = logs.get("caps")

STATE = (
    StateTable("caps.user_views", ("tenant_id", "event_key"), frozenset({"received_at", "lane"})),
    StateTable("caps.cap_totals", ("tenant_id", "user_id", "banner_id")),
    StateTable("caps.users", ("tenant_id", "user_id", "device_id"), frozenset({"created_at"})),
)


class CapEntry(msgspec.Struct, frozen=True):
    """What happened to one user."""

    tenant_id: int
    user_id: str
    moves: tuple[CapMove, ...]


class UserCaps(msgspec.Struct, frozen=True):
    """One user's caps, opened. Not `sure`: PostgreSQL could not be asked, and views may be missing."""

    shelf: Shelf
    sure: bool

    def eligible(self, scope: int, limits: Limits, now_ms: int) -> bool:
        return self.shelf.eligible(scope, limits, now_ms)

    def verdict(self, scope: int, limits: Limits, now_ms: int) -> Verdict:
        found = self.shelf.verdict(scope, limits, now_ms)
        return msgspec.structs.replace(found, unsure=True) if found.eligible and not self.sure else found

    def next_eligible_at(self, scope: int, limits: Limits, now_ms: int) -> int | None:
        """The first moment it may be shown again; None for never."""
        return self.shelf.verdict(scope, limits, now_ms).next_eligible_at


class CapsService:
    """`asking` bounds the questions to PostgreSQL that are in flight at once."""

    def __init__(
        self, redis: Redis, database: Database, book: Book, clock: Clock, *, keys: Keys | None = None, asking: int = 50
    ) -> None:
        self._store = CapsStore(redis, keys or Keys())
        self._database = database
        self._book = book
        self._clock = clock
        self._asking = asyncio.Semaphore(asking)
        self.views = ViewStore()
        """Rows in the pipeline's transaction."""
        self._history = History(database, self.views, book, clock)

    # --- the edge
    def move_commands(self, tenant_id: int, user_id: str, moves: Iterable[CapMove]) -> list[list[Any]]:
        """Commands (one, or none where nothing is limited) for the same round trip as the journal's append."""
        return self._commands({Subject(tenant_id, user_id): changes(self._book, Verb.MOVE, tenant_id, moves)})

    async def move(self, tenant_id: int, user_id: str, moves: Iterable[CapMove]) -> None:
        await self._store.run(self.move_commands(tenant_id, user_id, moves))

    # --- after the commit
    async def confirm(self, entries: Iterable[CapEntry]) -> None:
        await self.settle(entries, ())

    async def take_back(self, entries: Iterable[CapEntry]) -> None:
        await self.settle((), entries)

    async def settle(self, confirmed: Iterable[CapEntry], refused: Iterable[CapEntry]) -> None:
        """What was committed, and what was a duplicate, refused or parked. Repeating it changes nothing."""
        told: dict[Subject, list[Change]] = {}
        for verb, entries in ((Verb.CONFIRM, confirmed), (Verb.TAKE_BACK, refused)):
            for entry in entries:
                mine = told.setdefault(Subject(entry.tenant_id, entry.user_id), [])
                mine.extend(changes(self._book, verb, entry.tenant_id, entry.moves))
        await self._store.run(self._commands(told))

    # --- a decision
    async def read(self, tenant_id: int, users: Sequence[str]) -> list[UserCaps]:
        """Caps of these users. Where Redis cannot be sure, PostgreSQL is asked; raises Busy when neither answers."""
        subjects = [Subject(tenant_id, user) for user in users]
        try:
            readings = await self._store.read(subjects)
        except Busy:
            return list(await asyncio.gather(*(self._asked(subject, b"", "away") for subject in subjects)))
        if all(reading.sure for reading in readings):
            return [UserCaps(reading.shelf, sure=True) for reading in readings]
        pairs = zip(subjects, readings, strict=True)
        return list(await asyncio.gather(*(self._completed(subject, reading) for subject, reading in pairs)))

    async def asked(self, tenant_id: int, user_id: str, caps: UserCaps) -> UserCaps:
        """The same caps with PostgreSQL's views added, for a verdict that was unsure because a limit was raised."""
        return await self._asked(Subject(tenant_id, user_id), caps.shelf.value, "raised")

    async def _completed(self, subject: Subject, reading: Reading) -> UserCaps:
        if reading.sure:
            return UserCaps(reading.shelf, sure=True)
        try:
            return await self._asked(subject, reading.shelf.value, "unmarked")
        except Busy:
            metrics.CAPS_HISTORY.labels("unanswered").inc()
            return UserCaps(reading.shelf, sure=False)

    async def _asked(self, subject: Subject, value: bytes, why: str) -> UserCaps:
        metrics.CAPS_HISTORY.labels(why).inc()
        async with self._asking:
            told = await self._history.of(subject, value)
        sweep = sweep_ms(self._book, subject.tenant_id)
        return UserCaps(Shelf(ledger.apply(value, told, self._clock.now_ms(), sweep).value), sure=True)

    # --- people
    async def merge(self, tenant_id: int, survivor: str, other: str) -> None:
        """Two ids turned out to be one person: the other's views become the survivor's, late ones too."""
        source, target = Subject(tenant_id, other), Subject(tenant_id, survivor)
        while value := await self._store.raw(source):
            told = ledger.changes_of(value, lambda each: self._book.limits(tenant_id, each))
            await self._store.run(self._commands({target: told}))
            if await self._store.forget(source, value):
                return

    async def erase(self, tenant_id: int, user_id: str) -> Mapping[str, int]:
        """Forget who it was: the value goes, rows that are counted stay without a name. Safe to repeat."""
        async with self._database.worker() as tx:
            cleared = await self.views.erase(tx, tenant_id, user_id)
        await self._store.drop(Subject(tenant_id, user_id))
        return cleared

    # --- after a loss
    async def ensure(self, token: str) -> int | None:
        """Rebuild if the generation mark is gone. None: it stands. `token` is new for every call."""
        return None if await self._store.whole() else await self.rebuild(token)

    async def rebuild(self, token: str) -> int:
        """Put every committed view back and set the mark. Raises Busy if the store was wiped again meanwhile.

        Repeating a view changes nothing, so it may run beside live traffic, and serves as the back-fill after a limit
        was raised.
        """
        await self._store.begin_rebuild(token)
        count = 0
        async for page in self._history.pages():
            await self._store.run(self._commands(page))
            count += sum(map(len, page.values()))
        async for subjects in self._history.lifetimes():
            for subject in subjects:
                told = await self._history.of(subject, await self._store.raw(subject))
                await self._store.run(self._commands({subject: told}))
        if not await self._store.end_rebuild(token):
            raise Busy("The caps were wiped or rebuilt by somebody else meanwhile; nothing is lost, begin again.")
        metrics.CAPS_REBUILT.inc(count)
        _log.info("caps-rebuilt", times=count)
        return count

    def _commands(self, told: Mapping[Subject, Sequence[Change]]) -> list[list[Any]]:
        now_ms = self._clock.now_ms()
        return [
            self._store.command(subject, mine, now_ms, sweep_ms(self._book, subject.tenant_id))
            for subject, mine in told.items()
            if mine
        ]
