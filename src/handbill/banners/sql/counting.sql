-- name: make_month
-- no-tenant: a month's partition is everybody's
select handbill_month($1::text::regclass, $2)

-- name: add_stats
insert into banners.banner_stats (
    tenant_id, bucket, banner_id, placement_id, campaign_id, lane,
    impressions, clicks, views, dismissals, marked_impressions, marked_clicks, marked_views
)
select t, b, n, p, c, $6::smallint, i, k, v, d, mi, mk, mv
from unnest(
    $1::int[], $2::timestamptz[], $3::int[], $4::int[], $5::int[],
    $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], $12::bigint[], $13::bigint[]
) as u (t, b, n, p, c, i, k, v, d, mi, mk, mv)
on conflict on constraint uq_banner_stats do update set
    impressions = banners.banner_stats.impressions + excluded.impressions,
    clicks = banners.banner_stats.clicks + excluded.clicks,
    views = banners.banner_stats.views + excluded.views,
    dismissals = banners.banner_stats.dismissals + excluded.dismissals,
    marked_impressions = banners.banner_stats.marked_impressions + excluded.marked_impressions,
    marked_clicks = banners.banner_stats.marked_clicks + excluded.marked_clicks,
    marked_views = banners.banner_stats.marked_views + excluded.marked_views,
    updated_at = now()

-- name: touch_days
-- An event for a day that is over makes that day dirty: it is rolled up again. A row that says so already, or is
-- today's, is only looked at: "on conflict" would lock it, and all lanes of a busy tenant would wait for one another.
-- A mark is renewed after ten seconds, and a roll-up clears only marks that are much older (see day_rolled).
insert into banners.stat_days as known (tenant_id, day, dirty_since)
select t, d, case when d < (now() at time zone 'UTC')::date then now() end
from unnest($1::int[], $2::date[]) as u (t, d)
where not exists (
    select from banners.stat_days s
    where s.tenant_id = t and s.day = d
      and (d >= (now() at time zone 'UTC')::date or s.dirty_since > now() - interval '10 seconds')
)
on conflict (tenant_id, day) do update set dirty_since = excluded.dirty_since
where excluded.dirty_since is not null and coalesce(known.dirty_since < excluded.dirty_since, true)
