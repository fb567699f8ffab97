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
