"""One sync job: every usable connection of one seller, one level, some days. One account's trouble stays its own."""

from __future__ import annotations

import time
from datetime import date, datetime, timedelta
from uuid import UUID

import msgspec

from handbill.adstats import cadence, pipeline, store
from handbill.adstats.accounts import Accounts
from handbill.adstats.model import LEVELS, Connection, Mode, SyncJob, SyncState, Written
from handbill.adstats.providers.port import (
    AccountChanged,
    ProviderError,
    ProviderThrottled,
    Question,
    StatProvider,
    TokenDead,
)
from handbill.adstats.store import Kept, Source
from handbill.infra.postgres import Database, PostgresError
from handbill.kit.clock import Clock
from handbill.kit.ids import Ids
from handbill.kit.telemetry import logs, metrics

_log = logs.get("adstats")
TOKEN_CHECK = timedelta(days=1)
MONTH_DAYS = 31
"""A month that began fewer days ago is dropped by nobody."""


class Ended(msgspec.Struct, frozen=True):
    """What became of a job: rows written, accounts whose token died, and the trouble that a retry may mend."""

    written: Written
    accounts: int
    dead: list[str]
    trouble: list[ProviderError]
    parts: int = 0
    """Parts of backfills that this sync ended."""
    strangers: list[UUID] = []
    """Connections whose platform spoke of entities that nobody has imported."""


class Syncing:
    def __init__(
        self,
        database: Database,
        accounts: Accounts,
        clock: Clock,
        ids: Ids,
        *,
        mode: Mode,
    ) -> None:
        self._database = database
        self._accounts = accounts
        self._clock = clock
        self._ids = ids
        self._mode = mode
        self._months: set[date] = set()

    async def run(self, tenant: int, job: SyncJob, added: datetime | None = None) -> Ended:
        """All accounts of the seller. A part of a backfill that is covered is done when all of them answered.

        `added`: when the job was. An account that was read since is not read as deep again because another one failed.
        """
        async with self._database.tenant(tenant) as tx:
            levels = LEVELS[: LEVELS.index(job.level) + 1]
            accounts = await store.usable_connections(tx, tenant, levels)
            states = await store.sync_states(tx, tenant, None) if added is not None else []
        read = {one.connection_id: one for one in states if one.level == job.level}
        strangers: list[UUID] = []
        written = Written()
        dead: list[str] = []
        trouble: list[ProviderError] = []
        for kept in accounts:
            try:
                account = await self._accounts.verify(tenant, kept)
                corrected = _days_of(account.shown) != _days_of(kept.shown)
                last_read = None if corrected else read.get(kept.shown.connection_id)
                span = self._span(job, account, accounts, last_read, added)
                if span is not None:
                    written += await self._account(tenant, job, account, span, strangers)
                    await self._check_token(tenant, account)
            except TokenDead as error:
                dead.append(str(error))
                await self._died(tenant, job, kept, str(error))
            except ProviderError as error:
                trouble.append(error)
                if isinstance(error, AccountChanged):
                    await self._unverify(tenant, kept.shown)
                await self._note(tenant, job, kept.shown, str(error))
            except PostgresError as error:  # a figure that no column holds must not cost the seller its other accounts
                trouble.append(ProviderError(f"the figures told could not be written ({error.sqlstate})"))
                await self._note(tenant, job, kept.shown, str(trouble[-1]))
        parts = 0
        if not trouble and (not accounts or any(kept.waiting for kept in accounts)):
            why = dead[0] if dead else "no ad account is connected any more"
            state, said = ("done", None) if len(dead) < len(accounts) else ("failed", why)
            async with self._database.worker() as tx:
                parts = await store.end_parts(tx, tenant, job, state, said, self._clock.now())
        return Ended(written, len(accounts), dead, trouble, parts, strangers)

    async def give_up(self, tenant: int, job: SyncJob, error: str) -> None:
        """The last attempt has failed: the parts of a backfill that waited for it say so."""
        async with self._database.worker() as tx:
            await store.end_parts(tx, tenant, job, "failed", error[:300], self._clock.now())

    def _span(
        self, job: SyncJob, kept: Kept, accounts: list[Kept], read: SyncState | None, added: datetime | None
    ) -> tuple[date, date] | None:
        """The days to read of this account. Those of a backfill, and wider ones than any look-back, are read whole."""
        now, zone = self._clock.now(), kept.shown.time_zone
        first, last = job.dateFrom, min(job.dateTo, cadence.today(now, zone))
        if last < first:
            return None
        deepest = max(one.shown.look_back_days for one in accounts) + 1  # and what lies between two zones' todays
        if added is None or read is None or kept.waiting or (last - first).days > deepest:
            return first, last
        return cadence.unread((first, last), read, zone, now, added)

    async def _account(
        self, tenant: int, job: SyncJob, kept: Kept, span: tuple[date, date], strangers: list[UUID]
    ) -> Written:
        shown = kept.shown
        now = self._clock.now()
        provider = self._accounts.provider(shown.provider)
        question = Question(job.sellerId, self._accounts.open(tenant, kept), job.level, kept.tree, *span)
        if not question.of_level():  # read nonetheless: what stays due has the seller's others read deep each time
            await self._nothing(tenant, shown, question, now)
            return Written()
        written = await self._ask(tenant, shown, provider, question, now)
        if question.strangers:
            strangers.append(shown.connection_id)
        return written

    async def _nothing(self, tenant: int, shown: Connection, question: Question, now: datetime) -> None:
        source = Source(tenant, shown.connection_id, question.level, shown.currency, self._ids.new(), now)
        depth = cadence.depth(question.date_from, question.date_to, now, shown.time_zone, shown.look_back_days)
        async with self._database.worker() as tx:
            await store.note_synced(tx, source, depth)

    async def _ask(
        self, tenant: int, shown: Connection, provider: StatProvider, question: Question, now: datetime
    ) -> Written:
        """Fetch first, with no transaction open; then write all of it in one."""
        began = time.perf_counter()
        rows = await provider.fetch_stats(question)
        metrics.ADSTATS_FETCH_SECONDS.labels(shown.provider).observe(time.perf_counter() - began)
        days = cadence.days(question.date_from, question.date_to)
        if provider.kind == "CUMULATIVE":
            rows = pipeline.complete(rows, question.of_level(), days, silence_is_zero=provider.silence_is_zero)
        source = Source(tenant, shown.connection_id, question.level, shown.currency, self._ids.new(), now)
        depth = cadence.depth(question.date_from, question.date_to, now, shown.time_zone, shown.look_back_days)
        await self._make_months(days, now.date())
        async with self._database.worker() as tx:
            await store.lock_seller(tx, tenant)
            known = await store.find_connection(tx, tenant, shown.connection_id)
            if known is None or _days_of(known.shown) != _days_of(shown):
                raise ProviderError("the account was corrected while its platform answered; it is read again")
            written = await pipeline.write(tx, source, rows, self._rules(provider))
            await store.note_synced(tx, source, depth, len(question.strangers))
        metrics.ADSTATS_ROWS.labels("raw").inc(written.raw)
        metrics.ADSTATS_ROWS.labels("daily").inc(written.daily)
        metrics.ADSTATS_ROWS.labels("sellpage").inc(written.sellpage)
        return written

    async def _make_months(self, days: list[date], today: date) -> None:
        """Each in a transaction of its own: making one locks the whole table, and nobody waits for more under that.

        The newest are remembered; others may have been dropped since, and are looked for each time.
        """
        self._months = {month for month in self._months if (today - month).days < MONTH_DAYS}
        for month in sorted({day.replace(day=1) for day in days} - self._months):
            async with self._database.worker() as tx:
                await store.make_month(tx, month)
            self._months.add(month)

    async def rebuild(self, tenant: int, first: date, last: date) -> Written:
        """Days and sellpages again from the raw rows, for every connection and level of a seller."""
        written = Written()
        async with self._database.tenant(tenant) as tx:
            found = await store.list_connections(tx, tenant, store.FIRST, 1_000)
        for shown in found:
            provider = self._accounts.provider(shown.provider)
            for level in provider.levels:
                async with self._database.worker() as tx:
                    await store.lock_seller(tx, tenant)
                    known = await store.find_connection(tx, tenant, shown.connection_id)
                    currency = known.shown.currency if known else shown.currency
                    source = Source(tenant, shown.connection_id, level, currency, self._ids.new(), self._clock.now())
                    written += await pipeline.rebuild(tx, source, first, last, self._rules(provider))
        return written

    def _rules(self, provider: StatProvider) -> pipeline.DayRules:
        return pipeline.DayRules(provider.kind, self._mode, self._accounts.ad_sources)

    async def _check_token(self, tenant: int, kept: Kept) -> None:
        """Ask once a day when the token ends. Raises TokenDead; no other answer fails the sync."""
        shown, now = kept.shown, self._clock.now()
        if not kept.sealed or (shown.token_checked_at is not None and now - shown.token_checked_at < TOKEN_CHECK):
            return
        async with self._database.worker() as tx:
            if not await store.claim_token_check(tx, tenant, shown.connection_id, now, now - TOKEN_CHECK):
                return
        try:
            ends_at = await self._accounts.provider(shown.provider).token_end(self._accounts.open(tenant, kept))
        except TokenDead:
            raise
        except ProviderError as error:
            _log.info("adstats.token_not_checked", connection_id=str(shown.connection_id), error=str(error)[:300])
            return
        if ends_at is not None:
            async with self._database.worker() as tx:
                await store.note_token_end(tx, tenant, shown.connection_id, kept.sealed, ends_at)

    async def _died(self, tenant: int, job: SyncJob, kept: Kept, why: str) -> None:
        now = self._clock.now()
        async with self._database.worker() as tx:
            marked = await store.kill_token(tx, tenant, kept.shown.connection_id, kept.sealed, why[:300], now)
            await store.note_failed(tx, tenant, kept.shown.connection_id, job.level, now, why[:300])
        if marked is not None:
            metrics.ADSTATS_TOKENS_DEAD.inc()
            _log.warning("ad-account-disconnected", sellerId=str(job.sellerId), connectionId=str(marked))

    async def _unverify(self, tenant: int, shown: Connection) -> None:
        async with self._database.worker() as tx:
            await store.clear_verified(tx, tenant, shown.connection_id)

    async def _note(self, tenant: int, job: SyncJob, shown: Connection, why: str) -> None:
        async with self._database.worker() as tx:
            await store.note_failed(tx, tenant, shown.connection_id, job.level, self._clock.now(), why[:300])


def _days_of(connection: Connection) -> tuple[str, str]:
    """What the figures of an account's days depend on."""
    return connection.currency, connection.time_zone


def retry_after(trouble: list[ProviderError]) -> float | None:
    """Seconds until asking again makes sense, when throttling is all that stands in the way."""
    throttled = [error.retry_after_s for error in trouble if isinstance(error, ProviderThrottled)]
    return max(throttled) if throttled and len(throttled) == len(trouble) else None
