-- Replays and drops of parked events. The row is the state; the worker that runs it may die at any moment. Only the latest
-- run of a request writes ($3 = run_id): one that lost its lock finds out at its next statement.

-- name: count_open_parked_requests
select count(*) from events.parked_requests where tenant_id = $1 and finished_at is null;

-- name: open_parked_request
insert into events.parked_requests (tenant_id, parked_request_id, action, reason, ids, on_failure, dry_run, force, status, report,
    requested_by, created_at, progressed_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, 'queued', $9::text::jsonb, $10, $11, $11)
returning parked_request_id, action, reason, dry_run, status, total, report::text as report, error, requested_by, created_at,
    started_at, finished_at;

-- name: begin_parked_request
-- Nothing comes back for one that has ended. The first run sets the bound, and the time of its start.
update events.parked_requests
set status = 'running', run_id = $3, started_at = coalesce(started_at, $4), last = coalesce(last, $5),
    progressed_at = case when started_at is null then $4 else progressed_at end
where tenant_id = $1 and parked_request_id = $2 and status in ('queued', 'running')
returning tenant_id, parked_request_id, run_id, action, reason, ids, on_failure, dry_run, force, total, report::text as report,
    progressed_at, after, last, portion, portion_since;

-- name: record_parked_total
update events.parked_requests set total = $4
where tenant_id = $1 and parked_request_id = $2 and run_id = $3 and status = 'running';

-- name: claim_parked_portion
update events.parked_requests set portion = $4, portion_since = clock_timestamp()
where tenant_id = $1 and parked_request_id = $2 and run_id = $3 and status = 'running'
returning portion_since;

-- name: record_parked_portion
update events.parked_requests
set after = $4, report = $5::text::jsonb, progressed_at = $6, portion = null, portion_since = null, error = null
where tenant_id = $1 and parked_request_id = $2 and run_id = $3 and status = 'running';

-- name: record_parked_error
update events.parked_requests set error = $4
where tenant_id = $1 and parked_request_id = $2 and run_id = $3 and status = 'running'
returning progressed_at;

-- name: close_parked_request
-- The first to close it decides; a run only while it is the latest one.
update events.parked_requests
set status = $3, error = $4, finished_at = $5, ids = null, portion = null, portion_since = null
where tenant_id = $1 and parked_request_id = $2 and status in ('queued', 'running') and ($6::uuid is null or run_id = $6)
returning action, reason, dry_run, requested_by, report::text as report;

-- name: read_parked_request
select parked_request_id, action, reason, dry_run, status, total, report::text as report, error, requested_by, created_at,
    started_at, finished_at
from events.parked_requests
where tenant_id = $1 and parked_request_id = $2;

-- name: idle_parked_requests
-- no-tenant: a request that no job works on any more has failed, whoever sent it
select tenant_id, parked_request_id from events.parked_requests
where finished_at is null and progressed_at < $1
order by tenant_id, parked_request_id
limit $2;

-- name: prune_parked_requests
-- no-tenant: old ends are removed for every tenant alike
delete from events.parked_requests r
using (
    select tenant_id, parked_request_id from events.parked_requests where finished_at < $1 order by finished_at limit $2
) old
where r.tenant_id = old.tenant_id and r.parked_request_id = old.parked_request_id;
