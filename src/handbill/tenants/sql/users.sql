-- Users and their sessions.

-- name: find_accounts
-- no-tenant: an address is presented at login before its tenant is known; the function tells tenant and id
select tenant_id, user_id from tenants.find_accounts($1, $2, $3);

-- name: create_user
insert into tenants.users (tenant_id, user_id, email, name, role, password_hash, created_at, updated_at)
values ($1, $2, $3, $4, $5, $6, $7, $7)
returning user_id, email, name, role, version, created_at;

-- name: read_user
select user_id, email, name, role, version, created_at from tenants.users where tenant_id = $1 and user_id = $2;

-- name: lock_user
select user_id, email, name, role, version, created_at
from tenants.users
where tenant_id = $1 and user_id = $2
for update;

-- name: read_password
select password_hash from tenants.users where tenant_id = $1 and user_id = $2;

-- name: list_users
select user_id, email, name, role, version, created_at
from tenants.users
where tenant_id = $1 and ($2::uuid is null or user_id > $2)
order by user_id
limit $3;

-- name: lock_owners
-- Locked in one order, so that two owners who demote each other wait instead of both succeeding.
select user_id from tenants.users where tenant_id = $1 and role = 'owner' order by user_id for update;

-- name: update_user
update tenants.users
set name = $3, role = $4, password_hash = coalesce($5, password_hash), version = version + 1, updated_at = $6
where tenant_id = $1 and user_id = $2
returning user_id, email, name, role, version, created_at;

-- name: delete_user
delete from tenants.users where tenant_id = $1 and user_id = $2;

-- name: find_session
-- no-tenant: a session token is presented before its tenant is known; the function tells tenant and id
select tenant_id, session_id from tenants.find_session($1);

-- name: create_session
insert into tenants.sessions (tenant_id, session_id, user_id, token_hash, created_at, expires_at)
values ($1, $2, $3, $4, $5, $6);

-- name: read_session
select s.session_id, s.expires_at, u.user_id, u.email, u.name, u.role, u.version, u.created_at
from tenants.sessions s
join tenants.users u on u.tenant_id = s.tenant_id and u.user_id = s.user_id
where s.tenant_id = $1 and s.session_id = $2;

-- name: delete_session
delete from tenants.sessions where tenant_id = $1 and session_id = $2;

-- name: delete_sessions_of
delete from tenants.sessions
where tenant_id = $1 and user_id = $2 and ($3::uuid is null or session_id <> $3);

-- name: sweep_sessions
-- no-tenant: what has expired has expired for every tenant alike
delete from tenants.sessions
where ctid = any (array(select ctid from tenants.sessions where expires_at < $1 order by expires_at limit $2));
