-- name: insert_keys
-- Sorted by the caller: unsorted batches of two workers deadlock.
with fresh as (
    insert into events.event_keys (tenant_id, key, stored_time, sequence)
    select * from unnest($1::int[], $2::bytea[], $3::timestamptz[], $4::bigint[])
    on conflict do nothing
    returning tenant_id, key
)
select tenant_id, string_agg(key, '') from fresh group by tenant_id

-- name: larger_sequences
-- Which of these copies have a smaller sequence than is stored for their event. `limit 1`: an index look-up each, always.
select u.place
from unnest($1::int[], $2::bytea[], $3::bigint[]) with ordinality as u (tenant_id, key, sequence, place)
cross join lateral (
    select from events.event_keys k
    where k.tenant_id = u.tenant_id and k.key = u.key and k.sequence > u.sequence limit 1
) as stored

-- name: lower_sequence
update events.event_keys set sequence = $3 where tenant_id = $1 and key = $2 and sequence > $3

-- name: correct_sequences
-- For the exporter: the journal has a larger one. A tenant that does not exist has no events to correct.
insert into events.sequence_corrections as known (tenant_id, event_key, sequence)
select u.* from unnest($1::int[], $2::bytea[], $3::bigint[]) as u (tenant_id, event_key, sequence)
join tenants.tenants t using (tenant_id)
order by u.tenant_id, u.event_key
on conflict (tenant_id, event_key) do update
set sequence = excluded.sequence, corrected_at = now(), checked_at = null, exported_at = null
where excluded.sequence < known.sequence

-- name: insert_batch
-- no-tenant: a batch holds the events of every tenant of its lane
insert into events.ch_batches (id, lane, from_cursor, to_cursor, survivors, events, done_at, audited_at)
values ($1, $2, $3, $4, $5, $6, case when $7 then null else now() end, case when $7 then null else now() end)

-- name: batches_behind
-- no-tenant: a batch holds the events of every tenant of its lane
select from_cursor, to_cursor, survivors, events from events.ch_batches
where lane = $1
  and (split_part(to_cursor, '-', 1)::bigint, split_part(to_cursor, '-', 2)::bigint)
    > (split_part($2, '-', 1)::bigint, split_part($2, '-', 2)::bigint)
order by created_at, id

-- name: oldest_unfinished_batch
-- no-tenant: a batch holds the events of every tenant of its lane
select from_cursor from events.ch_batches where lane = $1 and done_at is null order by created_at, id limit 1

-- name: unshipped_batches
-- no-tenant: a batch holds the events of every tenant of its lane
select id from events.ch_batches where done_at is null

-- name: forget_batches
-- One that nobody audits goes after a day: the journal has let go of its events long before.
-- no-tenant: a batch holds the events of every tenant of its lane
-- Of those that were done first: batches are done, audited and projected in about the order of the lane.
with portion as (
    select id, to_cursor, audited_at is not null or done_at < now() - interval '1 day' as settled
    from events.ch_batches
    where lane = $1 and done_at < now() - $3::interval and lost_at is null
    order by done_at limit $4
)
delete from events.ch_batches
where lane = $1 and id = any (array(
    select id from portion
    where settled and (split_part(to_cursor, '-', 1)::bigint, split_part(to_cursor, '-', 2)::bigint)
                   <= (split_part($2, '-', 1)::bigint, split_part($2, '-', 2)::bigint)))

-- name: add_drops
-- A tenant that does not exist has nobody to read them.
insert into events.drops (tenant_id, day, kind, reason, lane, events)
select u.* from unnest($1::int[], $2::date[], $3::text[], $4::text[], $5::smallint[], $6::bigint[])
    as u (tenant_id, day, kind, reason, lane, events)
join tenants.tenants t using (tenant_id)
on conflict (tenant_id, day, kind, reason, lane) do update set events = events.drops.events + excluded.events

-- name: park
-- What names a tenant that does not exist is kept as nobody's.
insert into events.parked (id, tenant_id, kind, event_id, lane, reason, detail, body)
select u.id, t.tenant_id, u.kind, u.event_id, u.lane, u.reason, u.detail, u.body
from unnest($1::uuid[], $2::int[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[])
    as u (id, tenant_id, kind, event_id, lane, reason, detail, body)
left join tenants.tenants t using (tenant_id)

-- name: oldest_unexported
-- no-tenant: a batch holds the events of every tenant of its lane
select min(created_at) from events.ch_batches where done_at is null

-- name: key_ranges_due
-- no-tenant: the horizon is the same for everybody
-- Ranges of pages that may hold keys from before the horizon. Hash partitions grow alike, so a range is of all of them.
select due.first_page
from generate_series(
    0,
    (select max(pg_relation_size(i.inhrelid) / current_setting('block_size')::bigint) - 1
     from pg_inherits i where i.inhparent = 'events.event_keys'::regclass),
    $1::int
) as due (first_page)
left join events.key_ranges r on r.pages = $1 and r.first_page = due.first_page
where r.oldest_time is null or r.oldest_time < $2
order by due.first_page

-- name: forget_keys
-- no-tenant: the horizon is the same for everybody
-- However large the table is, this reads the pages between two places only. Keys that are stored meanwhile are new.
with gone as (
    delete from events.event_keys where ctid >= $1::tid and ctid < $2::tid and stored_time < $3 returning 1
)
select (select count(*)::int from gone),
       (select min(k.stored_time) from events.event_keys k
        where k.ctid >= $1::tid and k.ctid < $2::tid and k.stored_time >= $3)

-- name: note_key_range
-- no-tenant: the horizon is the same for everybody
insert into events.key_ranges (pages, first_page, oldest_time) values ($1, $2, $3)
on conflict (pages, first_page) do update set oldest_time = excluded.oldest_time
