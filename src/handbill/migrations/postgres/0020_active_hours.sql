-- Smart scheduling: in which hours people are active, learnt only where a tenant switched it on.
alter table banners.deciding add column smart_scheduling boolean not null default false;

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
