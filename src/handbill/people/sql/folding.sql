-- From what was said to who they are. A folding reads what is committed and writes what follows from it.

-- name: lock_tenant
-- no-tenant: the lock itself is named by the tenant's number
-- One regrouping at a time for a tenant. Batches and the refreshing of people do not ask for this lock.
select pg_advisory_xact_lock(1886678130, $1::int)

-- name: take_unfolded
delete from people.unfolded u
using (
    select mark_id from people.unfolded
    where tenant_id = $1 and regroup = $2 and mark_id <= $4 order by mark_id limit $3 for update skip locked
) as taken
where u.tenant_id = $1 and u.regroup = $2 and u.mark_id = taken.mark_id
returning u.distinct_id

-- name: next_marks
-- The marks that the next portion will take, without taking them.
select mark_id, distinct_id from people.unfolded
where tenant_id = $1 and regroup order by mark_id limit $2

-- name: sources_of
-- The other sides of edges that are new, where nobody knows them yet.
select source_id, min(first_at) as first_at from people.person_edges e
where tenant_id = $1 and target_id = any ($2::text[]) and outcome = 'unfolded'
  and not exists (select from people.distinct_ids d where d.tenant_id = $1 and d.distinct_id = e.source_id)
group by source_id

-- name: tenants_unfolded
-- no-tenant: whoever mends what a crash left behind mends it for everybody
select distinct tenant_id from people.unfolded where marked_at < now() - $1::interval
union
select distinct tenant_id from people.followups where at < now() - $1::interval

-- name: edges_unfolded
select edge_key, kind, source_id, target_id, first_at, first_sequence, first_event, outcome, voided_at
from people.person_edges
where tenant_id = $1 and target_id = any ($2::text[]) and outcome = 'unfolded'

-- name: lock_people_of
-- The people of these ids, in one order. Whoever changes a person holds its row.
select p.person_id, p.named_by, p.ids, p.identified_at, p.identified_sequence, p.identified_event, p.last_edge_at,
    p.last_edge_sequence, p.last_edge_event
from people.persons p
where p.tenant_id = $1
  and p.person_id in (select d.person_id from people.distinct_ids d where d.tenant_id = $1 and d.distinct_id = any ($2::text[]))
order by p.person_id
for no key update of p

-- name: lock_free_people_of
-- The same, without waiting for those that somebody else holds.
select p.person_id
from people.persons p
where p.tenant_id = $1
  and p.person_id in (select d.person_id from people.distinct_ids d where d.tenant_id = $1 and d.distinct_id = any ($2::text[]))
order by p.person_id
for no key update of p skip locked

-- name: people_of_ids
select distinct_id, person_id from people.distinct_ids where tenant_id = $1 and distinct_id = any ($2::text[])

-- name: members_of
-- `limit 1` keeps the planner from reading the whole table of books for a few hundred people.
select d.distinct_id, d.person_id, d.first_seen_at, p.words, p.moments
from people.distinct_ids d
left join lateral (
    select b.words, b.moments from people.properties b
    where b.tenant_id = $1 and b.distinct_id = d.distinct_id limit 1
) as p on true
where d.tenant_id = $1 and d.person_id = any ($2::uuid[])

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
select d.distinct_id from reach r join people.distinct_ids d on d.tenant_id = $1 and d.distinct_id = r.id

-- name: known_ids
select d.distinct_id, d.person_id, d.first_seen_at, p.words, p.moments
from people.distinct_ids d
left join lateral (
    select b.words, b.moments from people.properties b
    where b.tenant_id = $1 and b.distinct_id = d.distinct_id limit 1
) as p on true
where d.tenant_id = $1 and d.distinct_id = any ($2::text[])

-- name: refresh_people
update people.persons p
set properties = u.j::jsonb, created_at = u.c, updated_at = date_trunc('hour', now())
from unnest($2::uuid[], $3::text[], $4::timestamptz[]) as u (p, j, c)
where p.tenant_id = $1 and p.person_id = u.p and (p.properties, p.created_at) is distinct from (u.j::jsonb, u.c)

-- name: lock_edges
-- Every edge that a folding looks at or changes, in one statement and one order.
select edge_key, kind, source_id, target_id, first_at, first_sequence, first_event, outcome, voided_at
from people.person_edges
where tenant_id = $1 and (source_id = any ($2::text[]) or edge_key = any ($3::bytea[]))
order by edge_key
for no key update

-- name: sides_of_edge
select source_id, target_id from people.person_edges where tenant_id = $1 and edge_key = $2

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
-- To their persons, and back to the moment at which an edge first named them.
update people.distinct_ids k
set person_id = u.p, version = k.version + (k.person_id <> u.p)::int, first_seen_at = least(k.first_seen_at, u.at)
from unnest($2::text[], $3::uuid[], $4::timestamptz[]) as u (d, p, at)
where k.tenant_id = $1 and k.distinct_id = u.d collate "C"

-- name: set_people
insert into people.persons as known (
    tenant_id, person_id, named_by, ids, identified_at, identified_sequence, identified_event, last_edge_at,
    last_edge_sequence, last_edge_event, properties, created_at, updated_at
)
select $1, p, n, i, ia, isq, ie, la, lsq, le, j::jsonb, c, date_trunc('hour', now())
from unnest($2::uuid[], $3::text[], $4::int[], $5::timestamptz[], $6::bigint[], $7::text[], $8::timestamptz[],
    $9::bigint[], $10::text[], $11::text[], $12::timestamptz[]) as u (p, n, i, ia, isq, ie, la, lsq, le, j, c)
order by p
on conflict (tenant_id, person_id) do update set
    ids = excluded.ids, identified_at = excluded.identified_at, identified_sequence = excluded.identified_sequence,
    identified_event = excluded.identified_event, last_edge_at = excluded.last_edge_at,
    last_edge_sequence = excluded.last_edge_sequence, last_edge_event = excluded.last_edge_event,
    properties = excluded.properties, created_at = excluded.created_at, updated_at = excluded.updated_at
where (known.ids, known.identified_at, known.identified_sequence, known.identified_event, known.last_edge_at,
       known.last_edge_sequence, known.last_edge_event, known.properties, known.created_at)
    is distinct from
      (excluded.ids, excluded.identified_at, excluded.identified_sequence, excluded.identified_event,
       excluded.last_edge_at, excluded.last_edge_sequence, excluded.last_edge_event, excluded.properties,
       excluded.created_at)

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

-- name: add_followup
insert into people.followups (tenant_id, ids, at) values ($1, $2::text[], now())

-- name: claim_followups
update people.followups f set claimed_at = now()
where f.tenant_id = $1 and f.followup_id in (
    select followup_id from people.followups
    where tenant_id = $1 and (claimed_at is null or claimed_at < now() - interval '60 seconds')
    order by followup_id limit $2 for update skip locked
)
returning f.followup_id, f.ids

-- name: done_followups
delete from people.followups where tenant_id = $1 and followup_id = any ($2::bigint[])
