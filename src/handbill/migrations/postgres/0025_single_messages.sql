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
