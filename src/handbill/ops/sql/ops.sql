-- name: begin_snapshot
-- no-tenant: it only opens a transaction that sees one moment
begin isolation level repeatable read read only;

-- name: export_snapshot
-- no-tenant: it names the moment for pg_dump
select pg_export_snapshot();

-- name: end_snapshot
-- no-tenant: it only closes that transaction
rollback;

-- name: server_facts
-- no-tenant: the server's own clock and version
select
    clock_timestamp() as now,
    current_setting('server_version_num')::int as version,
    current_setting('synchronous_commit') as synchronous_commit,
    current_setting('fsync') as fsync;

-- name: role_facts
-- no-tenant: roles belong to the whole cluster
select rolname::text as role, rolsuper as superuser, rolbypassrls as bypass
from pg_roles
where rolname in ('handbill_app', 'handbill_worker');
