-- name: lock_moves
-- no-tenant: one chore ships the moves of all tenants
-- Whoever writes ids into ClickHouse because of a move holds this from the question whose they are until they stand there.
-- So does an erasure until its commit: what it takes away there cannot be brought back by somebody who asked before it.
select pg_advisory_xact_lock(1886678131, 0)

-- name: unshipped_ids
-- no-tenant: one chore ships the moves of all tenants
select tenant_id, distinct_id, person_id, version from people.distinct_ids
where shipped < version
order by tenant_id, distinct_id
limit $1

-- name: mark_shipped
-- An id that has moved again meanwhile stays unshipped.
update people.distinct_ids k set shipped = u.v
from unnest($1::int[], $2::text[], $3::bigint[]) as u (t, d, v)
where k.tenant_id = u.t and k.distinct_id = u.d collate "C" and k.shipped < u.v

-- name: any_squashed
-- no-tenant: only whether there is one at all, of any tenant
select exists (select from people.distinct_ids where squashed > 0)

-- name: squashed_people
select k.tenant_id, k.distinct_id, k.person_id
from unnest($1::int[], $2::text[]) as u (t, d)
join people.distinct_ids k on k.tenant_id = u.t and k.distinct_id = u.d collate "C"
where k.squashed > 0

-- name: begin_squash
-- Ids whose override ClickHouse has and whose rows do not say it themselves yet; from here on every new row does.
-- no-tenant: one chore squashes the ids of all tenants
with chosen as (
    select tenant_id, distinct_id from people.distinct_ids
    where version > squashed and shipped = version
    order by tenant_id, distinct_id
    limit $1
    for no key update skip locked
), marked as (
    update people.distinct_ids k set squashed = k.version
    from chosen c
    where k.tenant_id = c.tenant_id and k.distinct_id = c.distinct_id
    returning k.tenant_id, k.distinct_id, k.person_id, k.version
)
insert into people.squashing (tenant_id, distinct_id, person_id, version)
select tenant_id, distinct_id, person_id, version from marked
on conflict (tenant_id, distinct_id) do nothing

-- name: squash_plan
-- no-tenant: one chore squashes the ids of all tenants
select tenant_id, distinct_id, person_id, version from people.squashing order by tenant_id, distinct_id

-- name: end_squash
delete from people.squashing s
using unnest($1::int[], $2::text[], $3::bigint[]) as u (t, d, v)
where s.tenant_id = u.t and s.distinct_id = u.d collate "C" and s.version = u.v
