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
    updated_at    timestamptz not null,
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
