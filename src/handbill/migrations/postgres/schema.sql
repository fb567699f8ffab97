-- The whole schema as it is today. Each room keeps its own part; a test proves that the migrations reach the same.

-- === 0001_foundation
-- The ground floor: two roles, the wall between tenants, and the tenants themselves.

-- Roles belong to the whole cluster, so another database may have made them already. They log in themselves; the
-- migration runner gives them their passwords.
do $$
begin
    -- Asked first, because CREATE ROLE checks the privilege before it sees that the role is there.
    if not exists (select from pg_roles where rolname = 'handbill_app') then
        begin
            create role handbill_app login nosuperuser nobypassrls nocreatedb nocreaterole;
        exception when duplicate_object or unique_violation then null;
        end;
    end if;
    if not exists (select from pg_roles where rolname = 'handbill_worker') then
        begin
            create role handbill_worker login nosuperuser bypassrls nocreatedb nocreaterole;
        exception when duplicate_object or unique_violation then null;
        end;
    end if;
exception when insufficient_privilege then
    raise exception 'the owner may not create the roles handbill_app and handbill_worker; nothing was changed'
        using hint = 'as an administrator: create role handbill_app login; create role handbill_worker login bypassrls;'
                     ' grant both to the owner; then migrate again';
end
$$;

-- One call per tenant table: nobody but the current tenant's own rows, whoever asks, save the roles that bypass walls.
create function handbill_wall(wall_table regclass) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    room text;
begin
    select n.nspname into strict room
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.oid = wall_table;

    execute format('alter table %s enable row level security', wall_table);
    execute format('alter table %s force row level security', wall_table);
    execute format(
        'create policy wall on %s'
        ' using (tenant_id = nullif(current_setting(''handbill.tenant'', true), '''')::int)'
        ' with check (tenant_id = nullif(current_setting(''handbill.tenant'', true), '''')::int)',
        wall_table
    );
    execute format('grant usage on schema %I to handbill_app, handbill_worker', room);
    execute format('grant select, insert, update, delete on %s to handbill_app, handbill_worker', wall_table);
end
$$;

revoke execute on function handbill_wall(regclass) from public;

create schema tenants;

create table tenants.tenants (
    tenant_id int generated always as identity primary key,
    public_id uuid not null constraint uq_tenants_public_id unique,
    slug text not null constraint uq_tenants_slug unique check (slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    name text not null check (length(name) between 1 and 200),
    tier text not null default 'standard' check (tier in ('standard', 'enterprise')),
    time_zone text not null default 'UTC',
    status text not null default 'active' check (status in ('active', 'suspended')),
    version int not null default 1,
    created_at timestamptz not null,
    updated_at timestamptz not null
);
select handbill_wall('tenants.tenants');
-- Opening and closing a tenant is the operator's work, never the tenant's own.
revoke insert, delete on tenants.tenants from handbill_app;

-- What a tenant may change about itself. The JWT secret is sealed with the installation's key.
create table tenants.settings (
    tenant_id int primary key references tenants.tenants (tenant_id) on delete cascade,
    jwt jsonb not null default '{}',
    jwt_secret bytea,
    limits jsonb not null default '{}',
    privacy jsonb not null default '{}',
    version int not null default 1,
    updated_at timestamptz not null,
    -- Where phone numbers in national form are dialled.
    default_region text check (default_region ~ '^[A-Z]{2}$')
);
select handbill_wall('tenants.settings');

-- Write keys are publishable and kept in clear for the tenant to copy; of a secret key only the hash remains.
create table tenants.api_keys (
    tenant_id int not null references tenants.tenants (tenant_id) on delete cascade,
    key_id uuid not null,
    kind text not null check (kind in ('write', 'secret')),
    name text not null check (length(name) between 1 and 200),
    key_hash bytea not null constraint uq_api_keys_hash unique,
    clear_key text,
    hint text not null,
    scopes text[] not null default '{}',
    replaces uuid,
    created_at timestamptz not null,
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz,
    primary key (tenant_id, key_id),
    constraint ck_api_keys_no_clear_secret check (kind = 'write' or clear_key is null)
);
select handbill_wall('tenants.api_keys');

-- A user belongs to one tenant; an address is known once in the whole installation, so that login needs no tenant.
create table tenants.users (
    tenant_id int not null references tenants.tenants (tenant_id) on delete cascade,
    user_id uuid not null,
    email text not null constraint uq_users_email unique check (email = lower(email)),
    name text not null default '',
    role text not null check (role in ('owner', 'operator', 'viewer')),
    password_hash text not null,
    version int not null default 1,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    primary key (tenant_id, user_id)
);
select handbill_wall('tenants.users');

create table tenants.sessions (
    tenant_id int not null,
    session_id uuid not null,
    user_id uuid not null,
    token_hash bytea not null constraint uq_sessions_token unique,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    primary key (tenant_id, session_id),
    foreign key (tenant_id, user_id) references tenants.users (tenant_id, user_id) on delete cascade
);
create index ix_sessions_user on tenants.sessions (tenant_id, user_id);
create index ix_sessions_expiry on tenants.sessions (expires_at);
select handbill_wall('tenants.sessions');

create table tenants.audit_log (
    tenant_id int not null references tenants.tenants (tenant_id) on delete cascade,
    audit_id uuid not null,
    at timestamptz not null,
    actor text not null,
    action text not null,
    object text not null,
    before jsonb,
    after jsonb,
    request_id text,
    primary key (tenant_id, audit_id)
);
select handbill_wall('tenants.audit_log');
-- History is added to and read, never rewritten.
revoke update, delete on tenants.audit_log from handbill_app;

-- The subject is kept only until its erasure is done: afterwards its digest is enough to answer for it.
create table tenants.erasures (
    tenant_id int not null references tenants.tenants (tenant_id) on delete cascade,
    erasure_id uuid not null,
    subject text,
    subject_hash bytea not null,
    status text not null check (status in ('running', 'done', 'failed')),
    report jsonb not null default '{}',
    requested_by text not null,
    created_at timestamptz not null,
    finished_at timestamptz,
    primary key (tenant_id, erasure_id)
);
select handbill_wall('tenants.erasures');

-- A request that was answered once is answered the same way again. The reply is sealed with the caller's own
-- credential, for it may hold a key that nobody shall read a second time. No status yet = still in flight.
create table tenants.idempotency_keys (
    tenant_id int not null references tenants.tenants (tenant_id) on delete cascade,
    key text not null check (length(key) between 1 and 200),
    request_hash bytea not null,
    status int,
    content_type text,
    reply bytea,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    primary key (tenant_id, key)
);
create index ix_idempotency_keys_expiry on tenants.idempotency_keys (expires_at);
select handbill_wall('tenants.idempotency_keys');

-- Look-ups before a tenant is known. They see over the wall and therefore say as little as possible: tenant and id.
create function tenants.find_key(wanted bytea, out tenant_id int, out key_id uuid) returns setof record
    language sql stable security definer rows 1
    set search_path = pg_catalog, pg_temp
as $$
    select k.tenant_id, k.key_id from tenants.api_keys k where k.key_hash = wanted
$$;

create function tenants.find_session(wanted bytea, out tenant_id int, out session_id uuid) returns setof record
    language sql stable security definer rows 1
    set search_path = pg_catalog, pg_temp
as $$
    select s.tenant_id, s.session_id from tenants.sessions s where s.token_hash = wanted
$$;

create function tenants.find_user(wanted text, out tenant_id int, out user_id uuid) returns setof record
    language sql stable security definer rows 1
    set search_path = pg_catalog, pg_temp
as $$
    select u.tenant_id, u.user_id from tenants.users u where u.email = lower(wanted)
$$;

-- The walls are forced, so an owner that is no superuser would see nothing through its own functions: they belong to
-- the role that bypasses walls. It may own them only where it may create, and only for that moment.
do $$
begin
    begin
        execute format('grant handbill_worker to %I', current_user);
    exception when insufficient_privilege or invalid_grant_operation then
        -- A superuser needs no membership, and a member needs no second one; the next statement tells if it mattered.
        raise notice 'handbill_worker was not granted to %: %', current_user, sqlerrm;
    end;
    grant create on schema tenants to handbill_worker;
    alter function tenants.find_key(bytea) owner to handbill_worker;
    alter function tenants.find_session(bytea) owner to handbill_worker;
    alter function tenants.find_user(text) owner to handbill_worker;
    revoke create on schema tenants from handbill_worker;
end
$$;

revoke execute on function tenants.find_key(bytea), tenants.find_session(bytea), tenants.find_user(text) from public;
grant execute on function tenants.find_key(bytea), tenants.find_session(bytea), tenants.find_user(text) to handbill_app;

-- === 0002_jobs
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

-- === 0003_count
-- Count: the catalogue, the journal's cursors, every counted event once, live stats, caps.

create schema banners;
create schema events;
create schema caps;
grant usage on schema banners, events, caps to handbill_app, handbill_worker;

-- ------------------------------------------------------------------------------------------------ catalogue
create table banners.placements (
    id          int generated always as identity primary key,
    tenant_id   int not null references tenants.tenants (tenant_id),
    public_id   uuid not null unique,
    name        text not null check (length(name) between 1 and 200),
    slug        text not null check (slug ~ '^[a-z0-9][a-z0-9_-]{0,63}$'),
    description text check (length(description) <= 2000),
    version     int not null default 1,
    created_at  timestamptz not null default now(),
    updated_at  timestamptz not null default now(),
    deleted_at  timestamptz,
    ranking     text[] not null default '{}',          -- empty: the tenant's own order
    caps        jsonb not null default '[]',
    limits_raised_at timestamptz
);
create unique index uq_placements_slug on banners.placements (tenant_id, slug) where deleted_at is null;

create table banners.campaigns (
    id          int generated always as identity primary key,
    tenant_id   int not null references tenants.tenants (tenant_id),
    public_id   uuid not null unique,
    name        text not null check (length(name) between 1 and 200),
    status      text not null default 'active' check (status in ('scheduled', 'active', 'ended')),
    is_active   boolean not null default true,
    starts_at   timestamptz,
    ends_at     timestamptz,
    version     int not null default 1,
    created_at  timestamptz not null default now(),
    updated_at  timestamptz not null default now(),
    deleted_at  timestamptz,
    caps        jsonb not null default '[]',
    limits_raised_at timestamptz,
    constraint campaigns_window check (starts_at < ends_at)
);
create index ix_campaigns_tenant on banners.campaigns (tenant_id, id) where deleted_at is null;

create table banners.banners (
    id              int generated always as identity primary key,
    tenant_id       int not null references tenants.tenants (tenant_id),
    public_id       uuid not null unique,
    campaign_id     int references banners.campaigns (id),
    name            text not null check (length(name) between 1 and 200),
    title           text check (length(title) <= 500),
    description     text check (length(description) <= 5000),
    image_url       text check (length(image_url) <= 2000),
    cta_link        text check (length(cta_link) <= 2000),
    asset_url       text check (length(asset_url) <= 2000),
    x_times         int not null check (x_times between 1 and 1000),
    y_hours         int not null check (y_hours between 1 and 8760),
    z_duration_sec  int not null check (z_duration_sec between 1 and 3600),
    is_active       boolean not null default true,
    publish_at      timestamptz,
    expires_at      timestamptz,
    schedule_status text not null default 'active' check (schedule_status in ('scheduled', 'active', 'expired')),
    placement_ids   int[] not null default '{}',       -- empty: every placement
    limits_raised_at timestamptz,                      -- views before it may be unknown to Redis: PostgreSQL is asked
    version         int not null default 1,
    created_at      timestamptz not null default now(),
    updated_at      timestamptz not null default now(),
    archived_at     timestamptz,
    deleted_at      timestamptz,
    targeting       jsonb,                             -- null: everybody
    priority        int not null default 0 check (priority between -1000 and 1000),
    weight          int not null default 100 check (weight between 1 and 10000),
    revenue         double precision not null default 0 check (revenue >= 0 and revenue <= 1e9),
    variants        jsonb not null default '[]',
    holdout_percent double precision not null default 0 check (holdout_percent >= 0 and holdout_percent <= 100),
    caps            jsonb not null default '[]',       -- more windows beside x in y
    cap_mode        text not null default 'soft' check (cap_mode in ('soft', 'strict')),
    cap_by          text not null default 'user' check (cap_by in ('user', 'device')),
    constraint banners_window check (publish_at < expires_at)
);
create index ix_banners_tenant on banners.banners (tenant_id, id) where deleted_at is null;
create index ix_banners_schedule on banners.banners (schedule_status) where deleted_at is null;

-- How a tenant's banners are decided where nothing narrower says otherwise.
create table banners.deciding (
    tenant_id  int primary key references tenants.tenants (tenant_id),
    ranking    text[] not null default '{}',
    version    int not null default 1,
    updated_at timestamptz not null default now(),
    smart_scheduling boolean not null default false
);

-- Every change of the catalogue bumps this, so that a process sees at a glance whether its copy is old.
create table banners.catalogue_versions (
    tenant_id  int primary key references tenants.tenants (tenant_id),
    version    bigint not null default 1,
    changed_at timestamptz not null default now()
);

-- ------------------------------------------------------------------------------------------------ journal
create table events.lanes (                              -- belongs to the installation, not to a tenant
    lane       text primary key,
    number     smallint not null unique,
    epoch      bigint not null default 0,                -- grows with every owner: an older owner's commit finds no row
    owner      text,
    lease_until timestamptz,
    cursor     text not null default '0-0',              -- everything up to here is committed
    projected  text not null default '0-0',              -- everything up to here is confirmed in the caps
    moved_at   timestamptz not null default now()
);

create table events.consumers (                          -- who reads lanes now, so that they share them fairly
    name    text primary key,
    seen_at timestamptz not null
);

create table events.event_keys (
    tenant_id   int not null,
    key         bytea not null,                          -- blake2b-128 of (kind, event id)
    stored_time timestamptz not null,
    primary key (tenant_id, key)
) partition by hash (tenant_id, key);

create table events.ch_batches (                         -- one row per committed batch: the range and who survived
    id          uuid primary key,
    lane        text not null,
    from_cursor text not null,
    to_cursor   text not null,
    survivors   bytea not null,                          -- one bit per event of the range, in order
    events      int not null,
    created_at  timestamptz not null default now(),
    done_at     timestamptz
);
create index ix_ch_batches_lane on events.ch_batches (lane, created_at);

create table events.parked (
    id          uuid primary key,
    tenant_id   int references tenants.tenants (tenant_id),
    kind        text not null,
    event_id    text,
    lane        text not null,
    reason      text not null,
    detail      text,
    body        bytea not null,
    parked_at   timestamptz not null default now(),
    replayed_at timestamptz
);
create index ix_parked_tenant on events.parked (tenant_id, parked_at desc, id);

create table events.drops (                              -- why events were not counted, for the tenant to see
    tenant_id int not null references tenants.tenants (tenant_id),
    day       date not null,
    kind      text not null,
    reason    text not null,
    lane      smallint not null,
    events    bigint not null,
    primary key (tenant_id, day, kind, reason, lane)
);

-- ------------------------------------------------------------------------------------------------ what happened
create table banners.banner_impressions (
    tenant_id      int not null,
    event_key      bytea not null,
    correlation_id text not null,
    banner_id      int not null,
    placement_id   int,
    campaign_id    int,
    session_id     text,
    user_id        text,
    device_type    text,
    country_code   text,
    page_url       text,
    referrer_url   text,
    occurred_at    timestamptz not null,
    received_at    timestamptz not null,
    lane           smallint not null,
    marks          text[] not null default '{}',
    variant        text                                  -- which variant of the banner was shown
) partition by range (occurred_at);

create table banners.banner_clicks (
    tenant_id       int not null,
    event_key       bytea not null,
    correlation_id  text not null,
    banner_id       int not null,
    placement_id    int,
    campaign_id     int,
    session_id      text,
    user_id         text,
    device_type     text,
    country_code    text,
    page_url        text,
    destination_url text not null,
    occurred_at     timestamptz not null,
    received_at     timestamptz not null,
    lane            smallint not null,
    marks           text[] not null default '{}',
    variant text                                         -- which face of the banner was seen
) partition by range (occurred_at);

create table caps.user_views (
    tenant_id      int not null,
    event_key      bytea not null,
    event_id       text not null,
    banner_id      int not null,
    placement_id   int,
    campaign_id    int,
    user_id        text not null,
    device_id      text,
    session_id     text,
    view_timestamp timestamptz not null,
    view_duration_ms int not null,
    dismissed      boolean not null,
    counted        boolean not null,
    received_at    timestamptz not null,
    lane           smallint not null,
    marks          text[] not null default '{}',
    variant text                                         -- which face of the banner was seen
) partition by range (view_timestamp);

create index ix_impressions_banner on banners.banner_impressions (tenant_id, banner_id, occurred_at);
create index ix_clicks_banner on banners.banner_clicks (tenant_id, banner_id, occurred_at);
create index idx_user_banner on caps.user_views (tenant_id, user_id, banner_id, view_timestamp);

create table caps.cap_totals (                           -- outlives the partitions: lifetime limits count here
    tenant_id int not null references tenants.tenants (tenant_id),
    user_id   text not null,
    banner_id int not null,
    total     bigint not null,
    last_at   timestamptz not null,
    primary key (tenant_id, user_id, banner_id)
);

create table caps.users (
    tenant_id  int not null references tenants.tenants (tenant_id),
    user_id    text not null,
    device_id  text not null default '',
    created_at timestamptz not null,
    primary key (tenant_id, user_id, device_id)
);
-- A device's views are found by way of its users.
create index ix_users_device on caps.users (tenant_id, device_id) where device_id <> '';

create table caps.cap_archive (                          -- lifetime limits of campaigns, placements, devices: dropped rows
    tenant_id int not null references tenants.tenants (tenant_id),
    kind      text not null check (kind in ('user', 'device', 'alone')),
    subject   text not null,
    scope     bigint not null,
    total     bigint not null,
    primary key (tenant_id, kind, subject, scope)
);

-- ------------------------------------------------------------------------------------------------ stats
create table banners.banner_stats (
    tenant_id    int not null references tenants.tenants (tenant_id),
    banner_id    int not null,
    placement_id int,
    campaign_id  int,
    bucket       timestamptz not null,                   -- 15 minutes, by when it happened
    lane         smallint not null,                      -- summed at read: no two lanes wait for one row
    impressions  bigint not null default 0,
    clicks       bigint not null default 0,
    views        bigint not null default 0,
    dismissals   bigint not null default 0,
    marked_impressions bigint not null default 0,        -- kept apart: bots and the like
    marked_clicks      bigint not null default 0,
    marked_views       bigint not null default 0,
    updated_at   timestamptz not null default now(),
    constraint uq_banner_stats unique nulls not distinct (tenant_id, bucket, banner_id, placement_id, campaign_id, lane)
);

create table banners.stat_days (                         -- one row per (tenant, UTC day) that ever had events
    tenant_id    int not null references tenants.tenants (tenant_id),
    day          date not null,
    dirty_since  timestamptz,                            -- an event landed after the last roll-up
    rolled_at    timestamptz,
    combinations int,
    raw_gone_at  timestamptz,                            -- retention dropped the raw rows: never recomputed again
    primary key (tenant_id, day)
);
create index ix_stat_days_dirty on banners.stat_days (dirty_since) where dirty_since is not null;

create table banners.event_marks (                       -- what only the set of all rows can tell, worked out per day
    tenant_id    int not null references tenants.tenants (tenant_id),
    event_key    bytea not null,
    reason       text not null,
    kind         text not null,
    banner_id    int not null,
    placement_id int,
    campaign_id  int,
    occurred_at  timestamptz not null,
    primary key (tenant_id, event_key, reason)
);
create index ix_event_marks_day on banners.event_marks (tenant_id, occurred_at);

create table banners.audits (
    id         uuid primary key,
    tenant_id  int not null references tenants.tenants (tenant_id),
    day        date not null,
    checked_at timestamptz not null default now(),
    differences int not null,
    detail     jsonb not null default '[]'
);

-- ------------------------------------------------------------------------------------------------ partitions
-- Months are made ahead by retention and, for late or imported events, by the pipeline itself. The caller is the worker
-- role, which may not create tables: the function may, for these parents only.
create function handbill_month(parent regclass, month date) returns boolean
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    first  date := date_trunc('month', month)::date;
    part   text;
    room   text;
begin
    if parent not in ('banners.banner_impressions'::regclass, 'banners.banner_clicks'::regclass,
                      'caps.user_views'::regclass) then
        raise exception 'no monthly table: %', parent;
    end if;
    select n.nspname, c.relname || '_' || to_char(first, 'YYYYMM') into strict room, part
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = parent;
    if to_regclass(format('%I.%I', room, part)) is not null then
        return false;
    end if;
    perform pg_advisory_xact_lock(hashtextextended('handbill_month', 0));
    if to_regclass(format('%I.%I', room, part)) is not null then
        return false;
    end if;
    execute format('create table %I.%I partition of %s for values from (%L) to (%L)',
                   room, part, parent, first::timestamp at time zone 'UTC',
                   (first + interval '1 month')::timestamp at time zone 'UTC');
    execute format('alter table %I.%I enable row level security', room, part);
    execute format('alter table %I.%I force row level security', room, part);
    execute format('create policy wall on %I.%I'
                   ' using (tenant_id = nullif(current_setting(''handbill.tenant'', true), '''')::int)'
                   ' with check (tenant_id = nullif(current_setting(''handbill.tenant'', true), '''')::int)', room, part);
    return true;
end
$$;
revoke execute on function handbill_month(regclass, date) from public;
grant execute on function handbill_month(regclass, date) to handbill_worker;

-- Retention drops whole months. Only whole partitions of these parents, and only by the worker.
create function handbill_drop_month(parent regclass, month date) returns boolean
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    part text;
    room text;
begin
    if parent not in ('banners.banner_impressions'::regclass, 'banners.banner_clicks'::regclass,
                      'caps.user_views'::regclass) then
        raise exception 'no monthly table: %', parent;
    end if;
    select n.nspname, c.relname || '_' || to_char(month, 'YYYYMM') into strict room, part
    from pg_class c join pg_namespace n on n.oid = c.relnamespace where c.oid = parent;
    if to_regclass(format('%I.%I', room, part)) is null then
        return false;
    end if;
    execute format('drop table %I.%I', room, part);
    return true;
end
$$;
revoke execute on function handbill_drop_month(regclass, date) from public;
grant execute on function handbill_drop_month(regclass, date) to handbill_worker;

do $$
begin
    for part in 0..15 loop
        execute format('create table events.event_keys_%s partition of events.event_keys for values with (modulus 16, remainder %s)', part, part);
        perform handbill_wall(format('events.event_keys_%s', part)::regclass);
        execute format('revoke all on events.event_keys_%s from handbill_app', part);
    end loop;
end
$$;

select handbill_wall(t) from unnest(array[
    'banners.placements', 'banners.campaigns', 'banners.banners', 'banners.deciding', 'banners.catalogue_versions',
    'events.event_keys', 'events.parked', 'events.drops',
    'banners.banner_impressions', 'banners.banner_clicks', 'caps.user_views', 'caps.cap_totals', 'caps.users',
    'caps.cap_archive', 'banners.banner_stats', 'banners.stat_days', 'banners.event_marks', 'banners.audits'
]::regclass[]) t;
-- What was counted is read by its tenant and written by the pipeline alone.
revoke insert, update, delete on events.event_keys, events.drops, banners.banner_impressions, banners.banner_clicks,
    caps.user_views, caps.cap_totals, caps.users, caps.cap_archive, banners.banner_stats, banners.stat_days,
    banners.event_marks, banners.audits from handbill_app;
grant select, insert, update, delete on events.lanes, events.consumers, events.ch_batches to handbill_worker;

select handbill_month(t, (date_trunc('month', now() at time zone 'UTC') + m * interval '1 month')::date)
from unnest(array['banners.banner_impressions', 'banners.banner_clicks', 'caps.user_views']::regclass[]) t,
     generate_series(-2, 2) m;

-- ------------------------------------------------------------------------------------------------ before a tenant is known
-- A public id in a tracking call names its tenant; nothing else is told.
create function banners.find_public(kind text, wanted uuid) returns table (tenant_id int, id int)
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
    select b.tenant_id, b.id from banners.banners b where kind = 'banner' and b.public_id = wanted
    union all
    select p.tenant_id, p.id from banners.placements p where kind = 'placement' and p.public_id = wanted
    union all
    select c.tenant_id, c.id from banners.campaigns c where kind = 'campaign' and c.public_id = wanted
$$;
revoke execute on function banners.find_public(text, uuid) from public;
grant execute on function banners.find_public(text, uuid) to handbill_app, handbill_worker;
-- The look-up must see every tenant's rows also where the owner is no superuser: it belongs to the role that may.
grant create on schema banners to handbill_worker;
alter function banners.find_public(text, uuid) owner to handbill_worker;
revoke create on schema banners from handbill_worker;


-- === 0005_know_people
-- Know, people: what was said about ids (edges, properties), who they are by the fold, and what a tenant sends.
-- Texts that take part in an order are compared by code points (collate "C"), as the fold does.

create schema people;
grant usage on schema people to handbill_app, handbill_worker;

-- ------------------------------------------------------------------------------------------------ what was said
-- One row per edge, whoever repeats it: only its first sighting matters, so a repetition writes nothing.
create table people.person_edges (
    tenant_id   int not null references tenants.tenants (tenant_id),
    edge_key    bytea not null,                          -- blake2b-128 of (kind, source, target): both as text do not fit an index
    kind        text not null check (kind in ('identify', 'alias', 'merge')),
    source_id   text collate "C" not null,
    target_id   text collate "C" not null,
    first_at    timestamptz not null,                    -- (first_at, first_event): its place in the fold
    first_event text collate "C" not null,
    outcome     text not null check (outcome in
        ('unfolded', 'joined', 'together', 'marked', 'refused_identified', 'refused_too_many', 'voided')),
    voided_at   timestamptz,                             -- set: as if it had never been said, until restored
    voided_by   text,
    primary key (tenant_id, edge_key)
);
create index ix_person_edges_source on people.person_edges (tenant_id, source_id);
create index ix_person_edges_target on people.person_edges (tenant_id, target_id);
create index ix_person_edges_refused on people.person_edges (tenant_id, first_at) where outcome like 'refused%';

create table people.distinct_ids (
    tenant_id     int not null references tenants.tenants (tenant_id),
    distinct_id   text collate "C" not null,
    person_id     uuid not null,
    first_seen_at timestamptz not null,                  -- the least event time; a person's created_at is the least of its ids'
    version       bigint not null default 0,             -- grows with every move; the override in ClickHouse carries it
    shipped       bigint not null default 0,             -- the version that ClickHouse has
    primary key (tenant_id, distinct_id)
);
create index ix_distinct_ids_unshipped on people.distinct_ids (tenant_id, distinct_id) where shipped < version;
create index ix_distinct_ids_person on people.distinct_ids (tenant_id, person_id);

-- One packed book per id. Saying the same again moves `moments` only; large `words` lie outside the row and stay there.
create table people.properties (
    tenant_id   int not null references tenants.tenants (tenant_id),
    distinct_id text collate "C" not null,
    words       bytea not null,
    moments     bytea not null,
    primary key (tenant_id, distinct_id)
) with (fillfactor = 80);

-- ------------------------------------------------------------------------------------------------ who they are
-- Derived: the fold of a component gives these rows, and an undone merge gives back those that were there before.
create table people.persons (
    tenant_id        int not null references tenants.tenants (tenant_id),
    person_id        uuid not null,                      -- UUIDv5 of "tenant:named_by"
    named_by         text collate "C" not null,
    ids              int not null default 1 check (ids between 1 and 1000),
    identified_at    timestamptz,                        -- (identified_at, identified_event): since when it is somebody
    identified_event text collate "C",
    last_edge_at     timestamptz,                        -- the newest edge at any of its ids: a newer one is appended,
    last_edge_event  text collate "C",                   -- an older one makes the component be folded anew
    properties       jsonb not null default '{}',        -- what holds now; written only when it differs
    created_at       timestamptz not null,
    updated_at       timestamptz not null,               -- a whole hour
    primary key (tenant_id, person_id)
) with (fillfactor = 80);
create index ix_persons_created on people.persons (tenant_id, created_at desc, person_id);

create table people.warnings (
    tenant_id int not null references tenants.tenants (tenant_id),
    edge_key  bytea not null,
    code      text not null,
    detail    text not null,
    at        timestamptz not null,                      -- the edge's own time: the same in any order
    primary key (tenant_id, edge_key)
);
create index ix_warnings_at on people.warnings (tenant_id, at desc);

-- Ids about whom something new was said and that were not folded yet: written with the batch, removed by the folding.
-- Marks are only ever added and taken away, never changed: no batch waits for a folding, or for another batch, over one.
create table people.unfolded (
    tenant_id   int not null references tenants.tenants (tenant_id),
    distinct_id text collate "C" not null,
    marked_at   timestamptz not null,
    regroup     boolean not null default true,           -- an edge is new; else only properties must be read again
    mark_id     bigint generated always as identity,
    primary key (tenant_id, regroup, mark_id)
);

-- ------------------------------------------------------------------------------------------------ what is sent
create function people.join_types(one text, other text) returns text
    language sql immutable parallel safe
    return case when one = other or other = 'Unknown' then one when one = 'Unknown' then other else 'String' end;

create table people.event_definitions (
    tenant_id     int not null references tenants.tenants (tenant_id),
    event_name    text collate "C" not null check (length(event_name) between 1 and 200),
    first_seen_at timestamptz not null,
    last_seen_at  timestamptz not null,                  -- a whole hour, as everywhere below
    primary key (tenant_id, event_name)
) with (fillfactor = 80);

create table people.property_definitions (
    tenant_id     int not null references tenants.tenants (tenant_id),
    property_type text not null check (property_type in ('event', 'person')),
    property_name text collate "C" not null check (length(property_name) between 1 and 200),
    value_type    text not null check (value_type in ('Unknown', 'Boolean', 'Numeric', 'DateTime', 'String')),
    first_seen_at timestamptz not null,
    last_seen_at  timestamptz not null,
    primary key (tenant_id, property_type, property_name)
) with (fillfactor = 80);

create table people.event_properties (
    tenant_id     int not null references tenants.tenants (tenant_id),
    event_name    text collate "C" not null,
    property_name text collate "C" not null,
    value_type    text not null check (value_type in ('Unknown', 'Boolean', 'Numeric', 'DateTime', 'String')),
    first_seen_at timestamptz not null,
    last_seen_at  timestamptz not null,
    primary key (tenant_id, event_name, property_name)
) with (fillfactor = 80);

select handbill_wall(t) from unnest(array[
    'people.person_edges', 'people.distinct_ids', 'people.properties', 'people.persons', 'people.warnings',
    'people.unfolded', 'people.event_definitions', 'people.property_definitions', 'people.event_properties'
]::regclass[]) t;
-- A tenant reads its people; only the pipeline writes them. Voiding goes through the worker's role as well: it refolds.
revoke insert, update, delete on people.person_edges, people.distinct_ids, people.properties, people.persons,
    people.warnings, people.unfolded, people.event_definitions, people.property_definitions, people.event_properties
    from handbill_app;

-- === 0006_know
-- Know, beyond its people: what the edge, the shipping, the segments and the read side keep.

-- ------------------------------------------------------------------------------------------------ shipping
-- A committed batch is shipped to ClickHouse in a group: the group is written down first, and its id is the token of the
-- insert. So whoever repeats it after a death makes the same insert, and the engine drops the copy.
alter table events.ch_batches
    add column group_id uuid,                            -- the group it is shipped with; none: waits
    add column refused  int[],                           -- places whose rows ClickHouse refused; parked
    add column lost_at  timestamptz;                     -- the journal had lost its entries before they were shipped
create index ix_ch_batches_open on events.ch_batches (lane, created_at, id) where done_at is null;
create index ix_ch_batches_lost on events.ch_batches (lost_at) where lost_at is not null;

create table events.ch_groups (                          -- a row lives from the grouping until ClickHouse has it all
    id         uuid primary key,
    lane       text not null,
    classes    jsonb not null,                           -- retention class by tenant: a row's partition must not change
    created_at timestamptz not null default now()
);
create index ix_ch_groups_lane on events.ch_groups (lane, created_at, id);
grant select, insert, update, delete on events.ch_groups to handbill_worker;

-- Overrides of squashed ids are over: their rows carry the person themselves, and so must every later row.
alter table people.distinct_ids add column squashed bigint not null default 0;   -- the version written into the rows
create index ix_distinct_ids_squashed on people.distinct_ids (tenant_id, distinct_id) where squashed > 0;
create table people.squashing (                          -- what a squash has begun and not ended
    tenant_id   int not null references tenants.tenants (tenant_id),
    distinct_id text collate "C" not null,
    person_id   uuid not null,
    version     bigint not null,
    began_at    timestamptz not null default now(),
    primary key (tenant_id, distinct_id)
);
select handbill_wall('people.squashing'::regclass);
revoke insert, update, delete on people.squashing from handbill_app;

-- What became of one event among the parked; and how often it came back.
create index ix_parked_event on events.parked (tenant_id, event_id);

-- People: edges that wait for their folding.
create index ix_person_edges_unfolded on people.person_edges (tenant_id, target_id) where outcome = 'unfolded';

-- Ids whose people were joined or parted, for those who follow them (caps): written with the change, gone when they know.
create table people.followups (
    followup_id bigint generated always as identity,
    tenant_id   int not null references tenants.tenants (tenant_id),
    ids         text[] not null,
    at          timestamptz not null,
    claimed_at  timestamptz,
    primary key (tenant_id, followup_id)
);
select handbill_wall('people.followups'::regclass);
revoke insert, update, delete on people.followups from handbill_app;

-- ------------------------------------------------------------------------------------------------ segments
create schema segments;
grant usage on schema segments to handbill_app, handbill_worker;

-- Tenants who have segments, or banners that ask about people: only their people leave marks when they change.
-- `token`, `place` and `needs` are those of a walk that writes everybody's projection, while there is one.
create table segments.watched (
    tenant_id int primary key references tenants.tenants (tenant_id),
    token     text,
    place     uuid,
    needs     text[] not null default '{}'
);

create table segments.segments (
    id           int generated always as identity primary key,
    tenant_id    int not null references tenants.tenants (tenant_id),
    public_id    uuid not null constraint uq_segments_public_id unique,
    name         text not null check (length(name) between 1 and 200),
    description  text not null default '',
    rule         jsonb not null,
    size         int not null default 0,                 -- moves with the members, in the same transaction
    walk         int not null default 1,                 -- grows with every change that asks for a look at everybody
    walking      int not null default 0,                 -- the walk under way, which has come to `place`
    walked       int not null default 0,                 -- the last walk that came to its end
    place        uuid,
    evaluated_at timestamptz,
    swept_at     timestamptz,                            -- rules about age: until when the clock's changes are marked
    version      int not null default 1,
    created_at   timestamptz not null,
    updated_at   timestamptz not null,
    deleted_at   timestamptz
) with (fillfactor = 80);
create unique index uq_segments_name on segments.segments (tenant_id, name) where deleted_at is null;
create index ix_segments_tenant on segments.segments (tenant_id, id);

create table segments.segment_members (
    tenant_id  int not null references tenants.tenants (tenant_id),
    segment_id int not null,
    person_id  uuid not null,
    primary key (tenant_id, segment_id, person_id)
);
create index ix_segment_members_person on segments.segment_members (tenant_id, person_id);

-- What banners ask of people: `person.NAME` or `segment.ID`. Not ready: some people's values may lack it.
create table segments.needs (
    tenant_id int not null references tenants.tenants (tenant_id),
    need      text collate "C" not null,
    ready     boolean not null default false,
    primary key (tenant_id, need)
);

-- People who changed and were not held against the rules yet. A mark is always updated, so that whoever works on it has
-- seen the change, or the change waits and marks anew.
create table segments.stale (
    tenant_id int not null references tenants.tenants (tenant_id),
    person_id uuid not null,
    marked_at timestamptz not null,
    primary key (tenant_id, person_id)
) with (fillfactor = 70);

-- Ids that are gone: their projections are dropped.
create table segments.gone (
    tenant_id   int not null references tenants.tenants (tenant_id),
    distinct_id text collate "C" not null,
    primary key (tenant_id, distinct_id)
);

select handbill_wall(t) from unnest(array[
    'segments.watched', 'segments.segments', 'segments.segment_members', 'segments.needs', 'segments.stale',
    'segments.gone'
]::regclass[]) t;
revoke insert, update, delete on segments.segment_members, segments.stale, segments.gone from handbill_app;

-- Whoever writes a person, and for whatever reason, the mark is made in the same transaction.
create function segments.mark_people() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    insert into segments.stale (tenant_id, person_id, marked_at)
    select c.tenant_id, c.person_id, now() from changed c
    where exists (select 1 from segments.watched w where w.tenant_id = c.tenant_id)
    order by 1, 2
    on conflict (tenant_id, person_id) do update set marked_at = excluded.marked_at;
    return null;
end
$$;

-- An id that moved: both people have other ids now.
create function segments.mark_moved() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    insert into segments.stale (tenant_id, person_id, marked_at)
    select u.tenant_id, u.person_id, now()
    from (select old.tenant_id, old.person_id union select new.tenant_id, new.person_id) as u
    where exists (select 1 from segments.watched w where w.tenant_id = u.tenant_id)
    order by 1, 2
    on conflict (tenant_id, person_id) do update set marked_at = excluded.marked_at;
    return null;
end
$$;

create function segments.mark_gone() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    insert into segments.gone (tenant_id, distinct_id)
    select old.tenant_id, old.distinct_id
    where exists (select 1 from segments.watched w where w.tenant_id = old.tenant_id)
    on conflict (tenant_id, distinct_id) do update set distinct_id = excluded.distinct_id;
    return null;
end
$$;

create trigger segments_inserted after insert on people.persons
    referencing new table as changed for each statement execute function segments.mark_people();
create trigger segments_updated after update on people.persons
    referencing new table as changed for each statement execute function segments.mark_people();
create trigger segments_deleted after delete on people.persons
    referencing old table as changed for each statement execute function segments.mark_people();
create trigger segments_moved after update of person_id on people.distinct_ids
    for each row when (old.person_id is distinct from new.person_id) execute function segments.mark_moved();
create trigger segments_gone after delete on people.distinct_ids
    for each row execute function segments.mark_gone();

-- === 0007_account
-- Account: what the ads cost. Connections and what runs on them, every figure as it was told, the day as it stands now,
-- and what was believed about each day on every day since.

create schema adstats;
grant usage on schema adstats to handbill_app, handbill_worker;

-- ------------------------------------------------------------------------------------------------ what runs
create table adstats.fb_connections (
    tenant_id         int not null references tenants.tenants (tenant_id),
    connection_id     uuid not null,
    connection_type   text not null default 'AD_ACCOUNT' check (connection_type in ('AD_ACCOUNT', 'PAGE', 'PIXEL')),
    provider          text not null check (provider in ('MOCK', 'META')),
    external_id       text not null,                     -- the account's number at the platform
    name              text not null,
    is_active         boolean not null default true,
    token_state       text not null default 'none' check (token_state in ('none', 'valid', 'dead')),
    token_sealed      bytea,                             -- sealed with the installation's key, for this row only
    token_note        text,                              -- why it died, in words that hold no secret
    token_changed_at  timestamptz,
    currency          text not null,
    time_zone         text not null,
    look_back_days    int not null check (look_back_days between 1 and 92),
    version           int not null default 1,
    created_at        timestamptz not null,
    updated_at        timestamptz not null,
    token_ends_at     timestamptz,                       -- null: it does not end, or nobody has told
    token_checked_at  timestamptz,                       -- when the platform was last asked for the end
    primary key (tenant_id, connection_id),
    constraint uq_fb_connections_account unique (tenant_id, provider, external_id)
);

create table adstats.sellpages (
    tenant_id   int not null references tenants.tenants (tenant_id),
    sellpage_id uuid not null,
    name        text not null,
    url         text,
    version     int not null default 1,
    created_at  timestamptz not null,
    updated_at  timestamptz not null,
    primary key (tenant_id, sellpage_id)
);

-- Campaigns, ad sets and ads in one table: they differ in their parent, and in nothing else that we keep.
create table adstats.entities (
    tenant_id          int not null references tenants.tenants (tenant_id),
    entity_id          uuid not null,
    entity_type        text not null check (entity_type in ('CAMPAIGN', 'ADSET', 'AD')),
    connection_id      uuid not null,
    parent_id          uuid,                             -- an ad set's campaign, an ad's ad set; nothing here is ever deleted
    campaign_id        uuid not null,                    -- the root; a campaign's own id
    sellpage_id        uuid,                             -- campaigns only
    external_id        text,
    name               text not null,
    status             text not null default 'ACTIVE' check (status in ('ACTIVE', 'PAUSED', 'ARCHIVED', 'DELETED')),
    budget_type        text not null default 'DAILY' check (budget_type in ('DAILY', 'LIFETIME')),
    budget             numeric(18, 4) not null default 0 check (budget >= 0),
    utm_campaign       text,
    banner_campaign_id uuid,                             -- whose clicks Handbill itself counts, for reports
    version            int not null default 1,
    created_at         timestamptz not null,
    updated_at         timestamptz not null,
    primary key (tenant_id, entity_id),
    foreign key (tenant_id, connection_id) references adstats.fb_connections (tenant_id, connection_id),
    foreign key (tenant_id, sellpage_id) references adstats.sellpages (tenant_id, sellpage_id),
    constraint ck_entities_parent check ((entity_type = 'CAMPAIGN') = (parent_id is null)),
    constraint ck_entities_sellpage check (sellpage_id is null or entity_type = 'CAMPAIGN')
);
create unique index uq_entities_external on adstats.entities (tenant_id, connection_id, entity_type, external_id);
create index ix_entities_parent on adstats.entities (tenant_id, parent_id);
create index ix_entities_campaign on adstats.entities (tenant_id, campaign_id, entity_type);

-- ------------------------------------------------------------------------------------------------ what was told
-- A row when a figure changed; while it stays the same, last_seen_at and seen move. sum(figure * seen) is what adding up
-- every answer would give. `piece` tells the increments of a provider that sends increments apart.
create table adstats.ad_stats_raw (
    tenant_id          int not null,
    entity_id          uuid not null,
    date_start         date not null,
    sync_id            uuid not null,
    piece              text not null default '',
    entity_type        text not null,
    external_entity_id text not null,                    -- empty: the platform has no id of its own, ours stands for it
    connection_id      uuid not null,
    fetched_at         timestamptz not null,
    last_seen_at       timestamptz not null,
    seen               int not null default 1,
    spend              numeric(18, 4) not null,
    impressions        bigint not null,
    link_clicks        bigint not null,
    content_views      bigint not null,
    add_to_cart        bigint not null,
    checkout_initiated bigint not null,
    purchases          bigint not null,
    purchase_value     numeric(18, 4) not null,
    primary key (tenant_id, entity_id, date_start, sync_id, piece)
) partition by range (date_start);

create table adstats.ad_stats_daily (
    tenant_id          int not null references tenants.tenants (tenant_id),
    entity_type        text not null check (entity_type in ('CAMPAIGN', 'ADSET', 'AD')),
    entity_id          uuid not null,
    stat_date          date not null,                    -- a day of the ad account's own zone
    connection_id      uuid not null,
    currency           text not null,
    spend              numeric(18, 4) not null,
    impressions        bigint not null,
    link_clicks        bigint not null,
    content_views      bigint not null,
    add_to_cart        bigint not null,
    checkout_initiated bigint not null,
    purchases          bigint not null,
    purchase_value     numeric(18, 4) not null,
    cpm                numeric(18, 6) not null,
    ctr                numeric(18, 6) not null,
    cpc                numeric(18, 6) not null,
    cost_per_purchase  numeric(18, 6) not null,
    roas               numeric(18, 6) not null,
    factor             numeric(18, 6) not null default 1, -- by how much adding up told more than the newest answer
    fetched_at         timestamptz not null,
    constraint uq_ad_stats_daily primary key (tenant_id, entity_type, entity_id, stat_date)
) with (fillfactor = 85);
create index ix_ad_stats_daily_day on adstats.ad_stats_daily (tenant_id, stat_date, entity_type);

-- What was believed about a day, at the end of each UTC day on which the belief changed.
create table adstats.ad_stats_ledger (
    tenant_id          int not null references tenants.tenants (tenant_id),
    entity_type        text not null,
    entity_id          uuid not null,
    stat_date          date not null,
    believed_on        date not null,
    believed_at        timestamptz not null,
    currency           text not null,
    spend              numeric(18, 4) not null,
    impressions        bigint not null,
    link_clicks        bigint not null,
    content_views      bigint not null,
    add_to_cart        bigint not null,
    checkout_initiated bigint not null,
    purchases          bigint not null,
    purchase_value     numeric(18, 4) not null,
    primary key (tenant_id, entity_type, entity_id, stat_date, believed_on)
) with (fillfactor = 85);
create index ix_ad_stats_ledger_day on adstats.ad_stats_ledger (tenant_id, stat_date, entity_type, believed_on);

create table adstats.sellpage_stats_daily (
    tenant_id          int not null references tenants.tenants (tenant_id),
    sellpage_id        uuid,                             -- null: campaigns that lead to no sellpage
    stat_date          date not null,
    ad_source          text not null,
    currency           text not null,                    -- two currencies are two rows: they cannot be added
    ad_spend           numeric(18, 4) not null,
    impressions        bigint not null,
    link_clicks        bigint not null,
    content_views      bigint not null,
    add_to_cart        bigint not null,
    checkout_initiated bigint not null,
    purchases          bigint not null,
    purchase_value     numeric(18, 4) not null,
    orders_count       bigint not null,
    revenue            numeric(18, 4) not null,
    cpm                numeric(18, 6) not null,
    ctr                numeric(18, 6) not null,
    cost_per_purchase  numeric(18, 6) not null,
    roas               numeric(18, 6) not null,
    cr1                numeric(18, 6) not null,
    cr2                numeric(18, 6) not null,
    cr3                numeric(18, 6) not null,
    constraint uq_sellpage_stats_daily unique nulls not distinct (tenant_id, sellpage_id, stat_date, ad_source, currency)
) with (fillfactor = 85);
create index ix_sellpage_stats_daily_day on adstats.sellpage_stats_daily (tenant_id, stat_date);

-- A ratio as we keep it: six places, half up; nothing by nothing is nothing.
create function adstats.ratio(part numeric, whole numeric) returns numeric
    language sql immutable parallel safe
    return case when whole = 0 then 0 else round(part / whole, 6) end;

-- ------------------------------------------------------------------------------------------------ how far it got
create table adstats.sync_state (
    tenant_id     int not null references tenants.tenants (tenant_id),
    connection_id uuid not null,
    entity_type   text not null,
    sync_id       uuid,
    synced_at     timestamptz,                           -- today's figures are of this moment
    hourly_at     timestamptz,                           -- the last answer that held yesterday too
    daily_at      timestamptz,                           -- the last answer that held the whole look-back
    syncs         bigint not null default 0,
    failed_at     timestamptz,
    error         text,
    primary key (tenant_id, connection_id, entity_type)
) with (fillfactor = 70);

create table adstats.backfills (
    tenant_id   int not null references tenants.tenants (tenant_id),
    backfill_id uuid not null,
    date_from   date not null,
    date_to     date not null,
    asked_by    text not null,
    created_at  timestamptz not null,
    primary key (tenant_id, backfill_id)
);
create table adstats.backfill_parts (
    tenant_id   int not null,
    backfill_id uuid not null,
    entity_type text not null check (entity_type in ('CAMPAIGN', 'ADSET', 'AD')),
    date_from   date not null,
    date_to     date not null,
    state       text not null default 'waiting' check (state in ('waiting', 'done', 'failed')),
    error       text,
    ended_at    timestamptz,
    primary key (tenant_id, backfill_id, entity_type, date_from),
    foreign key (tenant_id, backfill_id) references adstats.backfills (tenant_id, backfill_id)
);
create index ix_backfill_parts_waiting on adstats.backfill_parts (tenant_id, date_from) where state = 'waiting';

-- ------------------------------------------------------------------------------------------------ months of raw rows
create function adstats.raw_month(month date) returns boolean
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    first date := date_trunc('month', month)::date;
    part  text := 'ad_stats_raw_' || to_char(first, 'YYYYMM');
begin
    if to_regclass('adstats.' || part) is not null then
        return false;
    end if;
    -- Waiting for an advisory lock tells nothing of what others have made meanwhile; waiting for the name does.
    begin
        execute format('create table adstats.%I partition of adstats.ad_stats_raw for values from (%L) to (%L)'
                       ' with (fillfactor = 85)', part, first, (first + interval '1 month')::date);
    exception when duplicate_table or unique_violation then
        return false;
    end;
    execute format('alter table adstats.%I enable row level security', part);
    execute format('alter table adstats.%I force row level security', part);
    execute format('create policy wall on adstats.%I'
                   ' using (tenant_id = nullif(current_setting(''handbill.tenant'', true), '''')::int)'
                   ' with check (tenant_id = nullif(current_setting(''handbill.tenant'', true), '''')::int)', part);
    return true;
end
$$;
revoke execute on function adstats.raw_month(date) from public;
grant execute on function adstats.raw_month(date) to handbill_worker;

-- Once a month can no longer be restated its days stand in the ledger, and the raw rows may go.
create function adstats.drop_raw_month(month date) returns boolean
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
as $$
declare
    part text := 'ad_stats_raw_' || to_char(month, 'YYYYMM');
begin
    if to_regclass('adstats.' || part) is null then
        return false;
    end if;
    execute format('drop table adstats.%I', part);
    return true;
end
$$;
-- Months whose raw rows are gone: nothing may be added up from them any more.
create table adstats.raw_gone (
    month   date primary key,
    gone_at timestamptz not null
);
grant select, insert on adstats.raw_gone to handbill_worker;
grant select on adstats.raw_gone to handbill_app;
revoke execute on function adstats.drop_raw_month(date) from public;
grant execute on function adstats.drop_raw_month(date) to handbill_worker;

select handbill_wall(t) from unnest(array[
    'adstats.fb_connections', 'adstats.sellpages', 'adstats.entities', 'adstats.ad_stats_raw', 'adstats.ad_stats_daily',
    'adstats.ad_stats_ledger', 'adstats.sellpage_stats_daily', 'adstats.sync_state', 'adstats.backfills',
    'adstats.backfill_parts'
]::regclass[]) t;
-- What a platform told is read by its seller and written by the pipeline alone. Sellpages are rolled up again by whoever
-- moves a campaign to another one, behind the seller's own wall.
revoke insert, update, delete on adstats.ad_stats_raw, adstats.ad_stats_daily, adstats.ad_stats_ledger,
    adstats.sync_state from handbill_app;

select adstats.raw_month((date_trunc('month', now() at time zone 'UTC') + m * interval '1 month')::date)
from generate_series(-1, 1) m;

-- === 0008_contacts
-- Contacts: who may be written to, what they agreed to, who must be left alone, and the files they came in.
create schema contacts;

-- Tags, channels: sorted, each once, so that equal sets are equal arrays.
create function contacts.add_tags(one text[], other text[]) returns text[]
    language sql immutable parallel safe
    return case
        when other = '{}' then one
        when one = '{}' and array_length(other, 1) = 1 then other
        else (
            select coalesce(array_agg(t order by t), '{}')
            from (select distinct u collate "C" as t from unnest(one || other) u) each_once
        )
    end;

create function contacts.without(one text[], other text[]) returns text[]
    language sql immutable parallel safe
    return case
        when one = '{}' or other = '{}' then one
        else (select coalesce(array_agg(t order by t collate "C"), '{}') from unnest(one) t where t <> all (other))
    end;

-- What one field of several rows of one contact becomes, the rows in file order: as if they were applied one by one.
create function contacts.pick(policy text, vals text[]) returns text
    language sql immutable parallel safe
    return (
        select v from unnest(vals) with ordinality u (v, n)
        where policy in ('skip', 'replace') or v is not null
        order by case when policy in ('update', 'replace') then -n else n end limit 1
    );

-- A contact's own fields, as a merge weighs the old against the new.
create type contacts.fields as (
    phone text, whatsapp text, email text, external_id text, name text, locale text, attributes jsonb
);

create aggregate contacts.overlay(jsonb) (sfunc = jsonb_concat, stype = jsonb, initcond = '{}');
create aggregate contacts.all_tags(text[]) (sfunc = contacts.add_tags, stype = text[], initcond = '{}');

-- No address is unique: two people may share a telephone. An import tells contacts apart by the key it was given.
-- No foreign key to the tenant where rows come by the million: the wall and the import's own row stand for it.
create table contacts.contacts (
    tenant_id   int not null,
    contact_id  uuid not null,
    phone       text collate "C",                        -- E.164
    whatsapp    text collate "C",                        -- the same as WhatsApp counts it
    email       text collate "C",                        -- lower case
    external_id text collate "C",                        -- the tenant's own; also the distinct id of the person (Know)
    name        text,
    locale      text,
    attributes  jsonb not null default '{}',
    tags        text[] not null default '{}',            -- sorted
    granted     text[] not null default '{}',            -- channels the contact agreed to
    denied      text[] not null default '{}',            -- channels the contact refused; never in both
    version     int not null default 1,
    created_at  timestamptz not null,
    updated_at  timestamptz not null,
    primary key (tenant_id, contact_id),
    check ((phone is null) = (whatsapp is null))
) with (fillfactor = 90);
create index ix_contacts_phone on contacts.contacts (tenant_id, phone) where phone is not null;
create index ix_contacts_email on contacts.contacts (tenant_id, email) where email is not null;
create index ix_contacts_denied on contacts.contacts (tenant_id, whatsapp) where denied <> '{}';
create index ix_contacts_external on contacts.contacts (tenant_id, external_id) where external_id is not null;

create table contacts.consent_log (
    tenant_id  int not null,
    contact_id uuid not null,
    consent_id uuid not null,
    at         timestamptz not null,
    channel    text not null check (channel in ('whatsapp', 'sms', 'email')),
    granted    boolean not null,
    source     text not null,
    proof      text,
    actor      text not null,
    import_id  uuid,
    primary key (tenant_id, contact_id, consent_id)
);

create table contacts.suppressions (
    tenant_id  int not null references tenants.tenants (tenant_id),
    channel    text not null check (channel in ('whatsapp', 'sms', 'email')),
    address    text collate "C" not null,                -- as in contacts.whatsapp, .phone, .email
    reason     text not null check (reason in ('opt_out', 'bounce', 'complaint', 'invalid', 'manual')),
    until      timestamptz,                              -- null: for ever
    note       text,
    created_at timestamptz not null,
    primary key (tenant_id, channel, address)
);

-- ------------------------------------------------------------------------------------------------ imports
create table contacts.imports (
    tenant_id   int not null references tenants.tenants (tenant_id),
    import_id   uuid not null,
    file_name   text not null,
    file        text not null,                           -- the name of the stored file in the uploads' directory
    canonical   text,                                    -- and of the one that is parsed, once it is known
    size        bigint not null,
    sha256      text not null,
    status      text not null check (status in ('ready', 'queued', 'splitting', 'parsing', 'parsed', 'merging', 'done',
                                                'failed', 'cancelled', 'undoing', 'undone')),
    paused      boolean not null default false,
    plan        jsonb not null,
    counts      jsonb not null default '{}',
    rows        int not null default 0,
    slices      int not null default 1,
    fixes       uuid,                                    -- the import whose rejected rows these are
    error       text,
    undo_kept   int not null default 0,
    version     int not null default 1,
    created_by  text not null,
    created_at  timestamptz not null,
    started_at  timestamptz,
    finished_at timestamptz,
    file_gone   boolean not null default false,
    primary key (tenant_id, import_id)
);
create index ix_imports_open on contacts.imports (tenant_id, status)
    where status in ('queued', 'splitting', 'parsing', 'parsed', 'merging', 'undoing');
create index ix_imports_files on contacts.imports (created_at) where not file_gone;

-- Chunks (byte ranges of the file) and slices (of the keys' hashes): what can be done, and repeated, alone.
create table contacts.import_parts (
    tenant_id int not null references tenants.tenants (tenant_id),
    import_id uuid not null,
    phase     text not null check (phase in ('chunk', 'slice')),
    no        int not null,
    start_at  bigint not null default 0,
    end_at    bigint not null default 0,
    first_row int not null default 0,
    rows      int not null default 0,
    done      boolean not null default false,
    counts    jsonb not null default '{}',
    primary key (tenant_id, import_id, phase, no)
);

-- Rows on their way: read, checked, not yet merged. The merge takes them out.
create table contacts.import_rows (
    tenant_id   int not null,
    import_id   uuid not null,
    slice       int not null,
    row_no      int not null,
    contact_id  uuid not null,
    phone       text collate "C",
    whatsapp    text collate "C",
    email       text collate "C",
    external_id text collate "C",
    name        text,
    locale      text,
    attributes  jsonb not null,
    tags        text[] not null,
    consent     boolean,
    primary key (tenant_id, import_id, slice, row_no)
);

create table contacts.import_findings (
    tenant_id int not null,
    import_id uuid not null,
    row_no    int not null,
    severity  text not null check (severity in ('reject', 'note')),
    code      text not null,
    field     text,
    value     text not null,
    original  text not null,
    finding   int not null generated always as identity,
    primary key (tenant_id, import_id, row_no, finding)
);

-- What an import changed, as it was before and as it left it: for the way back. Created contacts need none.
create table contacts.import_changes (
    tenant_id  int not null,
    import_id  uuid not null,
    contact_id uuid not null,
    before     jsonb not null,
    after      jsonb not null,
    primary key (tenant_id, import_id, contact_id)
);

-- Contacts that an undo did not put back whole, because somebody had changed them since.
create table contacts.undo_kept (
    tenant_id  int not null,
    import_id  uuid not null,
    contact_id uuid not null,
    fields     text[] not null,
    why        text not null,
    primary key (tenant_id, import_id, contact_id)
);

select handbill_wall(t) from unnest(array[
    'contacts.contacts', 'contacts.consent_log', 'contacts.suppressions', 'contacts.imports', 'contacts.import_parts',
    'contacts.import_rows', 'contacts.import_findings', 'contacts.import_changes', 'contacts.undo_kept'
]::regclass[]) t;

-- === 0009_messaging
-- Messaging: connections to providers, campaigns, one row per person and campaign, and what comes back.
create schema messaging;

-- The tenant-wide stop switch, and the tenant's own pace. No row: nothing is stopped, the pace is the tier's.
create table messaging.switches (
    tenant_id  int primary key references tenants.tenants (tenant_id),
    stopped    boolean not null default false,
    reason     text,                                     -- 'operator', or the provider's code that stopped it
    per_second int check (per_second >= 0),              -- 0: no limit but the numbers' own; null: as the tier says
    updated_at timestamptz not null
);

create table messaging.connections (
    tenant_id     int not null references tenants.tenants (tenant_id),
    connection_id uuid not null unique,
    name          text not null check (length(name) between 1 and 200),
    channel       text not null check (channel in ('whatsapp', 'sms', 'email')),
    waba_id       text collate "C" not null,
    portfolio     text collate "C" not null,             -- whose tier it is; the account's own unless told otherwise
    sealed        bytea not null,                        -- token and app secret
    version       int not null default 1,
    created_at    timestamptz not null,
    updated_at    timestamptz not null,                  -- of what a person gave, the token included
    token_state   text not null default 'valid' check (token_state in ('valid', 'dead')),
    token_note    text,                                  -- why the provider refuses it, in our words
    token_ends_at timestamptz,                           -- null: it does not end, or nobody has told
    token_checked_at timestamptz,
    primary key (tenant_id, connection_id)
);

create table messaging.numbers (
    tenant_id     int not null references tenants.tenants (tenant_id),
    number_id     text collate "C" not null,
    connection_id uuid not null,
    display       text not null default '',
    quality       text not null default 'UNKNOWN',
    per_second    int not null default 80 check (per_second between 1 and 10000),
    tier          int check (tier > 0),                  -- people in 24 hours for the portfolio; null: no limit
    paused_until  timestamptz,
    pause_reason  text,
    throttled     int not null default 0,                -- 130429 in a row
    turn          uuid,                                  -- the chain of turns that works on this number
    turn_until    timestamptz not null default '-infinity',
    updated_at    timestamptz not null,
    primary key (tenant_id, number_id),
    constraint uq_numbers_number unique (number_id),     -- of one tenant only: two would each count its limits alone
    foreign key (tenant_id, connection_id) references messaging.connections (tenant_id, connection_id) on delete cascade
) with (fillfactor = 50);

create table messaging.templates (
    tenant_id     int not null references tenants.tenants (tenant_id),
    connection_id uuid not null,
    name          text collate "C" not null,
    language      text collate "C" not null,
    template_id   text not null,
    category      text not null,
    state         text not null,
    components    jsonb not null,
    named         boolean not null,
    reason        text not null default '',
    changed_at    timestamptz not null,                  -- when the provider said so: an older word does not count
    primary key (tenant_id, connection_id, name, language),
    foreign key (tenant_id, connection_id) references messaging.connections (tenant_id, connection_id) on delete cascade
);

create table messaging.campaigns (
    tenant_id      int not null references tenants.tenants (tenant_id),
    campaign_id    uuid not null,
    name           text not null check (length(name) between 1 and 200),
    channel        text not null check (channel in ('whatsapp', 'sms', 'email')),
    connection_id  uuid not null,
    numbers        text[] not null check (cardinality(numbers) <= 100),
    content        jsonb not null,
    bindings       jsonb not null default '{}',
    audience       jsonb not null,
    purpose        text not null check (purpose in ('marketing', 'utility', 'test')),
    state          text not null check (state in ('draft', 'scheduled', 'queued', 'running', 'paused', 'completed',
                                                  'cancelled', 'expired')),
    reason         text,                                 -- why it is paused, in a stable word
    resume_to      text check (resume_to in ('scheduled', 'queued', 'running')),
    scheduled_at   timestamptz,
    expires_at     timestamptz,
    quiet_from     time,
    quiet_to       time,
    quiet_zone     text,
    quiet_by       text check (quiet_by in ('tenant', 'contact')),
    cap_count      int check (cap_count > 0),
    cap_hours      int check (cap_hours > 0),
    price          numeric(18, 6) not null default 0 check (price >= 0),
    spend_cap      numeric(18, 4) check (spend_cap >= 0),
    spent          numeric(18, 6) not null default 0,
    currency       text not null default 'USD',
    audience_after uuid,                                 -- how far the audience has been written down
    audience_done  boolean not null default false,
    audience_size  int not null default 0,
    queued_at      timestamptz,
    started_at     timestamptz,
    ended_at       timestamptz,
    version        int not null default 1,
    created_by     text not null,
    created_at     timestamptz not null,
    updated_at     timestamptz not null,
    primary key (tenant_id, campaign_id),
    foreign key (tenant_id, connection_id) references messaging.connections (tenant_id, connection_id),
    check ((cap_count is null) = (cap_hours is null)),
    check ((quiet_from is null) = (quiet_to is null) and (quiet_from is null) = (quiet_by is null))
);
create index ix_campaigns_queued on messaging.campaigns (tenant_id, scheduled_at, campaign_id) where state = 'queued';
create index ix_campaigns_open on messaging.campaigns (tenant_id, state)
    where state in ('scheduled', 'queued', 'running', 'paused');

-- One row per person and campaign: the address decides who is a person, not the contact.
create table messaging.messages (
    tenant_id     int not null references tenants.tenants (tenant_id),
    message_id    uuid not null,
    campaign_id   uuid not null,
    channel       text not null,
    address       text collate "C" not null,
    contact_id    uuid,
    number_id     text collate "C" not null,
    fields        jsonb not null default '{}',           -- what the template's variables need of the contact
    zone          text,
    state         text not null default 'pending' check (state in ('pending', 'claimed', 'sending', 'unknown', 'accepted',
                                                                   'sent', 'failed', 'delivered', 'read', 'skipped')),
    reason        text,
    attempts      smallint not null default 0,
    due_at        timestamptz not null,
    claim         uuid,
    claimed_at    timestamptz,
    attempted_at  timestamptz,
    settled_at    timestamptz,
    wamid         text,
    old_wamids    text[] not null default '{}',          -- of sends that failed and were asked for again
    accepted_at   timestamptz,
    sent_at       timestamptz,
    failed_at     timestamptz,                           -- by webhook; a refusal in the answer has only its reason
    delivered_at  timestamptz,
    read_at       timestamptz,
    error_code    int,
    error_details text,
    created_at    timestamptz not null,
    primary key (tenant_id, message_id),
    constraint uq_messages_address unique (tenant_id, campaign_id, channel, address),
    foreign key (tenant_id, campaign_id) references messaging.campaigns (tenant_id, campaign_id)
) with (fillfactor = 70);
create index ix_messages_pending on messaging.messages (tenant_id, campaign_id, number_id, (attempts > 0), due_at)
    where state = 'pending';
create index ix_messages_flight on messaging.messages (tenant_id, number_id, claimed_at) where state in ('claimed', 'sending');
create index ix_messages_attempted on messaging.messages using brin (attempted_at);
create index ix_messages_unknown on messaging.messages (attempted_at) where state = 'unknown';
create index ix_messages_person on messaging.messages (tenant_id, channel, address, claimed_at) where claimed_at is not null;

-- Whom a portfolio has written to, and when last: the tier counts these over 24 hours.
create table messaging.reached (
    tenant_id int not null references tenants.tenants (tenant_id),
    portfolio text collate "C" not null,
    address   text collate "C" not null,
    last_at   timestamptz not null,
    primary key (tenant_id, portfolio, address)
) with (fillfactor = 80);
create index ix_reached_last on messaging.reached (tenant_id, portfolio, last_at);

-- Addresses at which nothing arrives: how often in a row.
create table messaging.undeliverable (
    tenant_id int not null references tenants.tenants (tenant_id),
    channel   text not null,
    address   text collate "C" not null,
    hits      int not null,
    last_at   timestamptz not null,
    primary key (tenant_id, channel, address)
);

-- Webhooks as they came: kept before they are answered, each once, worked on afterwards.
create table messaging.webhook_inbox (
    tenant_id     int not null references tenants.tenants (tenant_id),
    digest        bytea not null,
    connection_id uuid not null,
    received_at   timestamptz not null,
    body          bytea not null,
    state         text not null default 'new' check (state in ('new', 'done', 'parked')),
    tries         int not null default 0,
    error         text,
    primary key (tenant_id, digest)
);
create index ix_webhook_inbox_new on messaging.webhook_inbox (received_at) where state = 'new';
create index ix_webhook_inbox_old on messaging.webhook_inbox (received_at) where state = 'done';

-- What people wrote to us.
create table messaging.inbound (
    tenant_id     int not null references tenants.tenants (tenant_id),
    wamid         text collate "C" not null,
    connection_id uuid not null,
    number_id     text not null,
    address       text collate "C" not null,
    name          text not null,
    at            timestamptz not null,
    kind          text not null,
    text          text not null,
    payload       text not null,
    media_id      text,
    reply_to      text,
    wish          text check (wish in ('stop', 'start')),
    primary key (tenant_id, wamid)
);
create index ix_inbound_at on messaging.inbound (tenant_id, at, wamid);
create index ix_inbound_address on messaging.inbound (tenant_id, address, at);

-- Marketing by the provider's own button: the latest word counts, and of two at once the no.
create table messaging.preferences (
    tenant_id int not null references tenants.tenants (tenant_id),
    channel   text not null,
    address   text collate "C" not null,
    wish      text not null check (wish in ('stop', 'resume')),
    at        timestamptz not null,
    primary key (tenant_id, channel, address)
);

-- What the provider says about an account or a template, for a person to read.
create table messaging.alerts (
    tenant_id     int not null references tenants.tenants (tenant_id),
    alert_key     text collate "C" not null,
    connection_id uuid not null,
    at            timestamptz not null,
    field         text not null,
    event         text not null,
    body          bytea not null,
    primary key (tenant_id, alert_key)
);

-- Webhooks of our own: where they go, and what became of each.
create table messaging.hooks (
    tenant_id     int not null references tenants.tenants (tenant_id),
    hook_id       uuid not null,
    url           text not null check (length(url) <= 2000),
    events        text[] not null,                       -- empty: every event
    sealed        bytea not null,
    active        boolean not null default true,
    off_reason    text,                                  -- why it is off: 'operator', or 'failing' for too long
    failing_since timestamptz,                           -- since when nothing was taken; null while it works
    created_at    timestamptz not null,
    primary key (tenant_id, hook_id)
);
create table messaging.hook_deliveries (
    tenant_id    int not null references tenants.tenants (tenant_id),
    delivery_id  uuid not null,
    hook_id      uuid not null,
    event        text not null,
    body         jsonb not null,
    state        text not null default 'waiting' check (state in ('waiting', 'delivered', 'failed')),
    attempts     int not null default 0,
    status       int,
    error        text,
    created_at   timestamptz not null,
    finished_at  timestamptz,
    primary key (tenant_id, delivery_id)
);
create index ix_hook_deliveries_hook on messaging.hook_deliveries (tenant_id, hook_id, delivery_id);
create index ix_hook_deliveries_old on messaging.hook_deliveries (created_at) where state <> 'waiting';

-- Whether it is quiet at a moment in a zone, and when quiet ends. A zone nobody knows is UTC. Hours may span midnight.
create function messaging.zone_or_utc(zone text) returns text
    language plpgsql immutable parallel safe
as $$
begin
    perform now() at time zone zone;
    return coalesce(zone, 'UTC');
exception when others then
    return 'UTC';
end
$$;

create function messaging.quiet_until(zone text, quiet_from time, quiet_to time, at timestamptz) returns timestamptz
    language plpgsql stable parallel safe
as $$
declare
    place text;
    here  timestamp;
    clock time;
    ends  timestamp;
begin
    if quiet_from is null or quiet_from = quiet_to then
        return null;
    end if;
    place := messaging.zone_or_utc(zone);
    here := at at time zone place;
    clock := here::time;
    if quiet_from < quiet_to then
        if clock < quiet_from or clock >= quiet_to then
            return null;
        end if;
        ends := here::date + quiet_to;
    else
        if clock < quiet_from and clock >= quiet_to then
            return null;
        end if;
        ends := here::date + case when clock >= quiet_from then 1 else 0 end + quiet_to;
    end if;
    return greatest(ends at time zone place, at + interval '1 second');
end
$$;

-- Which of these people must not be written to now, and why. Asked once, in the statement that claims them. Suppressions are
-- by address, and so is a no: of two contacts with one telephone, either speaks for it. A yes is the contact's own; who never
-- said no may get what is no marketing.
create function messaging.may_not_send(
    tenant int, channels text[], addresses text[], contact_ids uuid[], purposes text[], moment timestamptz
) returns table (place bigint, reason text)
    language plpgsql stable
as $$
begin
    if to_regclass('contacts.suppressions') is null then
        return;
    end if;
    return query
        select u.n,
            case
                when s.reason is not null then 'suppressed_' || s.reason
                when d.denied or u.channel = any (c.denied) then 'consent_denied'
                when u.contact is null then null
                when c.contact_id is null then 'contact_gone'
                when u.purpose = 'marketing' and not u.channel = any (c.granted) then 'consent_missing'
            end
        from unnest(channels, addresses, contact_ids, purposes) with ordinality as u (channel, address, contact, purpose, n)
        left join contacts.suppressions s
            on s.tenant_id = tenant and s.channel = u.channel and s.address = u.address and (s.until is null or s.until > moment)
        left join contacts.contacts c on c.tenant_id = tenant and c.contact_id = u.contact
        left join lateral (
            select true as denied from contacts.contacts o
            where u.channel = 'whatsapp' and o.tenant_id = tenant and o.whatsapp = u.address and o.denied <> '{}'
                and u.channel = any (o.denied)
            union all
            select true from contacts.contacts o
            where u.channel = 'sms' and o.tenant_id = tenant and o.phone = u.address and u.channel = any (o.denied)
            union all
            select true from contacts.contacts o
            where u.channel = 'email' and o.tenant_id = tenant and o.email = u.address and u.channel = any (o.denied)
            limit 1
        ) d on true;
end
$$;

-- The addresses of whoever is known by this id: for an erasure, which must come here before the contact itself is gone.
create function messaging.addresses_of(tenant int, subject text) returns setof text
    language plpgsql stable
as $$
begin
    if to_regclass('contacts.contacts') is null then
        return;
    end if;
    return query
        select unnest(array[c.whatsapp, c.phone, c.email]) from contacts.contacts c
        where c.tenant_id = tenant and (c.external_id = subject or c.phone = subject or c.email = lower(subject));
end
$$;

select handbill_wall(t) from unnest(array[
    'messaging.switches', 'messaging.connections', 'messaging.numbers', 'messaging.templates', 'messaging.campaigns',
    'messaging.messages', 'messaging.reached', 'messaging.undeliverable', 'messaging.webhook_inbox', 'messaging.inbound',
    'messaging.preferences', 'messaging.alerts', 'messaging.hooks', 'messaging.hook_deliveries'
]::regclass[]) t;

-- Whose webhook it is, before a tenant is known.
create function messaging.find_connection(wanted uuid) returns int
    language sql stable security definer
    set search_path = pg_catalog, pg_temp
as $$
    select c.tenant_id from messaging.connections c where c.connection_id = wanted
$$;
grant create on schema messaging to handbill_worker;
alter function messaging.find_connection(uuid) owner to handbill_worker;
revoke create on schema messaging from handbill_worker;
revoke execute on function messaging.find_connection(uuid) from public;
grant execute on function messaging.find_connection(uuid) to handbill_app;

-- === 0010_unmatched
-- What the platform speaks of and nobody has imported, and when the account was last asked what runs there.
alter table adstats.sync_state
    add column unmatched int not null default 0,
    add column listed_at timestamptz;

-- === 0011_export_audit
-- A batch is done when its rows were counted in ClickHouse. An auditor counts them once more before the journal lets go
-- of the events, and exports what is missing again.
alter table events.ch_batches
    add column audited_at  timestamptz,                  -- counted a second time, after a while
    add column requeued_at timestamptz,                  -- the auditor found rows missing and had it exported again
    add column lost_events int;                          -- rows that are in neither store; none: the whole batch, if lost_at
update events.ch_batches set audited_at = done_at where done_at is not null;
create index ix_ch_batches_unaudited on events.ch_batches (done_at, id) where done_at is not null and audited_at is null;

-- === 0012_user_addresses
-- An e-mail address is unique in its tenant, not in the installation: to refuse an address because another tenant has it
-- revealed that tenant's users. Tenants have few users, so the indexes are built at once.
alter table tenants.users add constraint uq_users_tenant_email unique (tenant_id, email);
create index ix_users_email on tenants.users (email);
alter table tenants.users drop constraint uq_users_email;

create function tenants.find_accounts(
    wanted text, of_tenant text, most int, out tenant_id int, out user_id uuid
) returns setof record
    language sql stable security definer rows 1
    set search_path = pg_catalog, pg_temp
as $$
    select u.tenant_id, u.user_id
    from tenants.users u
    join tenants.tenants t on t.tenant_id = u.tenant_id
    where u.email = lower(wanted) and (of_tenant is null or t.slug = of_tenant)
    order by u.user_id
    limit most
$$;

-- Row-level security is forced, so the function belongs to the role that bypasses it.
grant create on schema tenants to handbill_worker;
alter function tenants.find_accounts(text, text, int) owner to handbill_worker;
revoke create on schema tenants from handbill_worker;
revoke execute on function tenants.find_accounts(text, text, int) from public;
grant execute on function tenants.find_accounts(text, text, int) to handbill_app;

-- === 0013_key_ranges
-- Forgetting old event keys reads the table in ranges of pages, each in a short statement, and notes here which key was the
-- oldest that stayed. A range whose oldest key is young enough is not read again until that key is old. No index on the keys:
-- counting pays nothing for it.
create table events.key_ranges (                         -- belongs to the installation, not to a tenant
    pages       int not null,                            -- length of the range
    first_page  bigint not null,                         -- the same pages of every partition
    oldest_time timestamptz not null,                    -- no key in it was stored before; if there was none, when it was read
    primary key (pages, first_page)
);
grant select, insert, update, delete on events.key_ranges to handbill_worker;

-- === 0014_erasure_indexes
-- Lists, healing and erasure of parked events read by tenant and id; healing also by reason. Parked events are exceptions and
-- the other tables have a row for each batch or erasure, so that the indexes are built at once and counting pays nothing.
create index ix_parked_id on events.parked (tenant_id, id);
create index ix_parked_open on events.parked (tenant_id, reason, id) where replayed_at is null;
drop index events.ix_parked_tenant;
create index ix_ch_batches_done on events.ch_batches (lane, done_at) where done_at is not null and lost_at is null;
create index ix_erasures_open on tenants.erasures (tenant_id, subject_hash) where subject is not null;

-- === 0015_request_jobs
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

-- === 0016_parked_requests
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

-- ------------------------------------------------------------------------------------------------ active hours
-- Smart scheduling: in which hours people are active, learnt only where a tenant switched it on.
create schema active_hours;
grant usage on schema active_hours to handbill_app, handbill_worker;

-- One week of one id. Counts are by quarter of the day in UTC: the person's zone may become known later.
create table active_hours.activity (
    tenant_id   int not null references tenants.tenants (tenant_id),
    distinct_id text collate "C" not null,
    week        int not null,                            -- weeks since 1970
    counts      smallint[] not null,
    first_at    timestamptz not null,
    last_at     timestamptz not null,
    zone        text,                                    -- the newest that an event of that week named
    zone_at     timestamptz,
    zone_key    bytea,                                   -- of two events at one moment the larger key decides
    changed_at  timestamptz,                             -- set: the profile in Redis does not have it yet
    primary key (tenant_id, distinct_id, week)
) with (fillfactor = 80);
create index ix_activity_changed on active_hours.activity (tenant_id, changed_at) where changed_at is not null;
create index ix_activity_week on active_hours.activity (tenant_id, week);
select handbill_wall('active_hours.activity'::regclass);
revoke insert, update, delete on active_hours.activity from handbill_app;

-- === 0021_event_order
-- The order of events: (time in microseconds, sequence, event id). A sequence says when the request was sent and where the
-- event stood in it. Of an event's copies the smallest counts, which may come after the event was counted and exported.
-- Adding a column with a constant default rewrites no row; events of earlier releases have 0.
alter table events.event_keys add column sequence bigint not null default 0;

alter table people.person_edges add column first_sequence bigint not null default 0;
alter table people.persons
    add column identified_sequence bigint not null default 0,
    add column last_edge_sequence bigint not null default 0;

-- Events whose copy in the journal has a larger sequence than the one that counts. The exporter reads them, and the events
-- that ClickHouse had already are corrected there. A row goes a day after ClickHouse was seen to have the right sequence, or
-- with its event's key.
create table events.sequence_corrections (
    tenant_id    int not null references tenants.tenants (tenant_id) on delete cascade,
    event_key    bytea not null,
    sequence     bigint not null,
    corrected_at timestamptz not null default now(),
    checked_at   timestamptz,                            -- when ClickHouse was last asked and did not have the event
    exported_at  timestamptz,                            -- when ClickHouse was seen to have this sequence
    primary key (tenant_id, event_key)
);
create index ix_sequence_corrections_open on events.sequence_corrections (tenant_id, coalesce(checked_at, corrected_at))
    where exported_at is null;
create index ix_sequence_corrections_exported_at on events.sequence_corrections (exported_at) where exported_at is not null;
create index ix_sequence_corrections_corrected_at on events.sequence_corrections (corrected_at);
select handbill_wall('events.sequence_corrections'::regclass);
revoke insert, update, delete on events.sequence_corrections from handbill_app;

-- === 0022_account_checks
-- When the platform last confirmed an ad account's currency, time zone and access. Connections of earlier releases have not
-- been verified; their next sync asks.
alter table adstats.fb_connections add column verified_at timestamptz;

-- === 0024_property_export
-- What people are like now goes to ClickHouse, for questions about events by properties of their people. A change is written
-- in the transaction that changes a person, and goes when ClickHouse has what holds since.
create table people.property_changes (
    tenant_id int not null references tenants.tenants (tenant_id),
    person_id uuid not null,
    change_id bigint generated always as identity,       -- the version in ClickHouse: taken while the person's row is held
    primary key (tenant_id, change_id)
);
create index ix_property_changes_change_id on people.property_changes (change_id);
select handbill_wall('people.property_changes'::regclass);
revoke insert, update, delete on people.property_changes from handbill_app;

create function people.mark_new_properties() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    insert into people.property_changes (tenant_id, person_id)
    select c.tenant_id, c.person_id from changed c where c.properties <> '{}' order by 1, 2;
    return null;
end
$$;

create function people.mark_changed_properties() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    insert into people.property_changes (tenant_id, person_id)
    select c.tenant_id, c.person_id
    from changed c
    join earlier e on e.tenant_id = c.tenant_id and e.person_id = c.person_id
    where c.properties <> e.properties
    order by 1, 2;
    return null;
end
$$;

create trigger properties_inserted after insert on people.persons
    referencing new table as changed for each statement execute function people.mark_new_properties();
create trigger properties_updated after update on people.persons
    referencing old table as earlier new table as changed for each statement execute function people.mark_changed_properties();
create trigger properties_deleted after delete on people.persons
    referencing old table as changed for each statement execute function people.mark_new_properties();

-- How far the people that were there before have been exported, in the order of their keys. One row.
create table people.property_backfill (
    is_only      boolean primary key default true check (is_only),
    after_tenant int not null default 0,
    after_person uuid not null default '00000000-0000-0000-0000-000000000000',
    finished_at  timestamptz
);
grant select, update on people.property_backfill to handbill_worker;
insert into people.property_backfill default values;

-- === 0025_single_messages
-- Messages of their own: a row of messaging.messages without a campaign, and here what was asked for. Adding columns with
-- constant defaults and dropping a NOT NULL change no row.
alter table messaging.messages alter column campaign_id drop not null;
alter table messaging.numbers
    add column single_turn  uuid,                                          -- the chain of turns that sends single messages
    add column single_until timestamptz not null default '-infinity';

create table messaging.single_messages (
    tenant_id       int not null references tenants.tenants (tenant_id),
    message_id      uuid not null,
    idempotency_key text collate "C" not null check (length(idempotency_key) between 1 and 255),
    digest          bytea not null,                      -- of the request; empty after an erasure: nothing equals it
    connection_id   uuid not null,
    content         jsonb not null,                      -- the template, or that it is text; the words are in fields
    purpose         text not null check (purpose in ('marketing', 'utility')),
    reply_to        text,
    source          text not null check (source in ('api', 'inbox', 'job', 'cli')),
    expires_at      timestamptz not null,
    reported_state  text,                                -- the last state that webhooks of ours were given; null: none
    created_by      text not null,
    created_at      timestamptz not null,
    primary key (tenant_id, message_id),
    constraint uq_single_messages_key unique (tenant_id, idempotency_key),
    foreign key (tenant_id, message_id) references messaging.messages (tenant_id, message_id),
    foreign key (tenant_id, connection_id) references messaging.connections (tenant_id, connection_id)
) with (fillfactor = 80);
create index ix_single_messages_open on messaging.single_messages (tenant_id) where reported_state is null;
create index ix_single_messages_expiry on messaging.single_messages (expires_at) where reported_state is null;
create index ix_single_messages_connection on messaging.single_messages (tenant_id, connection_id);
select handbill_wall('messaging.single_messages'::regclass);

-- === 0026_campaign_estimates
-- The estimate that a campaign was started with, to be compared with its outcome.
alter table messaging.campaigns add column estimate jsonb;

-- Failures told by webhook with one code in a row, none of them delivered between: the campaign is at fault, not the people.
alter table messaging.campaigns add column failed_code int;
alter table messaging.campaigns add column failed_in_row int not null default 0;

-- A connection may have more than 100 numbers.
alter table messaging.campaigns drop constraint campaigns_numbers_check;
alter table messaging.campaigns add constraint ck_campaigns_numbers check (cardinality(numbers) <= 1000) not valid;
alter table messaging.campaigns validate constraint ck_campaigns_numbers;

-- A tenant's own opt-out and opt-in words. No row: the defaults of every language.
create table messaging.opt_out_words (
    tenant_id  int primary key references tenants.tenants (tenant_id),
    languages  text[],                                   -- whose defaults count; null: those of all languages
    stop       text[] not null default '{}' check (cardinality(stop) <= 100),
    start      text[] not null default '{}' check (cardinality(start) <= 100),
    without    text[] not null default '{}' check (cardinality(without) <= 100),
    version    int not null default 1,
    updated_at timestamptz not null
);
select handbill_wall('messaging.opt_out_words'::regclass);
