-- name: find_key
select stored_time from events.event_keys where tenant_id = $1 and key = $2

-- name: list_parked
select id, kind, event_id, lane, reason, detail, length(body) as bytes, parked_at, replayed_at from events.parked
where tenant_id = $1 and ($2::text is null or reason = $2) and ($3 or replayed_at is null)
  and ($4::uuid is null or id > $4)
order by id
limit $5

-- name: count_parked
select count(*) from events.parked where tenant_id = $1 and ($2::text is null or reason = $2) and replayed_at is null

-- name: last_parked
-- no-tenant: only an id is told, and only to this process
select id from events.parked order by id desc limit 1

-- name: parked_bodies
-- no-tenant: $1 narrows to a tenant; the operator also sees rows that belong to nobody
select id, body from events.parked
where replayed_at is null and ($1::int is null or tenant_id = $1) and ($2::text is null or reason = $2)
  and id > $3 and id <= $4
order by id
limit $5

-- name: mark_replayed
-- no-tenant: the ids were read under the caller's own filter
update events.parked set replayed_at = now() where id = any ($1::uuid[])

-- name: parked_events
select id, kind, reason, detail, parked_at, replayed_at from events.parked
where tenant_id = $1 and event_id = $2 order by id limit 20

-- name: list_drops
select day, kind, reason, sum(events)::bigint as events from events.drops
where tenant_id = $1 and day >= $2 and day < $3
group by day, kind, reason
order by day, kind, reason
