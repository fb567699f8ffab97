-- name: months_of
-- no-tenant: partitions are everybody's
select distinct to_date(right(c.relname, 6), 'YYYYMM') as month
from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = any ($1::text[]::regclass[]) and c.relname ~ '_[0-9]{6}$'
order by 1

-- name: keep_days
-- no-tenant: a shared partition goes only when no tenant needs it
select max(coalesce((s.privacy ->> 'retention_days')::int, $1)) from tenants.settings s

-- name: longest_window_hours
-- no-tenant: a shared partition goes only when no tenant needs it
-- Rules without an end have no hours: their views are archived before a month goes.
with rules as (
    select jsonb_array_elements(caps) as rule from banners.banners where deleted_at is null
    union all
    select jsonb_array_elements(caps) from banners.campaigns where deleted_at is null
    union all
    select jsonb_array_elements(caps) from banners.placements where deleted_at is null
)
select greatest(
    1,
    (select max(y_hours) from banners.banners where deleted_at is null),
    (select max((rule ->> 'y_hours')::int) from rules)
)

-- name: unrolled_before
-- no-tenant: a shared partition goes only when no tenant needs it
select count(*) from banners.stat_days
where day < $1 and raw_gone_at is null and (rolled_at is null or dirty_since is not null)

-- name: mark_raw_gone
-- no-tenant: the partition of all tenants is gone
update banners.stat_days set raw_gone_at = now() where day < $1 and raw_gone_at is null

-- name: drop_month
-- no-tenant: the partition of all tenants goes
select handbill_drop_month($1::text::regclass, $2)
