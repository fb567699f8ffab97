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
    deleted_at  timestamptz
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
    constraint banners_window check (publish_at < expires_at)
);
create index ix_banners_tenant on banners.banners (tenant_id, id) where deleted_at is null;
create index ix_banners_schedule on banners.banners (schedule_status) where deleted_at is null;

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
    marks          text[] not null default '{}'
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
    marks           text[] not null default '{}'
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
    marks          text[] not null default '{}'
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
    'banners.placements', 'banners.campaigns', 'banners.banners', 'banners.catalogue_versions',
    'events.event_keys', 'events.parked', 'events.drops',
    'banners.banner_impressions', 'banners.banner_clicks', 'caps.user_views', 'caps.cap_totals', 'caps.users',
    'banners.banner_stats', 'banners.stat_days', 'banners.event_marks', 'banners.audits'
]::regclass[]) t;
-- What was counted is read by its tenant and written by the pipeline alone.
revoke insert, update, delete on events.event_keys, events.drops, banners.banner_impressions, banners.banner_clicks,
    caps.user_views, caps.cap_totals, caps.users, banners.banner_stats, banners.stat_days, banners.event_marks,
    banners.audits from handbill_app;
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
