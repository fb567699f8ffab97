-- What a batch writes about people, inside the pipeline's transaction. Every statement locks in the order of ids, and the
-- stages follow one another in one order: books, edges, ids, persons, definitions. A batch writes only the
-- ids that its own events carry: these live in its lane, so that lanes do not wait for each other over them.

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

-- name: news_of_ids
-- Ids that are not there, and those that were seen earlier than anybody knew. `limit 1`: an index look-up each, always.
select place, k.distinct_id is not null as known
from unnest($1::int[], $2::text[], $3::timestamptz[]) with ordinality as u (t, d, at, place)
left join lateral (
    select known.distinct_id, known.first_seen_at from people.distinct_ids known
    where known.tenant_id = t and known.distinct_id = d collate "C" limit 1
) as k on true
where k.distinct_id is null or k.first_seen_at > at

-- name: insert_alone
-- An id that came into the world with this batch and is linked to nobody is a person of its own: nothing to fold.
insert into people.persons (tenant_id, person_id, named_by, ids, properties, created_at, updated_at)
select t, p, d, 1, j::jsonb, at, date_trunc('hour', now())
from unnest($1::int[], $2::uuid[], $3::text[], $4::text[], $5::timestamptz[]) as u (t, p, d, j, at)
order by t, p
on conflict do nothing

-- name: new_edges
select place
from unnest($1::int[], $2::bytea[], $3::timestamptz[], $4::bigint[], $5::text[]) with ordinality as u (t, k, at, sq, ev, place)
where not exists (
    select from people.person_edges e
    where e.tenant_id = t and e.edge_key = k
        and (e.first_at, e.first_sequence, e.first_event) <= (at, sq, ev collate "C")
)

-- name: first_sightings
-- Of edges that copies may correct. Whoever changes one meanwhile makes it earlier still, and add_edges compares again.
select place, e.first_at, e.first_sequence, e.first_event
from unnest($1::int[], $2::bytea[]) with ordinality as u (t, k, place)
join people.person_edges e on e.tenant_id = t and e.edge_key = k

-- name: mark_unfolded
insert into people.unfolded (tenant_id, distinct_id, regroup, marked_at)
select t, d, r, now() from unnest($1::int[], $2::text[], $3::boolean[]) as u (t, d, r)

-- name: add_edges
insert into people.person_edges as known
    (tenant_id, edge_key, kind, source_id, target_id, first_at, first_sequence, first_event, outcome)
select t, k, kind, s, g, at, sq, ev, 'unfolded'
from unnest($1::int[], $2::bytea[], $3::text[], $4::text[], $5::text[], $6::timestamptz[], $7::bigint[], $8::text[])
    as u (t, k, kind, s, g, at, sq, ev)
order by t, k
on conflict (tenant_id, edge_key) do update
set first_at = excluded.first_at, first_sequence = excluded.first_sequence, first_event = excluded.first_event,
    outcome = 'unfolded'
where (excluded.first_at, excluded.first_sequence, excluded.first_event)
    < (known.first_at, known.first_sequence, known.first_event)
returning tenant_id, edge_key, xmax = 0 as born

-- name: drop_edges
-- Edges that this transaction has just inserted and that nobody else has seen.
delete from people.person_edges e using unnest($1::int[], $2::bytea[]) as u (t, k)
where e.tenant_id = u.t and e.edge_key = u.k

-- name: touch_ids
-- New ids and earlier sightings in one statement, so that all who write ids lock them in one order. Of two batches with one
-- new id, only one is told that it was born.
insert into people.distinct_ids as known (tenant_id, distinct_id, person_id, first_seen_at)
select t, d, p, at from unnest($1::int[], $2::text[], $3::uuid[], $4::timestamptz[]) as u (t, d, p, at)
order by t, d collate "C"
on conflict (tenant_id, distinct_id) do update set first_seen_at = excluded.first_seen_at
where excluded.first_seen_at < known.first_seen_at
returning tenant_id, distinct_id, xmax = 0 as born

-- name: add_event_definitions
insert into people.event_definitions as known (tenant_id, event_name, first_seen_at, last_seen_at)
select t, e, f, l from unnest($1::int[], $2::text[], $3::timestamptz[], $4::timestamptz[]) as u (t, e, f, l)
order by t, e collate "C"
on conflict (tenant_id, event_name) do update set
    first_seen_at = least(known.first_seen_at, excluded.first_seen_at),
    last_seen_at = greatest(known.last_seen_at, excluded.last_seen_at)
where excluded.first_seen_at < known.first_seen_at or excluded.last_seen_at > known.last_seen_at
returning tenant_id, xmax = 0 as fresh

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
returning tenant_id, xmax = 0 as fresh

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
returning tenant_id, xmax = 0 as fresh
