-- name: make_month
-- no-tenant: a month's partition belongs to everybody
select handbill_month('caps.user_views'::regclass, $1::date)

-- name: add_totals
-- Rows come sorted by their key, so that two writers never wait for each other in a circle.
insert into caps.cap_totals as known (tenant_id, user_id, banner_id, total, last_at)
select * from unnest($1::int[], $2::text[], $3::int[], $4::bigint[], $5::timestamptz[])
on conflict (tenant_id, user_id, banner_id)
do update set total = known.total + excluded.total, last_at = greatest(known.last_at, excluded.last_at)

-- name: add_users
insert into caps.users as known (tenant_id, user_id, device_id, created_at)
select * from unnest($1::int[], $2::text[], $3::text[], $4::timestamptz[])
on conflict (tenant_id, user_id, device_id)
do update set created_at = excluded.created_at where excluded.created_at < known.created_at

-- name: views_of_user
-- Rows and totals in one statement, so that they are of one moment: a view counted between two would be counted twice.
(select banner_id, placement_id, campaign_id, view_timestamp, event_key, null::bigint as total
 from caps.user_views
 where tenant_id = $1 and user_id = $2 and counted
 order by view_timestamp desc
 limit $3)
union all
select banner_id, null, null, null, null, total from caps.cap_totals where tenant_id = $1 and user_id = $2

-- name: views_page
-- Everybody's views in the order of the index, a page at a time: (tenant, user, banner, time, key) is where we stand.
select tenant_id, user_id, banner_id, placement_id, campaign_id, view_timestamp, event_key
from caps.user_views
where (tenant_id, user_id, banner_id, view_timestamp, event_key) > ($1::int, $2::text, $3::int, $4::timestamptz, $5::bytea)
  and view_timestamp > $6 and counted and user_id <> ''
order by tenant_id, user_id, banner_id, view_timestamp, event_key
limit $7

-- name: totals_page
select tenant_id, user_id, banner_id
from caps.cap_totals
where (tenant_id, user_id, banner_id) > ($1::int, $2::text, $3::int)
order by tenant_id, user_id, banner_id
limit $4

-- name: erase_views
update caps.user_views set user_id = '', device_id = null, session_id = null, event_id = ''
where tenant_id = $1 and user_id = $2

-- name: erase_totals
delete from caps.cap_totals where tenant_id = $1 and user_id = $2

-- name: erase_users
delete from caps.users where tenant_id = $1 and user_id = $2
