-- name: corrected_tenants
select u.tenant_id from unnest($1::int[]) as u (tenant_id)
where exists (select from events.sequence_corrections c where c.tenant_id = u.tenant_id)

-- name: corrected_sequences
-- `limit 1`: an index look-up each, always.
select u.tenant_id, u.event_key, c.sequence
from unnest($1::int[], $2::bytea[]) as u (tenant_id, event_key)
cross join lateral (
    select sequence from events.sequence_corrections
    where tenant_id = u.tenant_id and event_key = u.event_key limit 1
) as c

-- name: corrections_due
-- So many of each tenant, the longest unchecked first. An event that ClickHouse did not have is looked for again after as long
-- as it was missing then, an hour at the most.
-- no-tenant: corrections of all tenants
select c.tenant_id, c.event_key, c.sequence
from (select distinct tenant_id from events.sequence_corrections where exported_at is null) as t
cross join lateral (
    select * from events.sequence_corrections o
    where o.tenant_id = t.tenant_id and o.exported_at is null
        and (o.checked_at is null
             or o.checked_at + least(greatest(o.checked_at - o.corrected_at, interval '5 s'), interval '1 hour') <= now())
    order by coalesce(o.checked_at, o.corrected_at) limit $1
) as c
limit $2

-- name: postpone_corrections
update events.sequence_corrections c set checked_at = now()
from unnest($1::int[], $2::bytea[], $3::bigint[]) as u (tenant_id, event_key, sequence)
where c.tenant_id = u.tenant_id and c.event_key = u.event_key and c.sequence = u.sequence

-- name: finish_corrections
-- One that became smaller meanwhile stays open.
update events.sequence_corrections c set exported_at = now()
from unnest($1::int[], $2::bytea[], $3::bigint[]) as u (tenant_id, event_key, sequence)
where c.tenant_id = u.tenant_id and c.event_key = u.event_key and c.sequence = u.sequence

-- name: forget_finished_corrections
-- no-tenant: finished corrections of all tenants
-- One that somebody holds stays for the next run.
delete from events.sequence_corrections c
using (
    select tenant_id, event_key from events.sequence_corrections
    where exported_at is not null and exported_at < $1 order by exported_at limit $2 for update skip locked
) as old
where c.tenant_id = old.tenant_id and c.event_key = old.event_key
returning c.tenant_id

-- name: forget_old_corrections
-- no-tenant: the horizon is the same for everybody
-- One that somebody holds stays for the next run.
delete from events.sequence_corrections c
using (
    select tenant_id, event_key from events.sequence_corrections
    where corrected_at < $1 order by corrected_at limit $2 for update skip locked
) as old
where c.tenant_id = old.tenant_id and c.event_key = old.event_key
returning c.tenant_id

-- name: open_corrections
-- no-tenant: how many there are of all tenants
select count(*) from events.sequence_corrections where exported_at is null
