-- A replay or a drop of parked events is a job: the request records the row, and the worker writes its progress there.
create table events.parked_requests (
    tenant_id int not null references tenants.tenants (tenant_id) on delete cascade,
    parked_request_id uuid not null,
    action text not null check (action in ('replay', 'drop')),
    reason text,                                         -- the choice: all of this reason, these ids, or both
    ids uuid[],                                          -- gone with the end
    on_failure text not null default 'park' check (on_failure in ('park', 'stop')),
    dry_run boolean not null default false,
    force boolean not null default false,
    status text not null check (status in ('queued', 'running', 'done', 'failed')),
    total int,                                           -- events that waited when the work began, if they could be counted
    report jsonb not null,
    error text,
    requested_by text not null,
    created_at timestamptz not null,
    started_at timestamptz,
    progressed_at timestamptz not null,                  -- of the request, its first run or its latest portion
    finished_at timestamptz,
    run_id uuid,                                         -- the worker's run that may write; a later one takes over
    after uuid not null default '00000000-0000-0000-0000-000000000000',  -- what is behind it is not looked at yet
    last uuid,                                           -- what was parked after it is not meant
    portion uuid[],                                      -- a replay's portion under way
    portion_since timestamptz,                           -- a moment before its first try
    primary key (tenant_id, parked_request_id)
);
select handbill_wall('events.parked_requests');
create index ix_parked_requests_open on events.parked_requests (tenant_id) where finished_at is null;
create index ix_parked_requests_finished_at on events.parked_requests (finished_at) where finished_at is not null;

-- A replay without a reason reads what waits in the order of the ids, past any number that were sent already. Parked events are
-- exceptions, so that the index is built at once.
create index ix_parked_waiting on events.parked (tenant_id, id) where replayed_at is null;
