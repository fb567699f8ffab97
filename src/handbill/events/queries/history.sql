-- name: partitions
-- no-tenant: a month is dropped for all tenants of its retention class
select distinct partition from system.parts
where database = currentDatabase() and table = 'events' and active
order by partition

-- name: drop_partition
-- The slot holds a name that the engine gave and that we have read as two numbers.
-- no-tenant: a month is dropped for all tenants of its retention class
alter table events drop partition <<partition>>
