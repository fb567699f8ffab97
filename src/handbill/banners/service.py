"""The face of this room: the catalogue and its editor, what is shown, what is tracked, and the stats."""

from __future__ import annotations

from handbill.banners.asking import Asking, users_of
from handbill.banners.backfill import Backfill
from handbill.banners.catalogue import Catalogue
from handbill.banners.editor import Editor
from handbill.banners.erasure import Erasure
from handbill.banners.imports import CHUNK, Importer, ImportKind, Refused, lines
from handbill.banners.limits import CatalogueBook
from handbill.banners.plan import CLICKS
from handbill.banners.reporters import Reporters
from handbill.banners.retention import Retention
from handbill.banners.rollup import Rollup
from handbill.banners.schedule import Schedule
from handbill.banners.serving import Serving
from handbill.banners.show import Show, ShowPolicy
from handbill.banners.sink import BannerSink
from handbill.banners.stats import Stats, StatsAnswer, StatsQuery
from handbill.banners.tally import FIGURES
from handbill.banners.throttle import Throttle, ThrottlePolicy
from handbill.banners.tracking import Tracking
from handbill.banners.views import Views
from handbill.caps.service import CapsService
from handbill.events.service import EventsService
from handbill.infra.postgres import Database
from handbill.infra.redis import Keys, Redis
from handbill.infra.state import StateTable
from handbill.insights.service import EventStoreReader
from handbill.kit.clock import Clock
from handbill.kit.fast import FastRoute
from handbill.kit.ids import Ids
from handbill.segments.service import SegmentsService
from handbill.tenants.service import TenantService

__all__ = [
    "CHUNK", "CLICKS", "STATE", "BannerSink", "BannersService", "Catalogue", "CatalogueBook", "ImportKind", "Refused",
    "ShowPolicy", "StatsQuery", "ThrottlePolicy", "lines",
]  # fmt: skip

_TOUCHED = frozenset({"updated_at", "limits_raised_at"})  # the back-fill clears the latter in its own time
_RAW = frozenset({"received_at", "lane"})
STATE = (
    StateTable("banners.placements", ("id",), _TOUCHED),
    StateTable("banners.campaigns", ("id",), _TOUCHED),
    StateTable("banners.banners", ("id",), _TOUCHED),
    StateTable("banners.deciding", ("tenant_id",), frozenset({"updated_at"})),
    StateTable("banners.banner_impressions", ("tenant_id", "event_key"), _RAW),
    StateTable("banners.banner_clicks", ("tenant_id", "event_key"), _RAW),
    StateTable("banners.banner_stats", (), frozenset({"lane", "updated_at"}), frozenset(FIGURES)),
)


class BannersService:
    def __init__(
        self,
        database: Database,
        redis: Redis,
        tenants: TenantService,
        catalogue: Catalogue,
        events: EventsService,
        caps: CapsService,
        clock: Clock,
        *,
        throttle: ThrottlePolicy | None = None,
        key_throttle: ThrottlePolicy | None = None,
        accidental_close_ms: int = 500,
        retention_days: int = 90,
        show: ShowPolicy | None = None,
        keys: Keys | None = None,
        segments: SegmentsService | None = None,
        event_store: EventStoreReader | None = None,
    ) -> None:
        ids = Ids(clock)
        self.catalogue = catalogue
        asking = Asking(segments.editor if segments is not None else None)
        self.editor = Editor(database, catalogue, tenants.audit, clock, ids, asking)
        if segments is not None:
            segments.editor.join(users_of)
        known = segments.known if segments is not None else None
        self.schedule = Schedule(database, redis, catalogue)
        self.rollup = Rollup(database, clock, ids)
        self.stats = Stats(database, tenants.directory, clock, events, event_store)
        self.retention = Retention(database, clock, days=retention_days, archive=caps.archive_month)
        self.erasure = Erasure(database)
        self.importer = Importer(catalogue, events, clock)
        keys = keys or Keys()
        guard = Throttle(redis, keys, clock, throttle)
        self.backfill = Backfill(database, catalogue, caps, clock)
        self.show = Show(database, redis, tenants.directory, catalogue, caps, events, guard, clock, keys, show, known)
        self.serving = Serving(catalogue, caps, tenants.directory, clock, show=self.show)
        by_key = Throttle(redis, keys, clock, key_throttle)
        reporters = Reporters(tenants.directory, guard, by_key, clock)
        self._tracking = Tracking(catalogue, events, tenants.directory, self.show.tokens, reporters, clock)
        self._views = Views(
            catalogue,
            events,
            caps,
            tenants.directory,
            reporters,
            clock,
            tokens=self.show.tokens,
            accidental_close_ms=accidental_close_ms,
        )

    async def start(self) -> None:
        """Begin to look after what decisions need beside the catalogue: rates so far, and the table of countries."""
        await self.show.start()

    async def stop(self) -> None:
        await self.show.stop()

    async def read_stats(self, tenant_id: int, query: StatsQuery) -> StatsAnswer:
        return await self.stats.read(tenant_id, query)

    def fast_routes(self) -> list[FastRoute]:
        return [*self.serving.routes(), *self._views.routes(), *self._tracking.routes()]
