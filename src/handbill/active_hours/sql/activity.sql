-- name: add_activity
-- no-tenant: $1 lists the tenants of the batch
-- Sums, minima, maxima and "the newest by (time, key)": any order and any split of the events gives the same rows.
insert into active_hours.activity as a
    (tenant_id, distinct_id, week, counts, first_at, last_at, zone, zone_at, zone_key, changed_at)
select u.tenant_id, u.distinct_id, u.week, u.counts::smallint[], u.first_at, u.last_at, u.zone, u.zone_at, u.zone_key, $10
from unnest(
    $1::int[], $2::text[], $3::int[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::text[], $8::timestamptz[],
    $9::bytea[]
) as u (tenant_id, distinct_id, week, counts, first_at, last_at, zone, zone_at, zone_key)
on conflict (tenant_id, distinct_id, week) do update set
    counts = (
        select array_agg(least(m.x::int + m.y::int, 32767)::smallint order by m.n)
        from unnest(a.counts, excluded.counts) with ordinality as m (x, y, n)),
    first_at = least(a.first_at, excluded.first_at),
    last_at = greatest(a.last_at, excluded.last_at),
    zone = case when a.zone_at is null or (excluded.zone_at, excluded.zone_key) > (a.zone_at, a.zone_key)
        then excluded.zone else a.zone end,
    zone_at = case when a.zone_at is null or (excluded.zone_at, excluded.zone_key) > (a.zone_at, a.zone_key)
        then excluded.zone_at else a.zone_at end,
    zone_key = case when a.zone_at is null or (excluded.zone_at, excluded.zone_key) > (a.zone_at, a.zone_key)
        then excluded.zone_key else a.zone_key end,
    changed_at = coalesce(a.changed_at, excluded.changed_at)

-- name: activity_of_people
-- What the ids of these people did, of each person so many rows, the newest weeks first: one may have any number of
-- ids. The tenant's zone stands for a person whose events named none.
select f.*, t.time_zone as tenant_zone
from (
    select d.person_id, a.week, a.counts, a.first_at, a.last_at, a.zone, a.zone_at, a.zone_key,
        row_number() over (partition by d.person_id order by a.week desc, a.distinct_id) as place
    from people.distinct_ids d
    join active_hours.activity a on a.tenant_id = $1 and a.distinct_id = d.distinct_id
    where d.tenant_id = $1 and d.person_id = any ($2::uuid[])
) as f
join tenants.tenants t on t.tenant_id = $1
where f.place <= $3

-- name: take_changed
-- A row that a batch is just writing is left to the next turn, with its mark.
update active_hours.activity a set changed_at = null
from (
    select c.distinct_id, c.week from active_hours.activity c
    where c.tenant_id = $1 and c.changed_at < $2
    order by c.changed_at limit $3 for update skip locked
) as taken
where a.tenant_id = $1 and a.distinct_id = taken.distinct_id and a.week = taken.week
returning a.distinct_id

-- name: tenants_with_activity
-- no-tenant: it looks for the tenants; one step in the index for each
with recursive found as (
    (select a.tenant_id from active_hours.activity a order by a.tenant_id limit 1)
    union all
    select (select a.tenant_id from active_hours.activity a where a.tenant_id > f.tenant_id order by a.tenant_id limit 1)
    from found f where f.tenant_id is not null
)
select tenant_id from found where tenant_id is not null

-- name: drop_activity
-- What is older than any profile reads, or with an end after all weeks, everything; at most so many rows.
delete from active_hours.activity a
using (
    select o.distinct_id, o.week from active_hours.activity o
    where o.tenant_id = $1 and o.week < $2 order by o.week limit $3 for update skip locked
) as old
where a.tenant_id = $1 and a.distinct_id = old.distinct_id and a.week = old.week
returning a.distinct_id

-- name: erase_activity
delete from active_hours.activity where tenant_id = $1 and distinct_id = any ($2::text[])

-- name: export_activity
select week, counts, first_at, last_at, zone from active_hours.activity
where tenant_id = $1 and distinct_id = $2 order by week limit $3
