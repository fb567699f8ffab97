-- name: waiting_batches
-- The oldest ungrouped batches of a lane until there are enough events; at least one.
-- no-tenant: a batch holds the events of every tenant of its lane
select id, from_cursor, to_cursor, survivors, events, refused, created_at, requeued_at
from (
    select *, sum(events) over (order by created_at, id) - events as before
    from (
        select * from events.ch_batches
        where lane = $1 and done_at is null and group_id is null
        order by created_at, id
        limit 200
    ) as oldest
) as waiting
where before < $2
order by created_at, id

-- name: take_batches
-- Whoever else groups them at the same moment finds them taken.
-- no-tenant: a batch holds the events of every tenant of its lane
update events.ch_batches set group_id = $1 where id = any ($2::uuid[]) and group_id is null and done_at is null
returning id

-- name: write_group
-- no-tenant: a group holds the events of every tenant of its lane
insert into events.ch_groups (id, lane, classes) values ($1, $2, $3::jsonb)

-- name: open_groups
-- no-tenant: a group holds the events of every tenant of its lane
select id, classes::text as classes from events.ch_groups where lane = $1 order by created_at, id

-- name: all_open_groups
-- no-tenant: a group holds the events of every tenant of its lane
select id from events.ch_groups

-- name: batches_of
-- no-tenant: a batch holds the events of every tenant of its lane
select id, from_cursor, to_cursor, survivors, events, refused, created_at, requeued_at from events.ch_batches
where group_id = $1 order by created_at, id

-- name: finish_batches
-- no-tenant: a batch holds the events of every tenant of its lane
update events.ch_batches set done_at = now() where group_id = $1 and done_at is null

-- name: end_group
-- no-tenant: a group holds the events of every tenant of its lane
delete from events.ch_groups where id = $1

-- name: lose_batches
-- no-tenant: a batch holds the events of every tenant of its lane
update events.ch_batches set lost_at = now(), done_at = now()
where id = any ($1::uuid[]) and lost_at is null and done_at is null
returning events

-- name: refuse_rows
-- no-tenant: a batch holds the events of every tenant of its lane
update events.ch_batches set refused = $2::int[] where id = $1 and refused is distinct from $2::int[]
returning id

-- name: unshipped
-- no-tenant: a batch holds the events of every tenant of its lane
select lane, coalesce(sum(events), 0)::bigint as events, extract(epoch from now() - min(created_at))::float8 as seconds,
  min(created_at) as oldest
from events.ch_batches where done_at is null
group by lane

-- name: unshipped_from
-- Where each lane's events that ClickHouse does not have yet begin.
-- no-tenant: a batch holds the events of every tenant of its lane
select distinct on (lane) lane, from_cursor, extract(epoch from now() - created_at)::float8 as seconds
from events.ch_batches where done_at is null
order by lane, created_at, id

-- name: lost_batches
-- no-tenant: a batch holds the events of every tenant of its lane
select id, lane, from_cursor, to_cursor, coalesce(lost_events, events) as events, created_at, lost_at from events.ch_batches
where lost_at is not null order by lost_at desc, id limit $1

-- name: unaudited_batches
-- no-tenant: a batch holds the events of every tenant of its lane
select id, lane, from_cursor, to_cursor, survivors, events, refused, created_at, requeued_at from events.ch_batches
where done_at is not null and done_at < now() - $1::interval and audited_at is null and lost_at is null
order by done_at, id limit $2

-- name: audit_age
-- no-tenant: a batch holds the events of every tenant of its lane
select coalesce(extract(epoch from now() - min(done_at)), 0)::float8 from events.ch_batches
where done_at is not null and audited_at is null and lost_at is null

-- name: mark_audited
-- no-tenant: a batch holds the events of every tenant of its lane
update events.ch_batches set audited_at = now() where id = any ($1::uuid[])

-- name: requeue_batches
-- no-tenant: a batch holds the events of every tenant of its lane
update events.ch_batches set done_at = null, group_id = null, requeued_at = now()
where id = any ($1::uuid[]) and done_at is not null and audited_at is null and lost_at is null
returning id

-- name: lose_rows
-- no-tenant: a batch holds the events of every tenant of its lane
update events.ch_batches set lost_at = now(), audited_at = now(), lost_events = $2
where id = $1 and lost_at is null and audited_at is null
returning lost_events
