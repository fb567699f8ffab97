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
(select user_id, banner_id, placement_id, campaign_id, view_timestamp, event_key, device_id, session_id,
        null::bigint as scope, null::bigint as total
 from caps.user_views
 where tenant_id = $1 and user_id = any ($2::text[]) and counted
 order by view_timestamp desc
 limit $3)
union all
select null, banner_id, null, null, null, null, null, null, null, total
from caps.cap_totals where tenant_id = $1 and user_id = any ($2::text[]) and $4::text = 'user'
union all
select null, null, null, null, null, null, null, null, scope, total
from caps.cap_archive where tenant_id = $1 and kind = $4 and subject = any ($2::text[])

-- name: any_user
select exists (select from caps.users where tenant_id = $1 and user_id = any ($2::text[]))

-- name: views_of_device
-- By way of the device's users: views need no index by device.
(select v.user_id, v.banner_id, v.placement_id, v.campaign_id, v.view_timestamp, v.event_key, v.device_id, v.session_id,
        null::bigint as scope, null::bigint as total
 from caps.users u
 join caps.user_views v on v.tenant_id = u.tenant_id and v.user_id = u.user_id and v.device_id = u.device_id
 where u.tenant_id = $1 and u.device_id = $2 and v.counted
 order by v.view_timestamp desc
 limit $3)
union all
select null, null, null, null, null, null, null, null, scope, total
from caps.cap_archive where tenant_id = $1 and kind = 'device' and subject = $2

-- name: views_page
-- Everybody's views in the order of the index, a page at a time: (tenant, user, banner, time, key) is where we stand.
select tenant_id, user_id, banner_id, placement_id, campaign_id, view_timestamp, event_key, device_id, session_id
from caps.user_views
where (tenant_id, user_id, banner_id, view_timestamp, event_key) > ($1::int, $2::text, $3::int, $4::timestamptz, $5::bytea)
  and tenant_id <= $8 and view_timestamp > $6 and counted and user_id <> ''
order by tenant_id, user_id, banner_id, view_timestamp, event_key
limit $7

-- name: totals_page
select tenant_id, user_id, banner_id
from caps.cap_totals
where (tenant_id, user_id, banner_id) > ($1::int, $2::text, $3::int) and tenant_id <= $5
order by tenant_id, user_id, banner_id
limit $4

-- name: archived_page
select tenant_id, kind, subject, scope
from caps.cap_archive
where (tenant_id, kind, subject, scope) > ($1::int, $2::text, $3::text, $4::bigint) and tenant_id <= $6
order by tenant_id, kind, subject, scope
limit $5

-- name: archive_campaign
insert into caps.cap_archive as known (tenant_id, kind, subject, scope, total)
select tenant_id, 'user', user_id, $2::bigint, count(*) from caps.user_views
where tenant_id = $1 and campaign_id = $3::int and view_timestamp >= $4 and view_timestamp < $5
  and counted and user_id <> ''
group by tenant_id, user_id
on conflict (tenant_id, kind, subject, scope) do update set total = known.total + excluded.total

-- name: archive_placement
insert into caps.cap_archive as known (tenant_id, kind, subject, scope, total)
select tenant_id, 'user', user_id, $2::bigint, count(*) from caps.user_views
where tenant_id = $1 and placement_id = $3::int and view_timestamp >= $4 and view_timestamp < $5
  and counted and user_id <> ''
group by tenant_id, user_id
on conflict (tenant_id, kind, subject, scope) do update set total = known.total + excluded.total

-- name: archive_devices
-- A view without a device counted for its user alone.
insert into caps.cap_archive as known (tenant_id, kind, subject, scope, total)
select tenant_id, case when coalesce(device_id, '') = '' then 'alone' else 'device' end,
       coalesce(nullif(device_id, ''), user_id), $2::bigint, count(*)
from caps.user_views
where tenant_id = $1 and banner_id = $3::int and view_timestamp >= $4 and view_timestamp < $5
  and counted and user_id <> ''
group by 1, 2, 3
on conflict (tenant_id, kind, subject, scope) do update set total = known.total + excluded.total

-- name: erase_views
update caps.user_views set user_id = '', device_id = null, session_id = null, event_id = ''
where tenant_id = $1 and user_id = any ($2::text[])

-- name: erase_totals
delete from caps.cap_totals where tenant_id = $1 and user_id = any ($2::text[])

-- name: erase_users
delete from caps.users where tenant_id = $1 and user_id = any ($2::text[])

-- name: erase_archive
-- The user's own, and those of devices that nobody else was seen with.
delete from caps.cap_archive a
where a.tenant_id = $1
  and (a.kind in ('user', 'alone') and a.subject = any ($2::text[])
       or a.kind = 'device'
          and a.subject = any (array(select device_id from caps.users where tenant_id = $1 and user_id = any ($2::text[])))
          and not exists (
              select from caps.users u
              where u.tenant_id = $1 and u.device_id = a.subject and u.user_id <> all ($2::text[])))

-- name: export_views
select banner_id, placement_id, campaign_id, event_id, device_id, session_id, view_timestamp, view_duration_ms,
       dismissed, counted, received_at
from caps.user_views where tenant_id = $1 and user_id = $2
order by view_timestamp
limit $3

-- name: export_users
select user_id, device_id, created_at from caps.users where tenant_id = $1 and user_id = $2 limit $3
