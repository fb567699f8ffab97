"""The face of the caps room: move at the edge, settle after the commit, read for a decision, rebuild after a loss."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import date, timedelta
from typing import Any, TypeVar

import msgspec

from handbill.caps import ledger
from handbill.caps.book import Book, CapMove, changes, moves_of, sweep_ms
from handbill.caps.copies import may_be_forgotten_copy
from handbill.caps.history import History
from handbill.caps.model import ANY_LEASE, LEASED, By, Change, Rule, Subject, Verb, Viewer, Window
from handbill.caps.opened import Caps
from handbill.caps.packed import EMPTY, Shelf
from handbill.caps.store import CapsStore
from handbill.caps.together import Groups, Together
from handbill.caps.views import NewView, ViewStore
from handbill.infra.postgres import Database, Tx
from handbill.infra.redis import Keys, Redis, RedisError
from handbill.infra.state import StateTable
from handbill.kit import task_health
from handbill.kit.clock import Clock
from handbill.kit.errors import Broken, Busy
from handbill.kit.telemetry import logs, metrics

__all__ = ["STATE", "Book", "CapEntry", "CapMove", "Caps", "CapsService", "NewView", "moves_of"]

_log = logs.get("caps")
_USER = (By.USER,)
K = TypeVar("K", bound=Hashable)

STATE = (
    StateTable("caps.user_views", ("tenant_id", "event_key"), frozenset({"received_at", "lane"})),
    StateTable("caps.cap_totals", ("tenant_id", "user_id", "banner_id")),
    StateTable("caps.cap_archive", ("tenant_id", "kind", "subject", "scope")),
    StateTable("caps.users", ("tenant_id", "user_id", "device_id"), frozenset({"created_at"})),
)


class CapEntry(msgspec.Struct, frozen=True):
    """What happened to one user."""

    tenant_id: int
    user_id: str
    moves: tuple[CapMove, ...]
    device_id: str | None = None
    session_id: str | None = None

    @property
    def viewer(self) -> Viewer:
        return Viewer(self.tenant_id, self.user_id, self.device_id, self.session_id)


class CapsService:
    """`asking` bounds the questions to PostgreSQL that are in flight at once; `number` draws the numbers of leases."""

    def __init__(
        self,
        redis: Redis,
        database: Database,
        book: Book,
        clock: Clock,
        *,
        keys: Keys | None = None,
        asking: int = 50,
        number: Callable[[], int] | None = None,
    ) -> None:
        self.book = book
        self._store = CapsStore(redis, keys or Keys())
        self._database = database
        self._clock = clock
        self._asking = asyncio.Semaphore(asking)
        self._number = number or (lambda: random.SystemRandom().randrange(1, ANY_LEASE))
        self.views = ViewStore()
        """Rows in the pipeline's transaction."""
        self._history = History(database, self.views, book, clock)
        self._together = Together(database, self._store, self.views, self._history, book, clock)
        self._history.siblings = self._together.siblings

    # --- the edge
    def move_commands(
        self,
        tenant_id: int,
        user_id: str,
        moves: Iterable[CapMove],
        *,
        device_id: str | None = None,
        session_id: str | None = None,
        lease: int = 0,
    ) -> list[list[Any]]:
        """Commands (one per value, none where nothing is limited) for the same round trip as the journal's append."""
        viewer = Viewer(tenant_id, user_id, device_id, session_id)
        return self._commands(changes(self.book, Verb.MOVE, viewer, moves, lease))

    def may_be_forgotten_copy(
        self, tenant_id: int, moves: Iterable[CapMove], decided_ms: int | None, now_ms: int
    ) -> bool:
        """Whether this view must be looked up before it moves a cap; `decided_ms` is of its token, if it is good."""
        return may_be_forgotten_copy(self.book, tenant_id, moves, decided_ms, now_ms)

    async def move(self, tenant_id: int, user_id: str, moves: Iterable[CapMove]) -> None:
        await self._store.run(self.move_commands(tenant_id, user_id, moves))

    def reported_late(self) -> None:
        """A strict view came after its lease had ended: it counts all the same, and may be one too many."""
        metrics.CAPS_LATE.inc()

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
                for subject, mine in changes(self.book, verb, entry.viewer, entry.moves).items():
                    told.setdefault(subject, []).extend(mine)
        await self._store.run(self._commands(await self._together.spread(told)))

    # --- a decision
    async def look(self, viewer: Viewer, kinds: Sequence[By] = _USER, beside: Sequence[bytes] = ()) -> Caps:
        """All that binds this viewer, in one read. Where Redis cannot be sure, PostgreSQL is asked.

        `beside` are other keys of Redis whose values come along. Raises Busy when neither answers, Broken or
        PostgresError when PostgreSQL refuses, too.
        """
        subjects = _subjects(viewer, kinds)
        try:
            readings, along = await self._store.read(list(subjects), beside)
        except (Busy, Broken, RedisError):
            return await self._told(viewer, subjects, dict.fromkeys(subjects, b""), "away")
        if readings[0].sure and all(reading.sure for reading in readings):
            shelves = {subject: reading.shelf for subject, reading in zip(subjects, readings, strict=True)}
            caps = _caps(viewer, shelves)
        else:
            values = {subject: reading.shelf.value for subject, reading in zip(subjects, readings, strict=True)}
            caps = await self._unmarked(viewer, subjects, values)
        caps.beside = along
        return caps

    async def _unmarked(self, viewer: Viewer, subjects: Iterable[Subject], values: Mapping[Subject, bytes]) -> Caps:
        try:
            return await self._told(viewer, subjects, values, "unmarked")
        except Busy:
            metrics.CAPS_HISTORY.labels("unanswered").inc()
            return _caps(viewer, {subject: Shelf(value) for subject, value in values.items()}, sure=False)

    async def completed(self, viewer: Viewer, kinds: Sequence[By], caps: Caps) -> Caps:
        """The same caps with PostgreSQL's views added, for a verdict that was unsure because a limit was raised."""
        subjects = _subjects(viewer, kinds)
        values = {subject: caps.shelves[by].value for subject, by in subjects.items()}
        return await self._told(viewer, subjects, values, "raised")

    async def _told(
        self, viewer: Viewer, subjects: Iterable[Subject], values: Mapping[Subject, bytes], why: str
    ) -> Caps:
        found = await asyncio.gather(*(self._history_of(subject, values[subject], why) for subject in subjects))
        shelves = {subject: shelf for subject, (shelf, _) in zip(subjects, found, strict=True)}
        told = {subject: told for subject, (_, told) in zip(subjects, found, strict=True)}
        return _caps(viewer, shelves, told=told)

    async def _history_of(self, subject: Subject, value: bytes, why: str) -> tuple[Shelf, list[Change]]:
        if why == "away" and self._asking.locked():
            raise Busy("Redis is away and PostgreSQL has enough to answer; nobody knows these caps.", code="CAPS_BUSY")
        metrics.CAPS_HISTORY.labels(why).inc()
        told = await self._database.hot.run(lambda: self._ask_history(subject, value), has_fallback=True)
        sweep = sweep_ms(self.book, subject.tenant_id)
        return Shelf(ledger.apply(value, told, self._clock.now_ms(), sweep).value), told

    async def _ask_history(self, subject: Subject, value: bytes) -> list[Change]:
        async with self._asking:
            return await self._history.of(subject, value)

    # --- strict
    async def lease(
        self, viewer: Viewer, asked: Sequence[tuple[K, Sequence[Rule]]], now_ms: int, until_ms: int, caps: Caps
    ) -> dict[K, int]:
        """Hold a slot for each thing that is about to be shown: those that got one, with the number of their lease.

        Without Redis nobody can promise anything: nothing is granted, and it is counted.
        """
        try:
            if caps.told:  # Redis decides, so it must know what PostgreSQL told
                await self._store.run(self._commands(caps.told))
            return await self._leased(viewer, asked, now_ms, until_ms)
        except (Busy, Broken, RedisError):
            metrics.CAPS_LEASES.labels("unanswered").inc(len(asked))
            return {}

    async def _leased(
        self, viewer: Viewer, asked: Sequence[tuple[K, Sequence[Rule]]], now_ms: int, until_ms: int
    ) -> dict[K, int]:
        plan: list[tuple[K, int, Subject, list[tuple[int, Sequence[Window]]]]] = []
        for key, rules in asked:
            number = self._number()
            for subject, slots in _slots(viewer, rules).items():
                plan.append((key, number, subject, slots))
        commands = [
            self._store.lease_command(subject, slots, now_ms, until_ms, number) for _, number, subject, slots in plan
        ]
        held = await self._store.lease(commands)
        refused = {key for (key, *_), reply in zip(plan, held, strict=True) if reply < 1}
        granted = {key: number for key, number, *_ in plan if key not in refused}
        halves: dict[Subject, list[Change]] = {}  # one value had a slot, another had none
        for (key, number, subject, slots), reply in zip(plan, held, strict=True):
            if key in refused and reply > 0:
                back = (Change(Verb.TAKE_BACK, each | LEASED, until_ms, number, 1, 0) for each, _ in slots)
                halves.setdefault(subject, []).extend(back)
        await self._store.run(self._commands(halves))
        metrics.CAPS_LEASES.labels("granted").inc(len(granted))
        metrics.CAPS_LEASES.labels("refused").inc(len(refused))
        return granted

    # --- people
    def follow(self, groups: Groups) -> None:
        """From now on ids of one person share their caps. Called by the wiring, once."""
        self._together.groups = groups

    async def regrouped(self, tenant_id: int, ids: Sequence[str]) -> None:
        """These ids were joined with others, or parted from them. Safe to repeat."""
        await self._together.regrouped(tenant_id, ids)

    async def erase(self, tenant_id: int, user_ids: list[str]) -> Mapping[str, int]:
        """Forget who it was: the values go, rows that are counted stay without a name. Safe to repeat."""
        async with self._database.worker() as tx:
            cleared = await self.views.erase(tx, tenant_id, user_ids)
        await self._store.drop([Subject(tenant_id, each, kind) for each in user_ids for kind in ("user", "alone")])
        return cleared

    async def export(self, tenant_id: int, user_id: str, most: int) -> Mapping[str, list[dict[str, Any]]]:
        """What is kept about somebody's views, for them to read."""
        async with self._database.worker() as tx:
            return await self.views.export(tx, tenant_id, user_id, most)

    # --- retention
    async def archive_month(self, tx: Tx, month: date) -> None:
        """Before a month of views is dropped, in the same transaction: keep what lifetime limits need of it."""
        end = (month + timedelta(days=32)).replace(day=1)
        for tenant_id, rule in self.book.lasting():
            await self.views.archive(tx, tenant_id, rule, month, end)

    # --- after a loss
    async def ensure(self, token: str) -> int | None:
        """Rebuild if the generation mark is gone. None: it stands. `token` is new for every call."""
        return None if await self._store.whole() else await self.rebuild(token)

    async def rebuild(self, token: str) -> int:
        """Put every committed view back and set the mark. Raises Busy if the store was wiped again meanwhile."""
        await self._store.begin_rebuild(token)
        count = await self._refill(None)
        if not await self._store.end_rebuild(token):
            raise Busy("The caps were wiped or rebuilt by somebody else meanwhile; nothing is lost, begin again.")
        _log.info("caps-rebuilt", times=count)
        return count

    async def backfill(self, tenant_id: int) -> int:
        """After a limit was raised: what it now needs and the old one had let go."""
        count = await self._refill(tenant_id)
        _log.info("caps-backfilled", tenant=tenant_id, times=count)
        return count

    async def _refill(self, tenant_id: int | None) -> int:
        """Repeating a view changes nothing, so this may run beside live traffic."""
        count = 0
        async for page in self._history.pages(tenant_id):
            task_health.heartbeat()
            await self._store.run(self._commands(await self._together.spread(page)))
            count += sum(map(len, page.values()))
        async for subjects in self._history.lifetimes(tenant_id):
            task_health.heartbeat()
            shared = await self._together.siblings(subjects)
            for subject in dict.fromkeys([*subjects, *(each for others in shared.values() for each in others)]):
                told = await self._history.of(subject, await self._store.raw(subject))
                await self._store.run(self._commands({subject: told}))
        metrics.CAPS_REBUILT.inc(count)
        return count

    def _commands(self, told: Mapping[Subject, Sequence[Change]]) -> list[list[Any]]:
        now_ms = self._clock.now_ms()
        return [
            self._store.command(subject, mine, now_ms, sweep_ms(self.book, subject.tenant_id))
            for subject, mine in told.items()
            if mine
        ]


def _subjects(viewer: Viewer, kinds: Sequence[By]) -> dict[Subject, By]:
    """Whose values to read."""
    found = {viewer.subject(by): by for by in kinds or _USER}
    return {subject: by for subject, by in found.items() if subject is not None}


def _caps(
    viewer: Viewer, shelves: Mapping[Subject, Shelf], *, sure: bool = True, told: Mapping[Subject, list[Change]] = {}
) -> Caps:
    ordered = []
    for by in By:
        subject = viewer.subject(by)
        ordered.append(shelves.get(subject, EMPTY) if subject is not None else EMPTY)
    return Caps((ordered[0], ordered[1], ordered[2]), sure, told)


def _slots(viewer: Viewer, rules: Sequence[Rule]) -> dict[Subject, list[tuple[int, Sequence[Window]]]]:
    found: dict[Subject, list[tuple[int, Sequence[Window]]]] = {}
    for rule in rules:
        subject = viewer.subject(rule.by)
        if subject is not None:
            found.setdefault(subject, []).append((rule.scope, rule.limits.windows))
    return found
