-- name: insert_keys
-- Sorted by the caller: unsorted batches of two workers deadlock.
insert into events.event_keys (tenant_id, key, stored_time)
select * from unnest($1::int[], $2::bytea[], $3::timestamptz[])
on conflict do nothing
returning tenant_id, key

-- name: insert_batch
-- no-tenant: a batch holds the events of every tenant of its lane
insert into events.ch_batches (id, lane, from_cursor, to_cursor, survivors, events, done_at)
values ($1, $2, $3, $4, $5, $6, now())

-- name: batches_between
-- no-tenant: a batch holds the events of every tenant of its lane
select id, from_cursor, to_cursor, survivors, events from events.ch_batches
where lane = $1 and created_at >= now() - interval '2 days'
order by created_at, id

-- name: oldest_unfinished_batch
-- no-tenant: a batch holds the events of every tenant of its lane
select from_cursor from events.ch_batches where lane = $1 and done_at is null order by created_at, id limit 1

-- name: forget_batches
-- no-tenant: a batch holds the events of every tenant of its lane
delete from events.ch_batches where lane = $1 and done_at < now() - $2::interval

-- name: add_drops
insert into events.drops (tenant_id, day, kind, reason, lane, events)
select * from unnest($1::int[], $2::date[], $3::text[], $4::text[], $5::smallint[], $6::bigint[])
on conflict (tenant_id, day, kind, reason, lane) do update set events = events.drops.events + excluded.events

-- name: park
insert into events.parked (id, tenant_id, kind, event_id, lane, reason, detail, body)
select * from unnest($1::uuid[], $2::int[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[])

-- name: forget_keys
-- no-tenant: the horizon is the same for everybody
delete from events.event_keys
where ctid = any (array(select ctid from events.event_keys where stored_time < $1 limit $2))
