-- What reads wait for.

-- name: unfolded_range
-- The oldest and the newest mark of each of these tenants.
-- no-tenant: reads of several tenants wait at once; each of them is named
select t.tenant_id,
    least(
        (select min(u.mark_id) from people.unfolded u where u.tenant_id = t.tenant_id and u.regroup),
        (select min(u.mark_id) from people.unfolded u where u.tenant_id = t.tenant_id and not u.regroup)
    ) as oldest,
    greatest(
        (select max(u.mark_id) from people.unfolded u where u.tenant_id = t.tenant_id and u.regroup),
        (select max(u.mark_id) from people.unfolded u where u.tenant_id = t.tenant_id and not u.regroup)
    ) as newest
from unnest($1::int[]) as t (tenant_id)

-- name: unshipped_moves
-- Some ids of each of these tenants of whose moves ClickHouse does not know yet.
-- no-tenant: reads of several tenants wait at once; each of them is named
select t.tenant_id, d.distinct_id
from unnest($1::int[]) as t (tenant_id)
cross join lateral (
    select k.distinct_id from people.distinct_ids k
    where k.tenant_id = t.tenant_id and k.shipped < k.version
    order by k.distinct_id
    limit $2
) as d
