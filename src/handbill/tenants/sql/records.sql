-- The audit log and idempotency keys.

-- name: write_audit
insert into tenants.audit_log (tenant_id, audit_id, at, actor, action, object, before, after, request_id)
values ($1, $2, $3, $4, $5, $6, $7::text::jsonb, $8::text::jsonb, $9);

-- name: list_audit
select audit_id, at, actor, action, object, before::text as before, after::text as after, request_id
from tenants.audit_log
where tenant_id = $1 and ($2::uuid is null or audit_id < $2)
order by audit_id desc
limit $3;

-- name: claim_replay
-- Ours if no row comes back from the conflict: an expired claim is taken over in the same statement.
insert into tenants.idempotency_keys as k (tenant_id, key, request_hash, created_at, expires_at)
values ($1, $2, $3, $4, $5)
on conflict (tenant_id, key) do update
    set request_hash = excluded.request_hash, status = null, content_type = null, reply = null,
        created_at = excluded.created_at, expires_at = excluded.expires_at
    where k.expires_at <= excluded.created_at
returning true;

-- name: read_replay
select request_hash, status, content_type, reply, created_at
from tenants.idempotency_keys
where tenant_id = $1 and key = $2;

-- name: close_replay
update tenants.idempotency_keys
set status = $3, content_type = $4, reply = $5
where tenant_id = $1 and key = $2 and status is null;

-- name: release_replay
delete from tenants.idempotency_keys where tenant_id = $1 and key = $2 and status is null;

-- name: sweep_replays
-- no-tenant: what has expired has expired for every tenant alike
delete from tenants.idempotency_keys
where expires_at < $1
  and ctid = any (array(select ctid from tenants.idempotency_keys where expires_at < $1 order by expires_at limit $2));
