-- name: add_lane
-- no-tenant: lanes carry every tenant's events
insert into events.lanes (lane, number) values ($1, $2) on conflict do nothing

-- name: seen_consumer
-- no-tenant: consumers belong to the installation
insert into events.consumers (name, seen_at) values ($1, now())
on conflict (name) do update set seen_at = now()

-- name: forget_consumers
-- no-tenant: consumers belong to the installation
delete from events.consumers where name = $1 or seen_at < now() - $2::interval

-- name: count_consumers
-- no-tenant: consumers belong to the installation
select count(*) from events.consumers where seen_at >= now() - $1::interval

-- name: claim_lane
-- no-tenant: lanes carry every tenant's events
update events.lanes
set epoch = epoch + 1, owner = $2, lease_until = now() + $3::interval
where lane = (
    select lane from events.lanes
    where lane = any ($1::text[]) and (owner is null or lease_until < now())
    order by number
    limit 1
    for update skip locked
)
returning lane, number, epoch, cursor, projected

-- name: renew_lanes
-- Only lanes that somebody works on: one that was claimed or let go without our knowing must run out by itself.
-- A locked row is in the middle of a commit, which renews it too: nobody waits for it.
-- no-tenant: lanes carry every tenant's events
update events.lanes set lease_until = now() + $3::interval
where lane in (select lane from events.lanes where owner = $1 and lane = any ($2::text[]) for update skip locked)

-- name: owned_lanes
-- no-tenant: lanes carry every tenant's events
select lane, epoch from events.lanes where owner = $1

-- name: release_lane
-- no-tenant: lanes carry every tenant's events
update events.lanes set owner = null, lease_until = null, projected = $3
where lane = $1 and epoch = $2

-- name: move_cursor
-- no-tenant: lanes carry every tenant's events
update events.lanes
set cursor = $4, projected = $5, moved_at = now(), lease_until = now() + $6::interval
where lane = $1 and epoch = $2 and cursor = $3
returning number

-- name: move_projected
-- no-tenant: lanes carry every tenant's events
update events.lanes set projected = $3 where lane = $1 and epoch = $2

-- name: lanes_at_work
-- no-tenant: lanes carry every tenant's events
select lane, cursor, coalesce(owner is not null and lease_until >= now(), false) as owned from events.lanes
where lane = any ($1::text[])

-- name: list_lanes
-- no-tenant: lanes carry every tenant's events
select lane, number, epoch, owner, lease_until, cursor, projected, moved_at from events.lanes order by number
