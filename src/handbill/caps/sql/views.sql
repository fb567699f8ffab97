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

-- name: views_of_subject
-- Rows and totals in one statement, so that they are of one moment: a view counted between two would be counted twice.
-- $2: the ids of a user; $3: the kind of subject; $4: its device or session. $5 to $7: of each scope, how many of the
-- newest views its limits ask for, and since when; 2^29 is the first campaign, 2^30 the first placement.
-- A banner's views are read by the index of user and banner. Nothing has an index by campaign or placement: their views
-- are sought among the banners that the user saw, at most $8 of each.
with rules as materialized (
    select * from unnest($5::bigint[], $6::int[], $7::timestamptz[]) as rule (scope, keep, since)
), seen as materialized (
    select user_id, banner_id, total from caps.cap_totals
    where tenant_id = $1 and user_id = any (
        case when $3::text = 'device'
             then array(select user_id from caps.users where tenant_id = $1 and device_id = $4::text and device_id <> '')
             else $2::text[] end)
), shared as (
    select v.*, row_number() over (partition by v.campaign_id order by v.view_timestamp desc) as nth_of_campaign,
           row_number() over (partition by v.placement_id order by v.view_timestamp desc) as nth_of_placement
    from seen s
    cross join lateral (
        select user_id, banner_id, placement_id, campaign_id, view_timestamp, event_key, device_id, session_id
        from caps.user_views
        where tenant_id = $1 and user_id = s.user_id and banner_id = s.banner_id and counted
          and view_timestamp > (select min(since) from rules where scope >= 536870912)
          and (campaign_id = any (array(select (scope - 536870912)::int from rules where scope >> 29 = 1))
               or placement_id = any (array(select (scope - 1073741824)::int from rules where scope >> 29 = 2)))
          and ($3 = 'user' or $3 = 'alone' and coalesce(device_id, '') = '' or $3 = 'device' and device_id = $4
               or $3 = 'session' and session_id = $4)
        order by view_timestamp desc
        limit $8
    ) v
    where exists (select from rules where scope >= 536870912)
)
select v.*, null::bigint as scope, null::bigint as total
from seen s
join rules on rules.scope = s.banner_id
cross join lateral (
    select user_id, banner_id, placement_id, campaign_id, view_timestamp, event_key, device_id, session_id
    from caps.user_views
    where tenant_id = $1 and user_id = s.user_id and banner_id = s.banner_id and counted
      and view_timestamp > rules.since
      and ($3 = 'user' or $3 = 'alone' and coalesce(device_id, '') = '' or $3 = 'device' and device_id = $4
           or $3 = 'session' and session_id = $4)
    order by view_timestamp desc
    limit rules.keep
) v
union all
select user_id, banner_id, placement_id, campaign_id, view_timestamp, event_key, device_id, session_id, null, null
from shared
left join rules campaign on campaign.scope = 536870912 + campaign_id
left join rules placement on placement.scope = 1073741824 + placement_id
where nth_of_campaign <= campaign.keep or nth_of_placement <= placement.keep
union all
select null, banner_id, null, null, null, null, null, null, null, total from seen where $3 = 'user'
union all
select null, null, null, null, null, null, null, null, scope, total
from caps.cap_archive
where tenant_id = $1 and kind = $3 and subject = any (case when $3 = 'device' then array[$4] else $2 end)

-- name: any_user
select exists (select from caps.users where tenant_id = $1 and user_id = any ($2::text[]))

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
