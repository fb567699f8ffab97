"""The House: every engine and every service of one process, built from the settings on one screen."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Protocol

from handbill.active_hours.service import ActiveHoursService
from handbill.adstats.providers.meta import MetaPolicy, MetaProvider
from handbill.adstats.providers.mock import MockProvider
from handbill.adstats.service import AdstatsService
from handbill.banners.service import CLICKS, BannersService, Catalogue, CatalogueBook, ShowPolicy, ThrottlePolicy
from handbill.banners.tally import APART
from handbill.caps.service import CapsService
from handbill.contacts.service import ContactsPolicy, ContactsService, InspectionLimits, UploadLimits
from handbill.events.accepted import Accepted
from handbill.events.capture import Capture, CapturePolicy
from handbill.events.capture_limits import Allowance, Limits
from handbill.events.edge import Edge, EdgePolicy
from handbill.events.entries import Entries
from handbill.events.forgetting import Forgetting
from handbill.events.service import EventsService, HistoryImporter, LaneProgress, StoredEvents
from handbill.infra.clickhouse import ClickHouse
from handbill.infra.journal.lanes import Lanes
from handbill.infra.journal.streams import StreamsJournal
from handbill.infra.postgres import Database, HotTimeouts, prepare_all
from handbill.infra.postgres.urls import PostgresUrls, derive
from handbill.infra.redis import Keys, Redis
from handbill.infra.redis.shared_clock import SharedClock
from handbill.jobs.breaker import Breaker
from handbill.jobs.pressure import PressureLimits
from handbill.jobs.service import JobsService, RelayPolicy
from handbill.jobs.worker.pool import CpuPool
from handbill.kit.disk import DiskLimits, DiskMonitor
from handbill.kit.public_url import PublicUrl
from handbill.kit.telemetry import logs
from handbill.messaging.service import MessagingService
from handbill.people.overrides import Overrides
from handbill.people.property_export import PropertyExport
from handbill.people.service import PeopleService, ReadWaits
from handbill.reports.service import ReportsService
from handbill.reports.touches import Touches
from handbill.segments.service import SegmentsService
from handbill.settings import Settings
from handbill.tenants.seals import Sealer
from handbill.tenants.service import TenantService
from handbill.wiring import addresses, schema, secrets, shipping
from handbill.wiring.audience import AddressBook, Reach
from handbill.wiring.insights import insights
from handbill.wiring.providers import check_base_url

_log = logs.get("wiring")

Shell = Literal["api", "worker", "tool"]
"""Who lives in the house: a tool (one command of the command line) needs the engines and the tenants, no more."""


class Part(Protocol):
    """Anything that is started before use and stopped after."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class House:
    """Built stopped. `start` goes top to bottom and leaves nothing running if it fails; `stop` goes bottom to top."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.database = _database(settings)
        self.redis = Redis(settings.redis.url or "", timeout=settings.redis.timeout_ms / 1000)
        self.clickhouse = ClickHouse(settings.clickhouse.url or addresses.NOBODY)
        self.clock = SharedClock(self.redis)
        self.disk = _disk(self)
        self.tenants = _tenants(self)
        self.jobs = _jobs(self)

        self.lanes = Lanes(main=settings.events.lanes, overflow=settings.events.overflow_lanes)
        self.journal = StreamsJournal(self.redis)
        self.edge = Edge(self.journal, self.lanes, self.database, self.clock, _edge_policy(settings))
        self.history = shipping.history_intake(self)
        self.events = EventsService(
            self.database, self.edge, clock=self.clock, audit=self.tenants.audit, outbox=self.jobs.outbox,
            stored=StoredEvents(self.clickhouse, APART), breaker=Breaker(self.redis), history=self.history,
        )  # fmt: skip
        self.history_importer = HistoryImporter(self.events, self.tenants.directory, self.clock)
        self.capture = _capture(self)
        self.catalogue = Catalogue(self.database, self.redis, self.clock)
        self.caps = CapsService(self.redis, self.database, CatalogueBook(self.catalogue), self.clock)
        self.people = PeopleService(
            self.database,
            self.redis,
            self.tenants.audit,
            self.clock,
            followers=[self.caps.regrouped],
            overrides=Overrides(self.database, self.clickhouse),
            property_export=PropertyExport(self.database, self.clickhouse),
        )
        self.read_waits = ReadWaits(self.database, LaneProgress(self.journal, self.lanes))
        self.caps.follow(self.people.groups)
        self.active_hours = ActiveHoursService(self.database)
        self.segments = SegmentsService(self.database, self.redis, self.tenants, self.clock)
        self.insights = insights(self)
        self.banners = _banners(self)
        self.events.dead.reread = Entries(self.tenants, self.clock).again
        self.events.dead.reship = shipping.reshipping(self)
        self.adstats = _adstats(self)
        self.reports = ReportsService(self.adstats, self.banners, Touches(self.clickhouse))
        self.inspection_pool = CpuPool(settings.contacts.preview_processes, settings.contacts.preview_memory_mb << 20)
        self.contacts = _contacts(self)
        self.messaging = _messaging(self)
        self.contacts.runner.told = self.messaging.import_done
        self.segments.editor.join(self.messaging.uses)
        _erasures(self)

        self._core: tuple[tuple[str, Part], ...] = (
            ("postgres", self.database),
            ("redis", self.redis),
            ("clickhouse", self.clickhouse),
            ("clock", self.clock),
            ("tenants", self.tenants),
            ("journal", self.journal),
            ("adstats", self.adstats),
            ("inspection-pool", self.inspection_pool),
        )
        self._serving: tuple[tuple[str, Part], ...] = (
            ("disk", self.disk),
            ("catalogue", self.catalogue),
            ("edge", self.edge),
            ("capture", self.capture),
            ("segments", self.segments),
            ("banners", self.banners),
            ("insights", self.insights),
            ("messaging", self.messaging),
        )
        self._started: list[tuple[str, Part]] = []

    async def start(self, shell: Shell = "api") -> None:
        """A server refuses to begin unless the engines answer and the schema is this code's; a tool just begins."""
        try:
            await self._start(self._core)
            if shell != "tool":
                await self.check()
                await self._start(self._serving)
        except BaseException:
            await self.stop()
            raise

    async def _start(self, parts: tuple[tuple[str, Part], ...]) -> None:
        for name, part in parts:
            self._started.append((name, part))
            await part.start()

    async def check(self) -> None:
        """ClickHouse is not asked: while it is away, accepted events wait in the journal."""
        await self.database.health()
        await self.redis.health()
        await schema.check(self.settings)
        await prepare_all(self.database)

    async def stop(self) -> None:
        """Each part is stopped whatever the others do; a part that cannot stop is told and left."""
        while self._started:
            name, part = self._started.pop()
            try:
                await part.stop()
            except Exception as error:  # noqa: BLE001 - one part's failure must not keep the next from stopping
                _log.error("stop-failed", part=name, error=f"{type(error).__name__}: {error}")


def _erasures(house: House) -> None:
    """Every room that keeps something about people, in the order in which they are asked.

    Parked events come before the history, where they may be on their way to; people last, who know which ids are one.
    """
    erasures, history = house.tenants.erasures, Forgetting(house.database, house.clickhouse)
    accepted = Accepted(house.database, house.journal, house.lanes)
    reach = Reach(house.contacts, house.messaging)

    async def settled(tenant_id: int) -> None:
        await accepted.counted()
        await house.people.keeper.settle(tenant_id)

    erasures.join_whole("caps", house.caps.erase, house.caps.export)
    erasures.join_whole("banners", house.banners.erasure.erase, house.banners.erasure.export)
    erasures.join_whole("active_hours", house.active_hours.erase, house.active_hours.export)
    erasures.join_whole("segments", house.segments.erasure.erase, house.segments.erasure.export)
    erasures.join_whole("parked", house.events.dead.erase, house.events.dead.export)
    erasures.join_whole("history", history.erase, history.export)
    erasures.join("reach", reach.erase, reach.export)
    erasures.join_whole("people", house.people.erase, house.people.export, last=True)
    erasures.settled, erasures.siblings = settled, house.people.siblings


def build(settings: Settings) -> House:
    """The house for these settings; engines without a URL are those of the running `handbill up`."""
    return House(addresses.resolve(settings, need=("postgres", "redis")))


def postgres_urls(settings: Settings) -> PostgresUrls:
    given = settings.postgres
    prepared = True if given.pooler_prepares else None
    return derive(
        given.url or "", app=given.app_url, worker=given.worker_url, direct=given.direct_url, prepared=prepared
    )


def _database(settings: Settings) -> Database:
    return Database(
        postgres_urls(settings),
        app_size=settings.postgres.app_size,
        worker_size=settings.postgres.worker_size,
        direct_size=settings.postgres.direct_size,
        statement_timeout_ms=settings.postgres.statement_timeout_ms,
        lock_timeout_ms=settings.postgres.lock_timeout_ms,
        hot=HotTimeouts(settings.postgres.fallback_timeout_ms / 1000, settings.postgres.lookup_timeout_ms / 1000),
    )


def _disk(house: House) -> DiskMonitor:
    given = house.settings.health
    limits = DiskLimits(given.disk_free_bytes, given.disk_free_ratio)
    return DiskMonitor(Path(house.settings.home), limits, house.clock)


def _tenants(house: House) -> TenantService:
    settings = house.settings
    return TenantService(
        house.database,
        house.redis,
        seal_key=secrets.seal_key(settings),
        clock=house.clock,
        session_hours=settings.tenants.session_hours,
        key_cache_seconds=settings.tenants.key_cache_seconds,
    )


def _jobs(house: House) -> JobsService:
    given = house.settings.jobs
    return JobsService(
        house.database,
        house.redis,
        prefix=given.prefix,
        clock=house.clock,
        audit=house.tenants.audit,
        relay=RelayPolicy(
            per_tenant=given.relay_per_tenant, per_cycle=given.relay_per_cycle, poll_s=given.relay_poll_ms / 1000
        ),
        pressure=PressureLimits(depth=given.pressure_depth, age_s=given.pressure_age_s),
        sweep_grace_s=given.sweep_grace_s,
        handled_days=given.handled_days,
    )


def _edge_policy(settings: Settings) -> EdgePolicy:
    given = settings.events
    return EdgePolicy(
        threshold=given.backpressure_threshold,
        unshipped=given.unshipped_limit,
        threshold_s=given.backpressure_seconds,
        retry_after_s=given.retry_after_s,
    )


def _capture(house: House) -> Capture:
    given = house.settings.events
    policy = CapturePolicy(limits=Limits(per_day=given.quota_per_day, per_second=given.rate_per_second))
    allowance = Allowance(house.redis, Keys(), house.clock)
    return Capture(house.edge, house.tenants.directory, allowance, house.history, house.clock, policy)


def _banners(house: House) -> BannersService:
    given, processes = house.settings.banners, house.settings.api.processes
    geo_url, geo_insecure = _geo_url(house.settings)
    return BannersService(
        house.database,
        house.redis,
        house.tenants,
        house.catalogue,
        house.events,
        house.caps,
        house.clock,
        throttle=ThrottlePolicy(limit=given.throttle_per_minute, processes=processes),
        key_throttle=ThrottlePolicy(
            limit=given.key_throttle_per_minute, processes=processes, code="KEY_THROTTLED", who="with this key"
        ),
        accidental_close_ms=given.accidental_close_ms,
        retention_days=given.retention_days,
        show=ShowPolicy(
            token_key=secrets.derived(house.settings, "decision tokens"),
            token_ttl_s=given.token_ttl_s,
            decisions_per_minute=given.decisions_per_minute,
            geo_file=country_file(house.settings),
            geo_url=geo_url,
            geo_insecure=geo_insecure,
            clicks=PublicUrl(house.settings.api.public_url).link_or_path(CLICKS),
        ),
        segments=house.segments,
        event_store=house.insights.reader,
    )


def _adstats(house: House) -> AdstatsService:
    given = house.settings.adstats
    insecure = check_base_url("HANDBILL_ADSTATS__META_URL", given.meta_url, insecure=given.meta_insecure)
    meta = MetaPolicy(
        url=given.meta_url,
        insecure=insecure,
        version=given.meta_version,
        app_secret=given.meta_app_secret or "",
        poll_s=given.meta_poll_ms / 1000,
    )
    return AdstatsService(
        house.database,
        house.jobs,
        house.tenants.audit,
        Sealer(secrets.derived(house.settings, "ad account tokens")),
        {"MOCK": MockProvider(house.clock), "META": MetaProvider(house.clock, meta)},
        house.clock,
        mode=given.mode,
        raw_days=given.raw_days,
    )


def _contacts(house: House) -> ContactsService:
    given = house.settings.contacts
    policy = ContactsPolicy(
        folder=Path(given.upload_dir) if given.upload_dir else Path(house.settings.home) / "uploads",
        upload_limit=given.upload_limit,
        unpacked_limit=given.unpacked_limit,
        xlsx_limit=given.xlsx_limit,
        at_once=given.imports_at_once,
        uploads=UploadLimits(
            given.imports_waiting, given.unstarted_uploads, given.unstarted_bytes, given.unstarted_hours
        ),
        keep_days=given.keep_days,
        report_days=given.report_days,
        chunk_bytes=given.chunk_bytes,
        slice_rows=given.slice_rows,
        chunk_seconds=given.chunk_seconds,
        inspection=InspectionLimits(given.preview_processes, given.preview_seconds),
    )
    return ContactsService(
        house.database, house.jobs, house.tenants.audit, house.clock, policy, house.inspection_pool.run,
        house.tenants.default_region, house.people,
    )  # fmt: skip


def country_file(settings: Settings) -> Path | None:
    """The operator's own file, which is never overwritten, or the place in the home for one that is fetched."""
    given = settings.banners
    if given.geo_file:
        return Path(given.geo_file)
    return Path(settings.home) / "geo" / "country.mmdb" if given.geo_url else None


def _geo_url(settings: Settings) -> tuple[str | None, bool]:
    """Where the country database is fetched from, and whether that may be plain HTTP or private."""
    given = settings.banners
    if given.geo_file or given.geo_url is None:
        return None, False
    insecure = check_base_url("HANDBILL_BANNERS__GEO_URL", given.geo_url, insecure=given.geo_insecure)
    return given.geo_url, insecure


def _messaging(house: House) -> MessagingService:
    from handbill.wiring import messaging  # it builds on the house, and this house on it

    return messaging.service(house, AddressBook(house.contacts, house.segments))
