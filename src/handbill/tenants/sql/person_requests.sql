-- Erasures and exports of a person. The row is the state; the worker that runs it may die at any moment.

-- name: open_erasure
insert into tenants.erasures (tenant_id, erasure_id, subject, subject_hash, status, steps, requested_by, created_at)
values ($1, $2, $3, $4, 'queued', $5, $6, $7)
returning erasure_id, status, report::text as report, requested_by, created_at, finished_at, steps, started_at, error;

-- name: begin_erasure
-- Nothing comes back for one that has ended.
update tenants.erasures
set status = 'running', steps = $3, started_at = coalesce(started_at, $4)
where tenant_id = $1 and erasure_id = $2 and status in ('queued', 'running') and subject is not null
returning subject, ids, report::text as report, requested_by, created_at;

-- name: record_erasure_ids
update tenants.erasures set ids = $3, error = null, report = report - 'accepted'
where tenant_id = $1 and erasure_id = $2 and status = 'running';

-- name: record_erasure_step
update tenants.erasures
set report = report || jsonb_build_object($3::text, $4::text::jsonb), error = $5
where tenant_id = $1 and erasure_id = $2 and status = 'running';

-- name: close_erasure
-- The subject is forgotten here too once every store has forgotten it. The first to close it decides.
update tenants.erasures
set status = $3, error = $4, finished_at = $5, ids = null,
    subject = case when $3 = 'done' then null else subject end
where tenant_id = $1 and erasure_id = $2 and status in ('queued', 'running')
returning subject_hash, requested_by, report::text as report;

-- name: forget_subject
-- A later erasure that succeeds also settles the earlier ones of the same subject that did not.
update tenants.erasures set subject = null
where tenant_id = $1 and subject_hash = $2 and subject is not null and status in ('done', 'failed');

-- name: read_erasure
select erasure_id, status, report::text as report, requested_by, created_at, finished_at, steps, started_at, error
from tenants.erasures
where tenant_id = $1 and erasure_id = $2;

-- name: list_erasures
select erasure_id, status, report::text as report, requested_by, created_at, finished_at, steps, started_at, error
from tenants.erasures
where tenant_id = $1 and ($2::uuid is null or erasure_id < $2)
order by erasure_id desc
limit $3;

-- name: erased_since
-- An erasure that waits, runs, or failed half way, may have reached its rows as well.
select distinct tenant_id from tenants.erasures
where tenant_id = any ($1::int[]) and (finished_at is null or finished_at >= $2);

-- name: end_old_erasures
-- no-tenant: a request that no job works on any more has failed, whoever sent it
update tenants.erasures set status = 'failed', error = 'JOB_FAILED', finished_at = $1, ids = null
where status in ('queued', 'running') and created_at < $2;

-- name: count_exports
select count(*) from tenants.exports where tenant_id = $1 and expires_at > $2;

-- name: open_export
insert into tenants.exports (tenant_id, export_id, subject, status, steps, requested_by, created_at, expires_at)
values ($1, $2, $3, 'queued', $4, $5, $6, $7)
returning export_id, status, steps, report::text as report, error, requested_by, created_at, started_at, finished_at,
    expires_at;

-- name: begin_export
-- From the beginning each time: an export only reads.
update tenants.exports
set status = 'running', steps = $3, started_at = coalesce(started_at, $4), report = '{}', error = null
where tenant_id = $1 and export_id = $2 and status in ('queued', 'running')
returning subject;

-- name: record_export_ids
update tenants.exports set ids = $3
where tenant_id = $1 and export_id = $2 and status = 'running';

-- name: record_export_step
update tenants.exports
set report = report || jsonb_build_object($3::text, $4::text::jsonb)
where tenant_id = $1 and export_id = $2 and status = 'running';

-- name: close_export
update tenants.exports
set status = $3, error = $4, finished_at = $5, expires_at = $6, result = $7
where tenant_id = $1 and export_id = $2 and status in ('queued', 'running');

-- name: read_export
select export_id, status, steps, report::text as report, error, requested_by, created_at, started_at, finished_at,
    expires_at
from tenants.exports
where tenant_id = $1 and export_id = $2 and expires_at > $3;

-- name: read_export_result
select status, result from tenants.exports where tenant_id = $1 and export_id = $2 and expires_at > $3;

-- name: erase_exports
delete from tenants.exports where tenant_id = $1 and (subject = any ($2::text[]) or ids && $2::text[]);

-- name: sweep_exports
-- no-tenant: what has expired has expired for every tenant alike
delete from tenants.exports where expires_at <= $1;
