"""A caps room on real engines with a clock and a book of its own, and the few verbs the tests speak in."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

from handbill.caps.model import FOREVER_MS, By, Kind, Limits, Rule, Subject, Viewer, scope
from handbill.caps.service import Caps, CapsService, moves_of
from handbill.caps.sink import CapsSink
from handbill.caps.store import CapsStore
from handbill.infra.postgres import Database
from handbill.infra.redis import Keys, Redis
from tests.kit.clocks import FakeClock

HOUR = 3_600_000


class FakeBook:
    """Limits that a test may change at once: `scopes` for users, `more` for whatever else."""

    def __init__(self, **limits: Limits) -> None:
        self.scopes = {int(name[1:]): each for name, each in limits.items()}
        self.more: list[Rule] = []
        self.tenant = 0

    def all(self) -> list[Rule]:
        return [Rule(By.USER, each, limits) for each, limits in self.scopes.items()] + self.more

    def rules(self, tenant_id: int, scope: int) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.all() if rule.scope == scope)

    def all_rules(self, tenant_id: int) -> list[Rule]:
        return self.all()

    def lasting(self) -> list[tuple[int, Rule]]:
        return [(self.tenant, rule) for rule in self.all() if rule.limits.horizon_ms == FOREVER_MS]

    def longest_ms(self, tenant_id: int | None) -> int:
        spans = [window.y_ms for rule in self.all() for window in rule.limits.windows if window.y_ms < FOREVER_MS]
        return max(spans, default=HOUR)


def event_key(name: str) -> bytes:
    return blake2b(name.encode(), digest_size=16).digest()


class CapsHouse:
    def __init__(self, redis: Redis, database: Database, tenant: int, prefix: str, book: FakeBook) -> None:
        self.clock = FakeClock()
        self.book = book
        self.tenant = book.tenant = tenant
        self.redis = redis
        self.database = database
        self.keys = Keys(prefix)
        self.caps = CapsService(redis, database, book, self.clock, keys=self.keys)
        self.store = CapsStore(redis, self.keys)
        self.sink = CapsSink(database, self.caps)

    def view(
        self, name: str, banner: int = 7, user: str = "ann", counted: bool = True, *, device: str | None = "d",
        session: str | None = "s", campaign: int | None = None, placement: int | None = None,
    ) -> Any:  # fmt: skip
        now = self.clock.now_ms()
        event = SimpleNamespace(
            kind="view", tenant=self.tenant, id=name, at=now, received=now, banner=banner, placement=placement,
            campaign=campaign, user=user, session=session, device_id=device, duration_ms=3_000, dismissed=False,
            counted=counted, marks=(), variant=None,
        )  # fmt: skip
        return SimpleNamespace(key=event_key(name), event=event)

    async def accept(self, row: Any, lease: int = 0) -> None:
        event = row.event
        moves = moves_of(row.key, event.at, event.banner, event.campaign, event.placement)
        commands = self.caps.move_commands(
            self.tenant, event.user, moves, device_id=event.device_id, session_id=event.session, lease=lease
        )
        await self.store.run(commands)

    async def commit(self, *rows: Any, refused: tuple[Any, ...] = ()) -> None:
        await self.sink.prepare(rows)
        async with self.database.worker() as tx:
            await self.sink.write(tx, rows, 0)
        await self.sink.project(rows, refused)

    async def shown(self, banner: int = 7, user: str = "ann") -> bool:
        return await self.free(self.viewer(user), self.rules(banner))

    def rules(self, banner: int = 7, campaign: int | None = None, placement: int | None = None) -> list[Rule]:
        """What binds this banner there."""
        scopes = [scope(Kind.BANNER, banner)]
        scopes += [scope(Kind.CAMPAIGN, campaign)] if campaign is not None else []
        scopes += [scope(Kind.PLACEMENT, placement)] if placement is not None else []
        return [rule for rule in self.book.all() if rule.scope in scopes]

    def viewer(self, user: str = "ann", device: str | None = "d", session: str | None = "s") -> Viewer:
        return Viewer(self.tenant, user, device, session)

    async def look(self, viewer: Viewer, rules: Sequence[Rule]) -> Caps:
        caps = await self.caps.look(viewer, tuple(By))
        if caps.unsure(rules, self.clock.now_ms()):
            caps = await self.caps.completed(viewer, tuple(By), caps)
        return caps

    async def free(self, viewer: Viewer, rules: Sequence[Rule]) -> bool:
        return (await self.look(viewer, rules)).free(rules, self.clock.now_ms())

    async def lease(self, viewer: Viewer, rules: Sequence[Rule], for_ms: int = 63_000) -> int | None:
        now = self.clock.now_ms()
        caps = await self.look(viewer, rules)
        return (await self.caps.lease(viewer, [("it", rules)], now, now + for_ms, caps)).get("it")

    async def raw(self, user: str = "ann", kind: str = "user") -> bytes:
        return await self.store.raw(Subject(self.tenant, user, kind))

    async def wipe(self) -> None:
        """What a wiped Redis is to the caps: every value and the mark gone."""
        subjects = [Subject(self.tenant, user, kind) for user in ("ann", "bob", "cid") for kind in ("user", "alone")]
        subjects += [Subject(self.tenant, device, "device") for device in ("d", "e")]
        subjects += [Subject(self.tenant, f"{user}\0{s}", "session") for user in ("ann", "bob") for s in ("s", "t")]
        names = [self.store.key(subject) for subject in subjects]
        await self.redis.call("DEL", *names, *(self.keys.tagged("caps", "caps", part) for part in ("mark", "building")))
