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
