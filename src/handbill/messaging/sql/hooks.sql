-- Webhooks of our own.

-- name: insert_hook
insert into messaging.hooks (tenant_id, hook_id, url, events, sealed, created_at) values ($1, $2, $3, $4, $5, $6);

-- name: list_hooks
select hook_id, url, events, active, off_reason, failing_since, created_at
from messaging.hooks where tenant_id = $1 and ($2::uuid is null or hook_id > $2) order by hook_id limit $3;

-- name: read_hook
select hook_id, url, events, active, off_reason, failing_since, created_at, sealed
from messaging.hooks where tenant_id = $1 and hook_id = $2 for update;

-- name: change_hook
update messaging.hooks
set url = $3, events = $4, active = $5, off_reason = $6, failing_since = $7, sealed = $8
where tenant_id = $1 and hook_id = $2;

-- name: count_hooks
select count(*)::int from messaging.hooks where tenant_id = $1;

-- name: delete_hook
delete from messaging.hooks where tenant_id = $1 and hook_id = $2 returning hook_id;

-- What waits for a hook that is gone or switched off has nowhere to go.
-- name: close_waiting
update messaging.hook_deliveries set state = 'failed', error = $3, finished_at = $4
where tenant_id = $1 and hook_id = $2 and state = 'waiting';

-- name: hooks_for
select hook_id from messaging.hooks where tenant_id = $1 and active and (events = '{}' or $2 = any (events)) order by hook_id;

-- name: insert_delivery
insert into messaging.hook_deliveries (tenant_id, delivery_id, hook_id, event, body, created_at) values ($1, $2, $3, $4, $5::jsonb, $6);

-- name: read_delivery
select d.delivery_id, d.hook_id, d.event, d.body::text as body, d.state, d.attempts, d.status, d.error, d.created_at, d.finished_at,
    h.url, h.sealed, h.active
from messaging.hook_deliveries d left join messaging.hooks h on h.tenant_id = d.tenant_id and h.hook_id = d.hook_id
where d.tenant_id = $1 and d.delivery_id = $2;

-- name: delivery_tried
update messaging.hook_deliveries
set attempts = attempts + 1, state = $3, status = $4, error = $5, finished_at = case when $3 = 'waiting' then null else $6::timestamptz end
where tenant_id = $1 and delivery_id = $2 and state = 'waiting'
returning attempts;

-- name: hook_works
update messaging.hooks set failing_since = null where tenant_id = $1 and hook_id = $2 and failing_since is not null;

-- Failing since its first failure after the last success. Too long, and it is switched off: told once.
-- name: hook_fails
update messaging.hooks set failing_since = coalesce(failing_since, $3),
    active = coalesce(failing_since, $3) > $4,
    off_reason = case when coalesce(failing_since, $3) > $4 then null else 'failing' end
where tenant_id = $1 and hook_id = $2 and active
returning active;

-- Once more under the same name: whoever has taken it already can tell.
-- name: redeliver
update messaging.hook_deliveries set state = 'waiting', finished_at = null
where tenant_id = $1 and delivery_id = $2 and state <> 'waiting'
returning delivery_id;

-- name: list_deliveries
select delivery_id, hook_id, event, state, attempts, status, error, created_at, finished_at
from messaging.hook_deliveries
where tenant_id = $1 and hook_id = $2 and ($3::uuid is null or delivery_id < $3) and ($5::text is null or state = $5)
order by delivery_id desc limit $4;

-- name: forget_deliveries
-- no-tenant: retention
delete from messaging.hook_deliveries
where state <> 'waiting' and ctid = any (array(
    select ctid from messaging.hook_deliveries where state <> 'waiting' and created_at < $1 order by created_at limit $2));
