-- Dead letters: jobs that failed for good, kept until somebody redrives or purges them.

-- The same failure seen twice (by event and by reconciliation) is one row; a later failure of the same job opens it again.
-- name: bury
insert into jobs.dead_letters as d
    (id, tenant_id, queue, job_id, name, effect_id, data, opts, attempts, reason, traceback, source, queued_at, failed_at)
values ($1, $2, $3, $4, $5, $6, $7::jsonb, $8::jsonb, $9, $10, $11, $12, $13, $14)
on conflict (queue, job_id) do update
set status = 'dead', failures = d.failures + 1, attempts = excluded.attempts, reason = excluded.reason,
    traceback = excluded.traceback, source = excluded.source, failed_at = excluded.failed_at, recorded_at = now(),
    data = excluded.data, opts = excluded.opts, name = excluded.name
where excluded.failed_at > d.failed_at
returning id, (xmax = 0) as fresh;

-- name: known_failures
-- no-tenant: reconciliation of a whole queue
select job_id, failed_at from jobs.dead_letters where queue = $1 and job_id = any($2::text[]);

-- Filters that are NULL do not filter. The tenant is the caller's, or NULL for the operator.
-- name: list_dead
select id, tenant_id, queue, job_id, name, effect_id, data::text as data, opts::text as opts, attempts, reason, traceback, source,
    status, failures, redrives, queued_at, failed_at, recorded_at, redriven_at
from jobs.dead_letters
where ($1::int is null or tenant_id = $1) and ($2::text is null or queue = $2) and ($3::text is null or name = $3)
    and ($4::text is null or status = $4) and ($5::text is null or strpos(reason, $5) > 0)
    and ($6::timestamptz is null or failed_at < $6) and ($7::uuid[] is null or id = any($7)) and ($8::uuid is null or id < $8)
order by id desc
limit $9;

-- name: count_dead
select count(*)::int from jobs.dead_letters
where ($1::int is null or tenant_id = $1) and ($2::text is null or queue = $2) and ($3::text is null or name = $3)
    and ($4::text is null or status = $4) and ($5::text is null or strpos(reason, $5) > 0)
    and ($6::timestamptz is null or failed_at < $6) and ($7::uuid[] is null or id = any($7));

-- Taken for redriving; those that another operator holds at this moment are passed over, not waited for.
-- name: take_dead
select id, tenant_id, queue, job_id, name, effect_id, data::text as data, opts::text as opts, attempts, reason, traceback, source,
    status, failures, redrives, queued_at, failed_at, recorded_at, redriven_at
from jobs.dead_letters
where status = 'dead'
    and ($1::int is null or tenant_id = $1) and ($2::text is null or queue = $2) and ($3::text is null or name = $3)
    and ($4::text is null or status = $4) and ($5::text is null or strpos(reason, $5) > 0)
    and ($6::timestamptz is null or failed_at < $6) and ($7::uuid[] is null or id = any($7))
order by id
limit $8
for update skip locked;

-- name: mark_redriven
update jobs.dead_letters set status = 'redriven', redrives = redrives + 1, redriven_at = now()
where id = any($1::uuid[]) and ($2::int is null or tenant_id = $2);

-- name: purge_dead
delete from jobs.dead_letters
where id in (
    select id from jobs.dead_letters
    where ($1::int is null or tenant_id = $1) and ($2::text is null or queue = $2) and ($3::text is null or name = $3)
        and ($4::text is null or status = $4) and ($5::text is null or strpos(reason, $5) > 0)
        and ($6::timestamptz is null or failed_at < $6) and ($7::uuid[] is null or id = any($7))
    order by id limit $8
    for update skip locked
)
returning id;

-- name: open_dead_counts
-- no-tenant: gauges for alerts
select queue, count(*)::int as open from jobs.dead_letters where status = 'dead' group by queue;

-- A job that a person retried in another program and that succeeded is no dead letter any more.
-- name: recover_dead
-- no-tenant: the ledger follows every queue
update jobs.dead_letters d set status = 'redriven', redriven_at = now(), redrives = d.redrives + 1
from unnest($2::text[], $3::timestamptz[]) as e (job_id, finished_at)
where d.queue = $1 and d.job_id = e.job_id and d.status = 'dead' and d.failed_at < e.finished_at;

-- name: open_event_cursor
-- no-tenant: a queue's event stream belongs to no tenant
insert into jobs.event_cursors (queue, last_id) values ($1, '0-0') on conflict (queue) do nothing;

-- One ledger at a time follows a queue; a second one passes by.
-- name: hold_event_cursor
-- no-tenant: a queue's event stream belongs to no tenant
select last_id from jobs.event_cursors where queue = $1 for update skip locked;

-- name: move_event_cursor
-- no-tenant: a queue's event stream belongs to no tenant
update jobs.event_cursors set last_id = $2, updated_at = now() where queue = $1;

-- name: known_queues
-- no-tenant: names of queues only
with recursive r as (
    (select queue from jobs.outbox_events where status = 'relayed' order by queue limit 1)
    union all
    select (select e.queue from jobs.outbox_events e where e.status = 'relayed' and e.queue > r.queue order by e.queue limit 1)
    from r where r.queue is not null
)
select queue from r where queue is not null
union
select queue from jobs.event_cursors;

-- name: leader_alive
-- no-tenant: asks only whether the leader's connection lives
select 1;
