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
