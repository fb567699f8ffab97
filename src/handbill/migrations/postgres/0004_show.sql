-- Show: whom a banner is for, in which order banners come, which face they wear, and every kind of limit.

alter table banners.banners
    add column targeting       jsonb,                                  -- null: everybody
    add column priority        int not null default 0 check (priority between -1000 and 1000),
    add column weight          int not null default 100 check (weight between 1 and 10000),
    add column revenue         double precision not null default 0 check (revenue >= 0 and revenue <= 1e9),
    add column variants        jsonb not null default '[]',
    add column holdout_percent double precision not null default 0 check (holdout_percent >= 0 and holdout_percent <= 100),
    add column caps            jsonb not null default '[]',            -- more windows beside x in y
    add column cap_mode        text not null default 'soft' check (cap_mode in ('soft', 'strict')),
    add column cap_by          text not null default 'user' check (cap_by in ('user', 'device'));

alter table banners.campaigns
    add column caps             jsonb not null default '[]',
    add column limits_raised_at timestamptz;

alter table banners.placements
    add column ranking          text[] not null default '{}',          -- empty: the tenant's own order
    add column caps             jsonb not null default '[]',
    add column limits_raised_at timestamptz;

-- How a tenant's banners are decided where nothing narrower says otherwise.
create table banners.deciding (
    tenant_id  int primary key references tenants.tenants (tenant_id),
    ranking    text[] not null default '{}',
    version    int not null default 1,
    updated_at timestamptz not null default now()
);
select handbill_wall('banners.deciding'::regclass);

-- Which face of a banner somebody saw; null where it has one only, or where no token told.
alter table banners.banner_clicks add column variant text;
alter table caps.user_views add column variant text;

-- ------------------------------------------------------------------------------------------------ caps
-- Lifetime limits of campaigns, placements and devices, once retention has dropped the rows they counted. Totals of users
-- and banners outlive their rows in cap_totals already.
create table caps.cap_archive (
    tenant_id int not null references tenants.tenants (tenant_id),
    kind      text not null check (kind in ('user', 'device', 'alone')),
    subject   text not null,
    scope     bigint not null,
    total     bigint not null,
    primary key (tenant_id, kind, subject, scope)
);
select handbill_wall('caps.cap_archive'::regclass);
revoke insert, update, delete on caps.cap_archive from handbill_app;

-- A device's views are found by way of its users.
create index ix_users_device on caps.users (tenant_id, device_id) where device_id <> '';
