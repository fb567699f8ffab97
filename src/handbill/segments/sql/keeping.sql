-- name: try_tenant
-- no-tenant: the lock itself is named by the tenant's number
-- One at a time works on a tenant's members and projections; whoever comes second goes on to the next tenant.
select pg_try_advisory_xact_lock(1936026477, $1::int)

-- name: lock_tenant
-- no-tenant: the lock itself is named by the tenant's number
select pg_advisory_xact_lock(1936026477, $1::int)

-- name: busy_tenants
-- no-tenant: the keeper works for all of them
select w.tenant_id,
    exists (select 1 from segments.needs n where n.tenant_id = w.tenant_id) as projects,
    (
        w.token is not null
        or exists (select 1 from segments.stale s where s.tenant_id = w.tenant_id)
        or exists (select 1 from segments.gone g where g.tenant_id = w.tenant_id)
        or exists (select 1 from segments.needs n where n.tenant_id = w.tenant_id and not n.ready)
        or exists (
            select 1 from segments.segments s
            where s.tenant_id = w.tenant_id and (s.walk <> s.walked or s.deleted_at is not null or s.swept_at < $1))
        or exists (select 1 from active_hours.activity a where a.tenant_id = w.tenant_id and a.changed_at < $2)
    ) as busy
from segments.watched w
order by w.tenant_id

-- name: take_stale
-- A mark that a folding is just writing is left to the next turn.
delete from segments.stale s
using (
    select person_id from segments.stale
    where tenant_id = $1 order by person_id limit $2 for update skip locked
) as taken
where s.tenant_id = $1 and s.person_id = taken.person_id
returning s.person_id

-- name: take_gone
with taken as (
    delete from segments.gone g
    using (
        select distinct_id from segments.gone
        where tenant_id = $1 order by distinct_id limit $2 for update skip locked
    ) as picked
    where g.tenant_id = $1 and g.distinct_id = picked.distinct_id
    returning g.distinct_id
)
select t.distinct_id,
    exists (select 1 from people.distinct_ids d where d.tenant_id = $1 and d.distinct_id = t.distinct_id) as back
from taken t

-- name: matching
with rules as materialized (
    select id, path::jsonpath as path from unnest($3::int[], $4::text[]) as u (id, path)
), people as materialized (
    select p.person_id, jsonb_build_object(
        'p', p.properties, 'c', floor(extract(epoch from p.created_at) * 1000)::bigint, 'i', case when $6 then
            (select jsonb_agg(d.distinct_id) from people.distinct_ids d
             where d.tenant_id = $1 and d.person_id = p.person_id) end) as document
    from people.persons p
    where p.tenant_id = $1 and p.person_id = any ($2::uuid[])
)
select r.id, q.person_id from people q cross join rules r
where jsonb_path_match(q.document, r.path, $5::jsonb, true)

-- name: drop_members
delete from segments.segment_members m
where m.tenant_id = $1 and m.person_id = any ($2::uuid[]) and m.segment_id = any ($3::int[])
    and not exists (
        select 1 from unnest($4::int[], $5::uuid[]) as k (s, p) where k.s = m.segment_id and k.p = m.person_id)
returning m.segment_id, m.person_id

-- name: add_members
insert into segments.segment_members (tenant_id, segment_id, person_id)
select $1, s, p from unnest($2::int[], $3::uuid[]) as u (s, p) order by s, p
on conflict do nothing
returning segment_id, person_id

-- name: add_sizes
update segments.segments s set size = s.size + u.d
from unnest($2::int[], $3::int[]) as u (id, d)
where s.tenant_id = $1 and s.id = u.id

-- name: walk_state
select id, walk, walking, walked, place from segments.segments
where tenant_id = $1 and deleted_at is null and walk <> walked order by id limit 1

-- name: walk_page
select person_id from people.persons where tenant_id = $1 and person_id > $2 order by person_id limit $3

-- name: move_walk
update segments.segments set walking = $3, place = $4,
    walked = case when $5 then $3 else walked end,
    evaluated_at = case when $5 then $6 else evaluated_at end
where tenant_id = $1 and id = $2

-- name: drop_some_members
delete from segments.segment_members m
using (select person_id from segments.segment_members where tenant_id = $1 and segment_id = $2 limit $3) as picked
where m.tenant_id = $1 and m.segment_id = $2 and m.person_id = picked.person_id

-- name: deleted_segments
select id from segments.segments where tenant_id = $1 and deleted_at is not null order by id limit 1

-- name: forget_segment
delete from segments.segments where tenant_id = $1 and id = $2 and deleted_at is not null

-- name: swept
select id, swept_at from segments.segments
where tenant_id = $1 and deleted_at is null and swept_at < $2 order by swept_at limit 5

-- name: set_swept
update segments.segments set swept_at = $3 where tenant_id = $1 and id = any ($2::int[])

-- name: crossed
-- People whose age passed a rule's limit since the last sweep.
select created_at, person_id from people.persons
where tenant_id = $1 and created_at > $2 and created_at <= $3
order by created_at fetch first $4 rows with ties

-- name: mark_stale
insert into segments.stale (tenant_id, person_id, marked_at)
select $1, p, now() from unnest($2::uuid[]) as u (p) order by p
on conflict (tenant_id, person_id) do update set marked_at = excluded.marked_at

-- name: projection_state
select token, place, needs from segments.watched where tenant_id = $1

-- name: move_projection
update segments.watched set token = $2, place = $3, needs = $4::text[] where tenant_id = $1

-- name: projected
select p.person_id,
    (select jsonb_object_agg(w.name, p.properties -> w.name) from unnest($3::text[]) as w (name)
     where p.properties ? w.name)::text as properties,
    (select array_agg(s.public_id order by s.public_id) from segments.segment_members m
     join segments.segments s on s.tenant_id = $1 and s.id = m.segment_id and s.deleted_at is null
     where m.tenant_id = $1 and m.person_id = p.person_id and s.public_id = any ($4::uuid[])) as inside
from people.persons p
where p.tenant_id = $1 and p.person_id = any ($2::uuid[])

-- name: ids_of
select person_id, distinct_id from people.distinct_ids where tenant_id = $1 and person_id = any ($2::uuid[])

-- name: people_behind
select distinct person_id from people.distinct_ids where tenant_id = $1 and distinct_id = any ($2::text[])

-- name: person_behind
select person_id from people.distinct_ids where tenant_id = $1 and distinct_id = $2

-- name: erase_people
delete from segments.segment_members m
using people.distinct_ids d
where d.tenant_id = $1 and d.distinct_id = any ($2::text[]) and m.tenant_id = $1 and m.person_id = d.person_id
returning m.segment_id

-- name: export_person
select s.public_id, s.name from people.distinct_ids d
join segments.segment_members m on m.tenant_id = $1 and m.person_id = d.person_id
join segments.segments s on s.tenant_id = $1 and s.id = m.segment_id and s.deleted_at is null
where d.tenant_id = $1 and d.distinct_id = $2
order by s.id limit $3
