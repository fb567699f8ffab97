-- The outbox: written beside every change, relayed fairly, kept until its job is over.

-- name: put_outbox
insert into jobs.outbox_events (id, tenant_id, queue, name, job_id, effect_id, data, opts, due_at)
select e.id, e.tenant_id, e.queue, e.name, e.job_id, e.effect_id, e.data, e.opts, now() + make_interval(secs => e.delay_ms / 1000.0)
from unnest($1::uuid[], $2::int[], $3::text[], $4::text[], $5::text[], $6::uuid[], $7::jsonb[], $8::jsonb[], $9::float8[])
    as e (id, tenant_id, queue, name, job_id, effect_id, data, opts, delay_ms);

-- name: handled_once
insert into jobs.handled (outbox_id, tenant_id) values ($1, $2)
on conflict (outbox_id) do nothing
returning outbox_id;

-- name: pending_queues
-- no-tenant: the relay serves every tenant's queue
with recursive q as (
    (select queue from jobs.outbox_events where status = 'pending' order by queue limit 1)
    union all
    select (select e.queue from jobs.outbox_events e where e.status = 'pending' and e.queue > q.queue order by e.queue limit 1)
    from q where q.queue is not null
)
select queue from q where queue is not null;

-- A skip scan: one index probe per lane, however long its backlog; it starts behind the lane served last.
-- name: pending_lanes
-- no-tenant: the relay chooses among all tenants
with recursive v as (
    (select lane, due_at from jobs.outbox_events
     where queue = $1 and status = 'pending' and lane > $2 and lane <= $5
     order by lane, due_at limit 1)
    union all
    select n.lane, n.due_at
    from v cross join lateral (
        select e.lane, e.due_at from jobs.outbox_events e
        where e.queue = $1 and e.status = 'pending' and e.lane > v.lane and e.lane <= $5
        order by e.lane, e.due_at limit 1
    ) n
)
select lane, due_at <= now() + make_interval(secs => $4::float8) as due, extract(epoch from due_at - now())::float8 as wait
from v limit $3;

-- Each lane gives the share it was granted; rows that another relay holds are passed over.
-- name: take_pending
-- no-tenant: the relay serves every tenant, each in its share
with grants as (
    select lane, share, turn from unnest($2::int[], $3::int[]) with ordinality as g (lane, share, turn)
),
picked as (
    select e.place, g.turn
    from grants g cross join lateral (
        select o.ctid as place from jobs.outbox_events o
        where o.queue = $1 and o.status = 'pending' and o.lane = g.lane
            and o.due_at <= now() + make_interval(secs => $4::float8)
        order by o.due_at, o.id
        limit g.share
        for update skip locked
    ) e
)
update jobs.outbox_events t
set status = 'relayed', relayed_at = now(), relayed_ms = $5, relays = t.relays + 1
from picked p
where t.ctid = p.place
returning t.id, t.tenant_id, t.lane, t.name, t.job_id, t.effect_id, t.data, t.opts, t.relays, p.turn,
    extract(epoch from t.due_at - now())::float8 as wait, extract(epoch from now() - t.created_at)::float8 as age, t.due_at;

-- A producer's own id that another row already stands for: the work is under way once, and once is enough.
-- name: drop_doubles
-- no-tenant: the relay settles what it just relayed
delete from jobs.outbox_events o
where o.id = any($1::uuid[]) and o.queue = $2
    and exists (
        select from jobs.outbox_events p
        where p.queue = o.queue and p.job_id = o.job_id and p.status = 'relayed'
            and (not p.id = any($1::uuid[]) or p.id < o.id)
    )
returning o.id;

-- name: drop_rows
-- no-tenant: the relay settles what it just relayed
delete from jobs.outbox_events where id = any($1::uuid[]);

-- name: restamp_rows
-- no-tenant: the relay settles what it just relayed
update jobs.outbox_events set relayed_ms = $2 where id = any($1::uuid[]);

-- The rows of jobs that are over. A job may end before the relay that added it has committed: its row is then locked
-- and still looks pending, so this waits for the relay and reads the row as it is afterwards.
-- name: lock_rows
-- no-tenant: the ledger follows every queue
select o.id, o.job_id, o.status, o.relayed_ms from jobs.outbox_events o
where o.id = any($2::uuid[]) and o.queue = $1
order by o.id
for update;

-- name: lock_own_rows
-- no-tenant: the ledger follows every queue
select o.id, o.job_id, o.status, o.relayed_ms from jobs.outbox_events o
where o.queue = $1 and o.job_id = any($2::text[]) and o.job_id <> o.id::text
order by o.id
for update;

-- name: relayed_rows
-- no-tenant: the ledger looks for the data of jobs that another program removed
select id, tenant_id, queue, job_id, name, effect_id, data, opts, created_at, relayed_ms
from jobs.outbox_events
where queue = $1 and status = 'relayed' and job_id = any($2::text[]);

-- Rows whose job should be over by now, for the sweeper to ask Redis about. There are never many: queues are kept short.
-- name: stale_relayed
-- no-tenant: the sweeper looks after every tenant
select o.id, o.queue, o.job_id, o.effect_id, exists (select from jobs.handled h where h.outbox_id = o.effect_id) as handled
from jobs.outbox_events o
where o.status = 'relayed' and (o.queue, o.job_id) > ($1, $2) and ($5::text is null or o.queue = $5)
    and o.relayed_at < now() - make_interval(secs => $3::float8)
order by o.queue, o.job_id
limit $4;

-- name: requeue_rows
-- no-tenant: the sweeper looks after every tenant
update jobs.outbox_events set status = 'pending', relayed_at = null, relayed_ms = null
where id = any($1::uuid[]) and status = 'relayed';

-- name: prune_handled
-- no-tenant: retention
-- A range of pages of the table, and the place behind it. The ranges of a BRIN index on the time never shrink: with free space
-- filled again nearly all of them match.
with gone as (
    delete from jobs.handled
    where handled_at < now() - make_interval(secs => $1::float8)
      and ctid >= format('(%s,0)', $2::bigint)::tid and ctid < format('(%s,0)', $2 + $3::int)::tid
    returning 1
)
select (select count(*)::int from gone), $2 + $3
where $2 * current_setting('block_size')::bigint < pg_relation_size('jobs.handled');

-- name: cancel_pending
delete from jobs.outbox_events
where queue = $1 and status = 'pending' and ($2::int is null or tenant_id = $2)
returning id;

-- name: cancel_row
delete from jobs.outbox_events
where queue = $1 and job_id = $2 and status = 'pending' and ($3::int is null or tenant_id = $3)
returning id;

-- name: list_pending
select id, tenant_id, queue, name, job_id, effect_id, data::text as data, opts::text as opts, status, created_at, due_at, relayed_at, relays
from jobs.outbox_events
where queue = $1 and status = 'pending' and ($2::int is null or (tenant_id = $2 and lane = $2)) and (due_at, id) > ($3, $4::uuid)
order by due_at, id
limit $5;

-- What one tenant has pending, by queue. The queues' names come in: behind the wall no index can skip to them.
-- name: tenant_pending
select q.queue, s.depth, s.age
from unnest($2::text[]) as q (queue) cross join lateral (
    select count(*)::int as depth, extract(epoch from now() - min(e.due_at))::float8 as age
    from jobs.outbox_events e
    where e.queue = q.queue and e.status = 'pending' and e.lane = $1::int and e.tenant_id = $1::int
) s
where s.depth > 0
order by q.queue;

-- name: find_outbox
select id, tenant_id, queue, name, job_id, effect_id, data::text as data, opts::text as opts, status, created_at, due_at, relayed_at, relays
from jobs.outbox_events
where queue = $1 and job_id = $2 and ($3::int is null or tenant_id = $3)
order by id desc limit 1;

-- Depth is counted only as far as it matters: beyond the limit the answer is the same.
-- name: lane_pressure
select count(*)::int as depth, coalesce(extract(epoch from now() - min(due_at)), 0)::float8 as age
from (
    select due_at from jobs.outbox_events
    where queue = $1 and status = 'pending' and lane = coalesce($2::int, 0) and tenant_id is not distinct from $2::int and due_at <= now()
    order by due_at limit $3
) s;

-- name: lanes_depth
-- no-tenant: gauges by internal tenant number
select o.lane, count(*)::int as depth, coalesce(extract(epoch from now() - min(o.due_at)), 0)::float8 as age
from jobs.outbox_events o where o.queue = $1 and o.status = 'pending' and o.due_at <= now()
group by o.lane order by depth desc limit $2;
