-- Write keys and secret keys.

-- name: find_key
-- no-tenant: a key is presented before its tenant is known; the function tells tenant and id, nothing else
select tenant_id, key_id from tenants.find_key($1);

-- name: create_key
insert into tenants.api_keys
    (tenant_id, key_id, kind, name, key_hash, clear_key, hint, scopes, replaces, created_at, expires_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
returning key_id, kind, name, hint, scopes, created_at, expires_at, revoked_at, last_used_at, replaces, clear_key;

-- name: read_key
select key_id, kind, name, hint, scopes, created_at, expires_at, revoked_at, last_used_at, replaces, clear_key
from tenants.api_keys
where tenant_id = $1 and key_id = $2;

-- name: lock_key
select key_id, kind, name, hint, scopes, created_at, expires_at, revoked_at, last_used_at, replaces, clear_key
from tenants.api_keys
where tenant_id = $1 and key_id = $2
for update;

-- name: list_keys
-- Newest first; the cursor is the last id seen, and ids are ordered by time.
select key_id, kind, name, hint, scopes, created_at, expires_at, revoked_at, last_used_at, replaces, clear_key
from tenants.api_keys
where tenant_id = $1 and ($2::uuid is null or key_id < $2)
order by key_id desc
limit $3;

-- name: find_successor
-- The key that a key was rotated into.
select key_id from tenants.api_keys where tenant_id = $1 and replaces = $2 order by key_id desc limit 1;

-- name: end_key
update tenants.api_keys
set expires_at = $3, revoked_at = $4
where tenant_id = $1 and key_id = $2
returning key_id, kind, name, hint, scopes, created_at, expires_at, revoked_at, last_used_at, replaces, clear_key;

-- name: touch_key
-- At most once a minute per key, whoever asks.
update tenants.api_keys
set last_used_at = $3
where tenant_id = $1 and key_id = $2 and (last_used_at is null or last_used_at < $3::timestamptz - interval '1 minute');
