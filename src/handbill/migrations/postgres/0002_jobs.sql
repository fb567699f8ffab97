-- Work to be done: the outbox that is written beside every change, what handlers have done, and the dead letters.
-- Rows without a tenant are the system's own: the wall hides them from handbill_app, only the worker sees them.

create schema jobs;

create table jobs.outbox_events (
    id uuid primary key,
    tenant_id int,
    -- The lane of the fair pick: the tenant, and 0 for all system events together. Never NULL, so an index can skip over it.
    lane int not null generated always as (coalesce(tenant_id, 0)) stored,
    queue text not null check (length(queue) between 1 and 100),
    name text not null check (length(name) between 1 and 200),
    job_id text not null check (length(job_id) between 1 and 500),
    -- Identity of the effect: the first outbox id; a redriven dead letter keeps it, so that nothing is done twice.
    effect_id uuid not null,
    data jsonb not null,
    opts jsonb not null default '{}',
    status text not null default 'pending' check (status in ('pending', 'relayed')),
    created_at timestamptz not null default now(),
    due_at timestamptz not null default now(),
    relayed_at timestamptz,
    -- The moment of the relay by the clock of Redis, to tell this job's events from those of an older one of the same id.
    relayed_ms bigint,
    relays int not null default 0
)
with (
    -- A queue in a table: most rows live for a second. Vacuum early and without pauses, or the pick wades through the dead.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.02
);
create index ix_outbox_pending on jobs.outbox_events (queue, lane, due_at, id) where status = 'pending';
create index ix_outbox_relayed on jobs.outbox_events (queue, job_id) where status = 'relayed';
-- Few rows carry an id of the producer's own; the others are found by their primary key.
create index ix_outbox_own on jobs.outbox_events (queue, job_id) where job_id <> id::text;
select handbill_wall('jobs.outbox_events');

-- One row per effect that was done, written in the transaction of the effect.
create table jobs.handled (
    outbox_id uuid primary key,
    tenant_id int,
    handled_at timestamptz not null default now()
)
with (autovacuum_vacuum_insert_scale_factor = 0.05);
create index ix_handled_at on jobs.handled using brin (handled_at);
select handbill_wall('jobs.handled');

-- One row per job that failed for good. It stays until somebody purges it; a redriven one says so.
create table jobs.dead_letters (
    id uuid primary key,
    tenant_id int,
    queue text not null,
    job_id text not null,
    name text not null,
    effect_id uuid not null,
    data jsonb not null,
    opts jsonb not null default '{}',
    attempts int not null default 0,
    reason text not null,
    traceback text not null default '',
    source text not null default 'worker',
    status text not null default 'dead' check (status in ('dead', 'redriven')),
    failures int not null default 1,
    redrives int not null default 0,
    queued_at timestamptz,
    failed_at timestamptz not null,
    recorded_at timestamptz not null default now(),
    redriven_at timestamptz,
    constraint uq_dead_letters_job unique (queue, job_id)
);
create index ix_dead_letters_tenant on jobs.dead_letters (tenant_id, id);
create index ix_dead_letters_open on jobs.dead_letters (queue, id) where status = 'dead';
select handbill_wall('jobs.dead_letters');

-- How far the ledger has read each queue's events.
create table jobs.event_cursors (
    queue text primary key,
    last_id text not null,
    updated_at timestamptz not null default now()
);
grant select, insert, update, delete on jobs.event_cursors to handbill_worker;
