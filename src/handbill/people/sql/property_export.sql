-- What people are like now, on its way to ClickHouse.

-- name: any_property_changes
-- no-tenant: one task exports the properties of all tenants
select exists (select from people.property_changes)

-- name: take_property_changes
-- The oldest changes, up to so many and about so many bytes; each person once, as it is now. A person's `change_id` is the
-- newest of those taken: what is read here may be newer still, and then has another change.
-- no-tenant: one task exports the properties of all tenants
with oldest as (
    select c.tenant_id, c.person_id, c.change_id, p.properties::text as properties,
        sum(coalesce(octet_length(p.properties::text), 0)) over (order by c.change_id) as bytes
    from (select * from people.property_changes order by change_id limit $1) as c
    left join people.persons p on p.tenant_id = c.tenant_id and p.person_id = c.person_id
), chosen as (
    select * from oldest where bytes - coalesce(octet_length(properties), 0) < $2
), gone as (
    delete from people.property_changes d using chosen h
    where d.tenant_id = h.tenant_id and d.change_id = h.change_id
)
select tenant_id, person_id, max(change_id) as change_id, (array_agg(properties))[1] as properties
from chosen group by tenant_id, person_id order by tenant_id, person_id

-- name: people_of_erased
-- The people that these ids belong to.
select distinct person_id from people.distinct_ids where tenant_id = $1 and distinct_id = any ($2::text[])

-- name: add_property_changes
insert into people.property_changes (tenant_id, person_id) select $1, p from unnest($2::uuid[]) as p order by p

-- name: backfill_place
-- no-tenant: one task exports the properties of all tenants
select after_tenant, after_person from people.property_backfill where finished_at is null

-- name: next_properties
-- no-tenant: one task exports the properties of all tenants
with portion as (
    select tenant_id, person_id, properties::text as properties
    from people.persons
    where (tenant_id, person_id) > ($1, $2::uuid)
    order by tenant_id, person_id
    limit $3
)
select tenant_id, person_id, properties
from (
    select *, sum(octet_length(properties)) over (order by tenant_id, person_id) - octet_length(properties) as before
    from portion
) as sized
where before < $4
order by tenant_id, person_id

-- name: move_backfill
-- no-tenant: one task exports the properties of all tenants
update people.property_backfill set after_tenant = $1, after_person = $2, finished_at = case when $3 then now() end

-- name: property_changes_range
-- The oldest and the newest change of each of these tenants that ClickHouse does not have yet.
-- no-tenant: reads of several tenants wait at once; each of them is named
select t.tenant_id,
    (select min(c.change_id) from people.property_changes c where c.tenant_id = t.tenant_id) as oldest,
    (select max(c.change_id) from people.property_changes c where c.tenant_id = t.tenant_id) as newest
from unnest($1::int[]) as t (tenant_id)
