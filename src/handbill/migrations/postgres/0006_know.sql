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
