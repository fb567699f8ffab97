-- name: park_once
-- An entry that was parked before and met again stays as it is. What names no tenant is kept as nobody's.
insert into events.parked (id, tenant_id, kind, event_id, lane, reason, detail, body)
select u.id, t.tenant_id, 'capture', u.event_id, u.lane, u.reason, u.detail, u.body
from unnest($1::uuid[], $2::int[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bytea[])
    as u (id, tenant_id, event_id, lane, reason, detail, body)
left join tenants.tenants t using (tenant_id)
on conflict do nothing
returning id
