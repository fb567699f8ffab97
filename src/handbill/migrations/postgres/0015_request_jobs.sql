-- Erasures and exports of a person are jobs: the row is recorded by the request, and the worker writes its progress there.
-- The new check is not compared with old rows: they have fewer states.
alter table tenants.erasures
    drop constraint erasures_status_check,
    add constraint erasures_status_check check (status in ('queued', 'running', 'done', 'failed')) not valid,
    add column ids text[],                               -- all ids of the person, once collected; gone with the subject
    add column steps int not null default 0,             -- packages to ask
    add column started_at timestamptz,
    add column error text;

-- An export is kept for a day and can be fetched until then. It goes earlier when its person is erased.
create table tenants.exports (
    tenant_id int not null references tenants.tenants (tenant_id) on delete cascade,
    export_id uuid not null,
    subject text not null,
    ids text[],                                          -- all ids of the person, once collected
    status text not null check (status in ('queued', 'running', 'done', 'failed')),
    steps int not null default 0,
    report jsonb not null default '{}',                  -- rows by package and table
    error text,
    requested_by text not null,
    created_at timestamptz not null,
    started_at timestamptz,
    finished_at timestamptz,
    expires_at timestamptz not null,
    result bytea,
    primary key (tenant_id, export_id)
);
select handbill_wall('tenants.exports');
create index ix_exports_expires_at on tenants.exports (expires_at);
