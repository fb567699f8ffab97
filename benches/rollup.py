"""The recount of one day against the bare GROUP BY that finds the same numbers, in seconds.

The day was counted live, so that the recount compares, finds nothing to correct, works the marks out anew and says
done: what the nightly job does. Three rows of the live stats are spoilt before each round, so that it has to correct
them. The limit reads the same raw rows once and groups them; no comparison, no writing. The marks (clicks that nobody
saw an impression for) are no part of the recount of numbers: their time is told beside it, with the whole.
"""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime, timedelta

import asyncpg

from benches._bench import Options, Result, alternating, main, require, rounded, say
from benches._shop import Shop, house, shops
from handbill.kit.telemetry import metrics
from handbill.wiring.house import postgres_urls
from tests.kit.stack import stack

BAR = "ratio <= 1.3"
BANNERS = 40
MARKS = ("forget_marks", "mark_unseen_clicks", "mark_fast_repeats")

# Rows as the pipeline leaves them: a day of one tenant, 85 % impressions, 5 % clicks, 10 % views, in order of arrival.
_IMPRESSIONS = """
insert into banners.banner_impressions (
    tenant_id, event_key, correlation_id, banner_id, placement_id, campaign_id, session_id, user_id, device_type,
    country_code, page_url, occurred_at, received_at, lane, marks)
select $1::int, uuid_send(gen_random_uuid()), 'i' || n, ($2::int[])[1 + n % 40], $3::int, $4::int, 's' || n % 200000,
       'u' || n % 300000, 'mobile', 'DE', 'https://shop.example/spring/shoes', at, at, n % 4,
       case when n % 50 = 0 then '{bot}'::text[] else '{}' end
from (select n, $5::timestamptz + n * ($6::interval / $7::int) as at from generate_series(0, $7 - 1) n) day
"""
_CLICKS = """
insert into banners.banner_clicks (
    tenant_id, event_key, correlation_id, banner_id, placement_id, campaign_id, session_id, user_id, device_type,
    country_code, page_url, destination_url, occurred_at, received_at, lane)
select $1::int, uuid_send(gen_random_uuid()), 'c' || n, ($2::int[])[1 + n % 40], $3::int, $4::int, 's' || n % 200000,
       'u' || n % 300000, 'mobile', 'DE', 'https://shop.example/spring/shoes', 'https://shop.example/shoes/7', at, at,
       n % 4
from (select n, $5::timestamptz + n * ($6::interval / $7::int) as at from generate_series(0, $7 - 1) n) day
"""
_VIEWS = """
insert into caps.user_views (
    tenant_id, event_key, event_id, banner_id, placement_id, campaign_id, user_id, session_id, view_timestamp,
    view_duration_ms, dismissed, counted, received_at, lane)
select $1::int, uuid_send(gen_random_uuid()), 'v' || n, ($2::int[])[1 + n % 40], $3::int, $4::int, 'u' || n % 300000,
       's' || n % 200000, at, 4000, n % 10 = 0, n % 20 > 0, at, n % 4
from (select n, $5::timestamptz + n * ($6::interval / $7::int) as at from generate_series(0, $7 - 1) n) day
"""
_BARE = """
select banner_id, placement_id, campaign_id, date_bin('15 minutes', at, '2000-01-01+00') as bucket, lane, kind,
       count(*) filter (where not bot), count(*) filter (where bot), count(*) filter (where dismissed)
from (
    select banner_id, placement_id, campaign_id, occurred_at as at, lane, 1 as kind, marks && '{bot}' as bot,
           false as dismissed
    from banners.banner_impressions where tenant_id = $1 and occurred_at >= $2 and occurred_at < $3
    union all
    select banner_id, placement_id, campaign_id, occurred_at, lane, 2, marks && '{bot}', false
    from banners.banner_clicks where tenant_id = $1 and occurred_at >= $2 and occurred_at < $3
    union all
    select banner_id, placement_id, campaign_id, view_timestamp, lane, 3, marks && '{bot}', dismissed
    from caps.user_views where tenant_id = $1 and view_timestamp >= $2 and view_timestamp < $3 and counted
) rows
group by 1, 2, 3, 4, 5, 6
"""
_SPOIL = """
update banners.banner_stats set impressions = impressions + 5
where ctid in (select ctid from banners.banner_stats where tenant_id = $1 order by bucket, lane limit 3)
"""


async def fill(owner: asyncpg.Connection, shop: Shop, start: datetime, events: int) -> None:
    """One day of raw rows, past midnight already, and the day's entry that the pipeline would have made."""
    numbers = [row[0] for row in await owner.fetch("select id from banners.banners where tenant_id = $1", shop.tenant)]
    placement = await owner.fetchval("select id from banners.placements where tenant_id = $1", shop.tenant)
    campaign = await owner.fetchval("select id from banners.campaigns where tenant_id = $1", shop.tenant)
    day = timedelta(days=1)
    for statement, share in ((_IMPRESSIONS, 85), (_CLICKS, 5), (_VIEWS, 10)):
        rows = events * share // 100
        await owner.execute(statement, shop.tenant, numbers, placement, campaign, start, day, rows)
    await owner.execute(
        "insert into banners.stat_days (tenant_id, day, dirty_since) values ($1, $2, now())", shop.tenant, start.date()
    )
    for table in ("banners.banner_impressions", "banners.banner_clicks", "caps.user_views"):
        await owner.execute(f"vacuum analyze {table}")


def spent_on_marks() -> float:
    """Seconds that this process has spent on the statements that work the marks out."""
    samples = (sample for family in metrics.PG_SECONDS.collect() for sample in family.samples)
    return sum(one.value for one in samples if one.name.endswith("_sum") and one.labels["statement"] in MARKS)


async def body(options: Options) -> Result:
    events = options.scaled(10_000_000, 300_000)
    limits = {"HANDBILL_POSTGRES__STATEMENT_TIMEOUT_MS": "600000"}
    async with stack(settings=limits) as built, house(built) as ours:
        shop = (await shops(ours, tenants=1, banners=BANNERS))[0]
        start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
        owner = await asyncpg.connect(built.postgres_url, command_timeout=3_600)
        await fill(owner, shop, start, events)
        bare = await asyncpg.connect(postgres_urls(ours.settings).worker, command_timeout=3_600)
        first = await ours.banners.rollup.tenant_day(shop.tenant, start.date())
        require(
            first.combinations == BANNERS, f"{BANNERS} combinations were made, the recount found {first.combinations}"
        )
        await owner.execute("vacuum analyze banners.banner_stats")

        marks: list[float] = []

        async def value() -> float:
            await owner.execute(_SPOIL, shop.tenant)
            before, began = spent_on_marks(), time.perf_counter()
            rolled = await ours.banners.rollup.tenant_day(shop.tenant, start.date())
            whole = time.perf_counter() - began
            marks.append(spent_on_marks() - before)
            require(rolled.corrected == 3, f"three rows were spoilt, {rolled.corrected} were corrected")
            say(f"recount {whole - marks[-1]:.2f} s, marks {marks[-1]:.2f} s")
            return whole - marks[-1]

        async def limit() -> float:
            began = time.perf_counter()
            rows = await bare.fetch(_BARE, shop.tenant, start, start + timedelta(days=1))
            took = time.perf_counter() - began
            counted = sum(row[6] + row[7] for row in rows)
            require(counted == events - events // 200, f"the bare GROUP BY counted {counted}")
            say(f"bare GROUP BY {took:.2f} s")
            return took

        rounds = await alternating(value, limit)
        require(await ours.banners.rollup.audit() == 0, "an audit finds rows that differ from the recount")
        await bare.close()
        await owner.close()
    marked = statistics.median(marks)
    detail = {
        "marks_s": rounded(marked),
        "whole_s": rounded(rounds.value + marked),
        "events": events,
        "combinations": BANNERS,
        "stats_rows": first.corrected,
        **rounds.detail(),
    }
    return Result(rounds.value, "s", rounds.limit, {**detail, "events_per_s": rounded(events / rounds.value)})


if __name__ == "__main__":
    main("rollup", body)
