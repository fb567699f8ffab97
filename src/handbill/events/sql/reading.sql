-- name: find_key
select stored_time from events.event_keys where tenant_id = $1 and key = $2

-- name: list_parked
select id, kind, event_id, lane, reason, detail, length(body) as bytes, parked_at, replayed_at from events.parked
where tenant_id = $1 and ($2::text is null or reason = $2) and ($3 or replayed_at is null)
  and ($4::uuid is null or id > $4)
order by id
limit $5

-- name: count_parked
-- At most $5, so that its time is bounded, too.
select count(*) from (
    select from events.parked
    where tenant_id = $1 and replayed_at is null and ($2::text is null or reason = $2)
      and ($3::uuid[] is null or id = any ($3)) and id <= $4
    limit $5) waiting

-- name: last_parked
-- no-tenant: only an id is told, and only to this process
select id from events.parked order by id desc limit 1

-- name: parked_bodies
-- no-tenant: $1 narrows to a tenant; the operator also sees rows that belong to nobody
select id, parked_at, reason, body, tenant_id, event_id from events.parked
where replayed_at is null and ($1::int is null or tenant_id = $1) and ($2::text is null or reason = $2)
  and id > $3 and id <= $4 and ($6::uuid[] is null or id = any ($6))
order by id
limit $5

-- name: waiting_ids
-- Until they have $7 bytes together; at least one.
select id from (
    select id, sum(bytes) over (order by id) - bytes as before
    from (
        select id, length(body) as bytes from events.parked
        where tenant_id = $1 and replayed_at is null and ($2::text is null or reason = $2)
          and id > $3 and id <= $4 and ($6::uuid[] is null or id = any ($6))
        order by id
        limit $5
    ) first
) sized
where before < $7
order by id

-- name: claimed_bodies
-- Those of a portion under way, whether they were sent or not.
select id, parked_at, reason, body, tenant_id, event_id, replayed_at from events.parked
where tenant_id = $1 and id = any ($2::uuid[])
order by id

-- name: now
-- no-tenant: the database's clock
select clock_timestamp()

-- name: counted_keys
select k.tenant_id, k.key
from unnest($1::int[], $2::bytea[]) as wanted (tenant_id, key)
join events.event_keys k on k.tenant_id = wanted.tenant_id and k.key = wanted.key

-- name: counted_among
-- Key by key through the index, however many are asked for and whatever is known of the table's size.
select wanted.tenant_id, wanted.key
from unnest($1::int[], $2::bytea[]) as wanted (tenant_id, key)
cross join lateral (
    select from events.event_keys k where k.tenant_id = wanted.tenant_id and k.key = wanted.key limit 1
) counted

-- name: parked_since
select distinct p.tenant_id, p.kind, p.event_id
from unnest($1::int[], $2::text[], $3::text[]) as wanted (tenant_id, kind, event_id)
join events.parked p on p.tenant_id = wanted.tenant_id and p.kind = wanted.kind and p.event_id = wanted.event_id
where p.parked_at > $4 and p.replayed_at is null

-- name: healable_tenants
-- no-tenant: the clock heals everybody's, one tenant beside the other
select t.tenant_id from tenants.tenants t
where exists (
    select from events.parked p
    where p.tenant_id = t.tenant_id and p.reason = 'REJECTED' and p.replayed_at is null
      and p.parked_at < now() - $1::interval)
order by t.tenant_id

-- name: healable
-- A portion of what waits behind a place. An event that came back more often than $3 is not due: it waits for a person.
select p.id, p.parked_at < now() - $2::interval
    and (select count(*) from (
             select from events.parked q
             where q.tenant_id = p.tenant_id and q.event_id = p.event_id and q.kind = p.kind limit $3 + 1) tries) <= $3 as due
from events.parked p
where p.tenant_id = $1 and p.reason = 'REJECTED' and p.replayed_at is null and p.id > $4
order by p.id
limit $5

-- name: drop_parked
delete from events.parked
where tenant_id = $1 and id = any (array(
    select id from events.parked
    where tenant_id = $1 and replayed_at is null and ($2::text is null or reason = $2)
      and ($3::uuid[] is null or id = any ($3)) and id <= $5
    limit $4))

-- name: all_bodies
-- Whatever became of them: a replayed event's bytes stay here, too.
select id, parked_at, reason, body from events.parked where tenant_id = $1 and id > $2 order by id limit $3

-- name: erase_parked
delete from events.parked where tenant_id = $1 and id = any ($2::uuid[])

-- name: mark_replayed
-- no-tenant: the ids were read under the caller's own filter
update events.parked set replayed_at = now() where id = any ($1::uuid[])

-- name: keep_out
-- no-tenant: a lock is the installation's
select pg_try_advisory_xact_lock($1)

-- name: hold_parked
-- no-tenant: the ids were read under the caller's own filter
select id, body from events.parked where id = any ($1::uuid[]) and replayed_at is null order by id for update

-- name: forget_replayed
-- no-tenant: what was sent again long ago goes for everybody
-- In portions by the primary key: once a night, and no index for it.
with portion as (
    select id, replayed_at from events.parked where id > $2::uuid order by id limit $3
), gone as (
    delete from events.parked where id = any (array(select id from portion where replayed_at < $1)) returning 1
)
select (select count(*)::int from gone), id from portion order by id desc limit 1

-- name: parked_events
select id, kind, reason, detail, parked_at, replayed_at from events.parked
where tenant_id = $1 and event_id = $2 order by id limit 20

-- name: list_drops
select day, kind, reason, sum(events)::bigint as events from events.drops
where tenant_id = $1 and day >= $2 and day < $3
group by day, kind, reason
order by day, kind, reason
