-- name: create_backfill
insert into adstats.backfills (tenant_id, backfill_id, date_from, date_to, asked_by, created_at)
values ($1, $2, $3, $4, $5, $6)

-- name: create_parts
insert into adstats.backfill_parts (tenant_id, backfill_id, entity_type, date_from, date_to)
select $1, $2, * from unnest($3::text[], $4::date[], $5::date[])

-- name: list_backfills
select b.*, p.parts, p.done, p.failed, p.errors
from adstats.backfills b
cross join lateral (
    select count(*)::int as parts, count(*) filter (where state = 'done')::int as done,
           count(*) filter (where state = 'failed')::int as failed,
           coalesce((array_agg(distinct error) filter (where error is not null))[1:5], '{}') as errors
    from adstats.backfill_parts p where p.tenant_id = b.tenant_id and p.backfill_id = b.backfill_id
) p
where b.tenant_id = $1 and b.backfill_id < $2 and ($4::uuid is null or b.backfill_id = $4)
order by b.backfill_id desc limit $3

-- name: waiting_parts
-- no-tenant: the scheduler looks at all sellers at once
-- At most a few parts of each seller at a time: a long backfill must not stand before anybody's today.
select p.tenant_id, t.public_id as seller, p.entity_type, p.date_from, p.date_to
from (select distinct tenant_id from adstats.backfill_parts where state = 'waiting') w
join tenants.tenants t on t.tenant_id = w.tenant_id and t.status = 'active'
cross join lateral (
    select * from adstats.backfill_parts p where p.tenant_id = w.tenant_id and p.state = 'waiting'
    order by p.date_from desc, p.entity_type limit $1
) p
where $2::int is null or p.tenant_id = $2
order by p.tenant_id, p.date_from desc

-- name: end_parts
-- A sync that covered a part ends it, whoever asked for the sync.
update adstats.backfill_parts set state = $5, error = $6, ended_at = $7
where tenant_id = $1 and entity_type = $2 and date_from >= $3 and date_to <= $4 and state = 'waiting'
