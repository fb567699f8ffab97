-- What the pipeline writes about people, and the folding that follows it. Every statement locks in the order of ids;
-- a batch goes books, marks, edges, ids, definitions, and a folding marks, edges, ids, people: nobody waits in a circle.

-- name: lock_books
select u.place, p.words, p.moments
from unnest($1::int[], $2::text[]) with ordinality as u (tenant_id, distinct_id, place)
join people.properties p on p.tenant_id = u.tenant_id and p.distinct_id = u.distinct_id collate "C"
order by p.tenant_id, p.distinct_id
for no key update of p

-- name: linked_ids
-- A statement of its own, after the locks: it must see the edges of whoever held them before.
select t, d from unnest($1::int[], $2::text[]) as u (t, d)
where exists (select from people.person_edges e where e.tenant_id = t and e.source_id = d collate "C")
    or exists (select from people.person_edges e where e.tenant_id = t and e.target_id = d collate "C")

-- name: insert_books
insert into people.properties (tenant_id, distinct_id, words, moments)
select t, d, w, m from unnest($1::int[], $2::text[], $3::bytea[], $4::bytea[]) as u (t, d, w, m)
order by t, d collate "C"
on conflict do nothing
returning tenant_id, distinct_id

-- name: update_books
-- Words that are not given stay as they are, out of the row if they were.
update people.properties p set words = coalesce(u.w, p.words), moments = u.m
from unnest($1::int[], $2::text[], $3::bytea[], $4::bytea[]) as u (t, d, w, m)
where p.tenant_id = u.t and p.distinct_id = u.d collate "C"

-- name: new_ids
select t, d from unnest($1::int[], $2::text[], $3::timestamptz[]) as u (t, d, at)
where not exists (
    select from people.distinct_ids k
    where k.tenant_id = t and k.distinct_id = d collate "C" and k.first_seen_at <= at
)

-- name: new_edges
select place from unnest($1::int[], $2::bytea[], $3::timestamptz[], $4::text[]) with ordinality as u (t, k, at, ev, place)
where not exists (
    select from people.person_edges e
    where e.tenant_id = t and e.edge_key = k and (e.first_at, e.first_event) <= (at, ev collate "C")
)

-- name: mark_unfolded
insert into people.unfolded (tenant_id, distinct_id, marked_at)
select t, d, now() from unnest($1::int[], $2::text[]) as u (t, d)
order by t, d collate "C"
on conflict (tenant_id, distinct_id) do update set marked_at = excluded.marked_at

-- name: add_edges
insert into people.person_edges as known
    (tenant_id, edge_key, kind, source_id, target_id, first_at, first_event, outcome)
select t, k, kind, s, g, at, ev, 'unfolded'
from unnest($1::int[], $2::bytea[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::text[])
    as u (t, k, kind, s, g, at, ev)
order by t, k
on conflict (tenant_id, edge_key) do update set first_at = excluded.first_at, first_event = excluded.first_event
where (excluded.first_at, excluded.first_event) < (known.first_at, known.first_event)

-- name: touch_ids
insert into people.distinct_ids as known (tenant_id, distinct_id, person_id, first_seen_at)
select t, d, p, at from unnest($1::int[], $2::text[], $3::uuid[], $4::timestamptz[]) as u (t, d, p, at)
order by t, d collate "C"
on conflict (tenant_id, distinct_id) do update set first_seen_at = excluded.first_seen_at
where excluded.first_seen_at < known.first_seen_at

-- name: lock_tenant
-- no-tenant: the lock itself is named by the tenant's number
-- One folding at a time for a tenant; batches do not ask for this lock.
select pg_advisory_xact_lock(1886678130, $1::int)

-- name: take_unfolded
-- A mark that a batch is just writing is left to that batch.
delete from people.unfolded u
using (
    select distinct_id from people.unfolded
    where tenant_id = $1 order by distinct_id limit $2 for update skip locked
) as taken
where u.tenant_id = $1 and u.distinct_id = taken.distinct_id
returning u.distinct_id

-- name: component
with recursive reach (id) as (
    select unnest($2::text[]) collate "C"
    union
    select n.id from reach r cross join lateral (
        select e.target_id from people.person_edges e where e.tenant_id = $1 and e.source_id = r.id
        union all
        select e.source_id from people.person_edges e where e.tenant_id = $1 and e.target_id = r.id
    ) as n (id)
)
select d.distinct_id, d.person_id, d.first_seen_at, p.words, p.moments
from reach r
join people.distinct_ids d on d.tenant_id = $1 and d.distinct_id = r.id
left join people.properties p on p.tenant_id = $1 and p.distinct_id = r.id

-- name: edges_of
select edge_key, kind, source_id, target_id, first_at, first_event, outcome, voided_at
from people.person_edges
where tenant_id = $1 and source_id = any ($2::text[])
order by edge_key
for no key update

-- name: set_outcomes
update people.person_edges e set outcome = u.o
from unnest($2::bytea[], $3::text[]) as u (k, o)
where e.tenant_id = $1 and e.edge_key = u.k

-- name: set_warnings
insert into people.warnings as known (tenant_id, edge_key, code, detail, at)
select $1, k, c, d, at from unnest($2::bytea[], $3::text[], $4::text[], $5::timestamptz[]) as u (k, c, d, at)
order by k
on conflict (tenant_id, edge_key) do update set code = excluded.code, detail = excluded.detail, at = excluded.at
where (known.code, known.detail, known.at) is distinct from (excluded.code, excluded.detail, excluded.at)

-- name: drop_warnings
delete from people.warnings where tenant_id = $1 and edge_key = any ($2::bytea[])

-- name: lock_ids
select distinct_id from people.distinct_ids
where tenant_id = $1 and distinct_id = any ($2::text[])
order by distinct_id
for no key update

-- name: move_ids
update people.distinct_ids k set person_id = u.p, version = k.version + 1
from unnest($2::text[], $3::uuid[]) as u (d, p)
where k.tenant_id = $1 and k.distinct_id = u.d collate "C" and k.person_id <> u.p

-- name: set_people
insert into people.persons as known (
    tenant_id, person_id, named_by, ids, identified_at, identified_event, last_edge_at, last_edge_event, properties,
    created_at, updated_at
)
select $1, p, n, i, sa, se, la, le, j::jsonb, c, date_trunc('hour', now())
from unnest($2::uuid[], $3::text[], $4::int[], $5::timestamptz[], $6::text[], $7::timestamptz[], $8::text[], $9::text[],
    $10::timestamptz[]) as u (p, n, i, sa, se, la, le, j, c)
order by p
on conflict (tenant_id, person_id) do update set
    ids = excluded.ids, identified_at = excluded.identified_at, identified_event = excluded.identified_event,
    last_edge_at = excluded.last_edge_at, last_edge_event = excluded.last_edge_event,
    properties = excluded.properties, created_at = excluded.created_at, updated_at = excluded.updated_at
where (known.ids, known.identified_at, known.identified_event, known.last_edge_at, known.last_edge_event,
       known.properties, known.created_at)
    is distinct from
      (excluded.ids, excluded.identified_at, excluded.identified_event, excluded.last_edge_at, excluded.last_edge_event,
       excluded.properties, excluded.created_at)

-- name: drop_people
delete from people.persons where tenant_id = $1 and person_id = any ($2::uuid[])

-- name: void_edge
update people.person_edges set voided_at = now(), voided_by = $3
where tenant_id = $1 and edge_key = $2 and voided_at is null
returning source_id, target_id

-- name: restore_edge
update people.person_edges set voided_at = null, voided_by = null
where tenant_id = $1 and edge_key = $2 and voided_at is not null
returning source_id, target_id

-- name: add_event_definitions
insert into people.event_definitions as known (tenant_id, event_name, first_seen_at, last_seen_at)
select t, e, f, l from unnest($1::int[], $2::text[], $3::timestamptz[], $4::timestamptz[]) as u (t, e, f, l)
order by t, e collate "C"
on conflict (tenant_id, event_name) do update set
    first_seen_at = least(known.first_seen_at, excluded.first_seen_at),
    last_seen_at = greatest(known.last_seen_at, excluded.last_seen_at)
where excluded.first_seen_at < known.first_seen_at or excluded.last_seen_at > known.last_seen_at

-- name: add_property_definitions
insert into people.property_definitions as known
    (tenant_id, property_type, property_name, value_type, first_seen_at, last_seen_at)
select t, k, n, v, f, l
from unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::timestamptz[]) as u (t, k, n, v, f, l)
order by t, k, n collate "C"
on conflict (tenant_id, property_type, property_name) do update set
    value_type = people.join_types(known.value_type, excluded.value_type),
    first_seen_at = least(known.first_seen_at, excluded.first_seen_at),
    last_seen_at = greatest(known.last_seen_at, excluded.last_seen_at)
where excluded.first_seen_at < known.first_seen_at or excluded.last_seen_at > known.last_seen_at
    or people.join_types(known.value_type, excluded.value_type) <> known.value_type

-- name: add_event_properties
insert into people.event_properties as known
    (tenant_id, event_name, property_name, value_type, first_seen_at, last_seen_at)
select t, e, n, v, f, l
from unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::timestamptz[], $6::timestamptz[]) as u (t, e, n, v, f, l)
order by t, e collate "C", n collate "C"
on conflict (tenant_id, event_name, property_name) do update set
    value_type = people.join_types(known.value_type, excluded.value_type),
    first_seen_at = least(known.first_seen_at, excluded.first_seen_at),
    last_seen_at = greatest(known.last_seen_at, excluded.last_seen_at)
where excluded.first_seen_at < known.first_seen_at or excluded.last_seen_at > known.last_seen_at
    or people.join_types(known.value_type, excluded.value_type) <> known.value_type
