-- name: days_with_events
-- no-tenant: the nightly job rolls up every tenant that had events that day
select tenant_id, raw_gone_at is not null as raw_gone from banners.stat_days where day = $1 order by tenant_id

-- name: dirty_days
-- Days that have been quiet for a moment; one that never is comes up once an hour all the same.
-- Tenants take turns: many days of one tenant do not keep the others waiting. $3 and $4 are days that failed just now.
-- no-tenant: the sweep looks for dirty days of all tenants, longest waiting first
select tenant_id, day from banners.stat_days
where dirty_since is not null and raw_gone_at is null
  and (dirty_since < now() - $1::interval or coalesce(rolled_at, '-infinity') < now() - interval '1 hour')
  and not exists (
    select from unnest($3::int[], $4::date[]) as failed (t, d) where failed.t = tenant_id and failed.d = day
  )
order by row_number() over (partition by tenant_id order by dirty_since, day), dirty_since
limit $2

-- name: leave_day_dirty
-- A recount that did not end: the sweep goes on with it. The mark is older than the recount ($3), which may clear it.
update banners.stat_days set dirty_since = coalesce(dirty_since, $3::timestamptz - interval '3 minutes')
where tenant_id = $1 and day = $2

-- name: lock_day
-- One recount of a tenant at a time: two that apply the same difference would count it twice.
select pg_advisory_xact_lock(hashtextextended('rollup:' || $1::int, 0))
from banners.stat_days where tenant_id = $1 and day = $2

-- name: differences
-- The recount and the live rows in one snapshot. What is applied is the difference, so that events committed meanwhile,
-- which both the raw rows and the live rows will have, are not lost.
with raw as (
    select banner_id, placement_id, campaign_id, date_bin('15 minutes', occurred_at, '2000-01-01+00') as bucket, lane,
           count(*) - count(*) filter (where marks && $4) as impressions, 0::bigint as clicks, 0::bigint as views,
           0::bigint as dismissals, count(*) filter (where marks && $4) as marked_impressions,
           0::bigint as marked_clicks, 0::bigint as marked_views
    from banners.banner_impressions
    where tenant_id = $1 and occurred_at >= $2 and occurred_at < $3
    group by 1, 2, 3, 4, 5
    union all
    select banner_id, placement_id, campaign_id, date_bin('15 minutes', occurred_at, '2000-01-01+00'), lane,
           0, count(*) - count(*) filter (where marks && $4), 0, 0, 0, count(*) filter (where marks && $4), 0
    from banners.banner_clicks
    where tenant_id = $1 and occurred_at >= $2 and occurred_at < $3
    group by 1, 2, 3, 4, 5
    union all
    select banner_id, placement_id, campaign_id, date_bin('15 minutes', view_timestamp, '2000-01-01+00'), lane,
           0, 0, count(*) - count(*) filter (where marks && $4), count(*) filter (where dismissed and not marks && $4),
           0, 0, count(*) filter (where marks && $4)
    from caps.user_views
    where tenant_id = $1 and view_timestamp >= $2 and view_timestamp < $3 and counted
    group by 1, 2, 3, 4, 5
    union all
    select banner_id, placement_id, campaign_id, bucket, lane,
           -impressions, -clicks, -views, -dismissals, -marked_impressions, -marked_clicks, -marked_views
    from banners.banner_stats
    where tenant_id = $1 and bucket >= $2 and bucket < $3
)
select banner_id, placement_id, campaign_id, bucket, lane,
       sum(impressions)::bigint as impressions, sum(clicks)::bigint as clicks, sum(views)::bigint as views,
       sum(dismissals)::bigint as dismissals, sum(marked_impressions)::bigint as marked_impressions,
       sum(marked_clicks)::bigint as marked_clicks, sum(marked_views)::bigint as marked_views
from raw
group by banner_id, placement_id, campaign_id, bucket, lane
having sum(impressions) <> 0 or sum(clicks) <> 0 or sum(views) <> 0 or sum(dismissals) <> 0
    or sum(marked_impressions) <> 0 or sum(marked_clicks) <> 0 or sum(marked_views) <> 0
order by bucket, banner_id, placement_id nulls first, campaign_id nulls first, lane

-- name: correct_stats
insert into banners.banner_stats (
    tenant_id, bucket, banner_id, placement_id, campaign_id, lane,
    impressions, clicks, views, dismissals, marked_impressions, marked_clicks, marked_views
)
select $1::int, * from unnest(
    $2::timestamptz[], $3::int[], $4::int[], $5::int[], $6::smallint[],
    $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[]
)
on conflict on constraint uq_banner_stats do update set
    impressions = banners.banner_stats.impressions + excluded.impressions,
    clicks = banners.banner_stats.clicks + excluded.clicks,
    views = banners.banner_stats.views + excluded.views,
    dismissals = banners.banner_stats.dismissals + excluded.dismissals,
    marked_impressions = banners.banner_stats.marked_impressions + excluded.marked_impressions,
    marked_clicks = banners.banner_stats.marked_clicks + excluded.marked_clicks,
    marked_views = banners.banner_stats.marked_views + excluded.marked_views,
    updated_at = now()

-- name: combinations
select count(*) from (
    select distinct banner_id, placement_id, campaign_id from banners.banner_stats
    where tenant_id = $1 and bucket >= $2 and bucket < $3
      and impressions + clicks + views + marked_impressions + marked_clicks + marked_views > 0
) c

-- name: day_rolled
-- A batch that landed while we counted may have found its day marked already and left it at that. Its transaction began
-- after the mark and has ended long before two minutes: a younger mark stays, and the day comes up once more.
-- $4 is when the recount began: one in parts may have begun long ago.
update banners.stat_days
set rolled_at = now(), combinations = $3,
    dirty_since = case when dirty_since > $4::timestamptz - interval '2 minutes' then dirty_since end
where tenant_id = $1 and day = $2

-- name: forget_empty_stats
delete from banners.banner_stats
where tenant_id = $1 and bucket >= $2 and bucket < $3
  and impressions = 0 and clicks = 0 and views = 0 and dismissals = 0
  and marked_impressions = 0 and marked_clicks = 0 and marked_views = 0

-- name: series
select case $4::text
           when 'day' then date_trunc('day', bucket, $5::text)
           when 'hour' then date_trunc('hour', bucket, $5::text)
           when 'bucket' then bucket
       end as at,
       case when $6 then banner_id end as banner_id,
       case when $7 then placement_id end as placement_id,
       case when $8 then campaign_id end as campaign_id,
       sum(impressions)::bigint as impressions, sum(clicks)::bigint as clicks, sum(views)::bigint as views,
       sum(dismissals)::bigint as dismissals, sum(marked_impressions)::bigint as marked_impressions,
       sum(marked_clicks)::bigint as marked_clicks, sum(marked_views)::bigint as marked_views
from banners.banner_stats
where tenant_id = $1 and bucket >= $2 and bucket < $3
  and ($9::int[] is null or banner_id = any ($9))
  and ($10::int[] is null or placement_id = any ($10))
  and ($11::int[] is null or campaign_id = any ($11))
group by 1, 2, 3, 4
order by 1, 2 nulls first, 3 nulls first, 4 nulls first
limit $12

-- name: counted_by_day
-- How many events there are, marked ones included, whatever else they say: what the event store is compared with.
select (bucket at time zone 'UTC')::date as day,
       sum(impressions + marked_impressions)::bigint as impressions, sum(clicks + marked_clicks)::bigint as clicks,
       sum(views + marked_views)::bigint as views
from banners.banner_stats
where tenant_id = $1 and bucket >= $2 and bucket < $3
  and ($4::int[] is null or banner_id = any ($4))
  and ($5::int[] is null or placement_id = any ($5))
  and ($6::int[] is null or campaign_id = any ($6))
group by 1

-- name: public_ids
select 'banner' as kind, id, public_id, name from banners.banners where tenant_id = $1 and id = any ($2::int[])
union all
select 'placement', id, public_id, name from banners.placements where tenant_id = $1 and id = any ($3::int[])
union all
select 'campaign', id, public_id, name from banners.campaigns where tenant_id = $1 and id = any ($4::int[])

-- name: ids_of
select 'banner' as kind, id from banners.banners where tenant_id = $1 and public_id = any ($2::uuid[])
union all
select 'placement', id from banners.placements where tenant_id = $1 and public_id = any ($3::uuid[])
union all
select 'campaign', id from banners.campaigns where tenant_id = $1 and public_id = any ($4::uuid[])

-- name: days_state
select day, dirty_since, rolled_at, combinations, raw_gone_at from banners.stat_days
where tenant_id = $1 and day >= $2 and day < $3
order by day

-- name: write_audit_result
insert into banners.audits (id, tenant_id, day, differences, detail) values ($1, $2, $3, $4, $5)

-- name: sample_days
-- no-tenant: the auditor samples days of any tenant
select tenant_id, day from banners.stat_days
where raw_gone_at is null and day >= $1
order by random()
limit $2

-- name: oldest_unrolled
-- no-tenant: the alarm watches the whole installation
select min(day) from banners.stat_days where rolled_at is null and raw_gone_at is null and day < $1
