-- Webhooks: kept, then worked on; and what people wrote.

-- name: keep_webhooks
insert into messaging.webhook_inbox (tenant_id, digest, connection_id, received_at, body)
select $1, k.digest, k.connection_id, $2, k.body
from unnest($3::bytea[], $4::uuid[], $5::bytea[]) as k (digest, connection_id, body)
on conflict (tenant_id, digest) do nothing
returning digest;

-- The oldest, until they are $2 bytes together; one at least.
-- name: take_webhooks
-- no-tenant: the worker reads every tenant's inbox; each row names its tenant
with locked as materialized (
    select tenant_id, digest, received_at, octet_length(body) as size from messaging.webhook_inbox
    where state = 'new' order by received_at limit $1
    for update skip locked
),
sized as (
    select tenant_id, digest, sum(size) over (order by received_at, tenant_id, digest) - size as bytes_before from locked
)
select w.tenant_id, w.digest, w.connection_id, w.received_at, w.body, w.tries
from sized s join messaging.webhook_inbox w on w.tenant_id = s.tenant_id and w.digest = s.digest
where s.bytes_before < $2
order by w.received_at, w.tenant_id, w.digest;

-- name: take_webhook
select tenant_id, digest, connection_id, received_at, body, tries from messaging.webhook_inbox
where tenant_id = $1 and digest = $2 and state = 'new'
for update skip locked;

-- name: webhooks_done
update messaging.webhook_inbox w set state = 'done', error = null
from unnest($1::int[], $2::bytea[]) as d (tenant_id, digest)
where w.tenant_id = d.tenant_id and w.digest = d.digest;

-- name: webhook_failed
update messaging.webhook_inbox
set tries = tries + 1, error = $3, state = case when tries + 1 >= $4 then 'parked' else 'new' end
where tenant_id = $1 and digest = $2 and state = 'new'
returning state;

-- name: replay_parked
update messaging.webhook_inbox set state = 'new', tries = 0 where tenant_id = $1 and state = 'parked';

-- name: list_webhooks
select digest, connection_id, received_at, tries, error, octet_length(body) as size
from messaging.webhook_inbox
where tenant_id = $1 and state = $2 and ($3::timestamptz is null or (received_at, digest) > ($3, $4))
order by received_at, digest limit $5;

-- name: forget_webhooks
-- no-tenant: retention
delete from messaging.webhook_inbox
where state = 'done' and ctid = any (array(
    select ctid from messaging.webhook_inbox where state = 'done' and received_at < $1 order by received_at limit $2));

-- Statuses join what is known: the first time of each, the greatest decides. One row per message: they were folded before.
-- A status of a send that was given up for another (old_wamids) counts only as proof that it arrived after all.
-- name: apply_statuses
with said as (
    select * from unnest($1::int[], $2::uuid[], $3::text[], $4::timestamptz[], $5::timestamptz[], $6::timestamptz[], $7::timestamptz[],
                         $8::int[], $9::text[])
        as s (tenant_id, message_id, wamid, sent_at, failed_at, delivered_at, read_at, code, details)
),
held as (
    select m.tenant_id, m.message_id, s.wamid as said_wamid, s.code, s.details,
        least(m.sent_at, s.sent_at) as sent_at, least(m.failed_at, s.failed_at) as failed_at,
        least(m.delivered_at, s.delivered_at) as delivered_at, least(m.read_at, s.read_at) as read_at,
        -- an error may come in the answer and by webhook too: it is one error
        s.failed_at is not null and m.failed_at is null
            and not (m.state = 'failed' and m.error_code is not distinct from s.code) as fresh,
        s.failed_at is not null and (m.failed_at is null or (s.failed_at, s.code, s.details collate "C")
            < (m.failed_at, coalesce(m.error_code, 0), coalesce(m.error_details, '') collate "C")) as newly
    from messaging.messages m join said s on s.tenant_id = m.tenant_id and s.message_id = m.message_id
    where not s.wamid = any (m.old_wamids) or s.delivered_at is not null or s.read_at is not null
    order by m.tenant_id, m.message_id
    for update of m
)
update messaging.messages m
set sent_at = h.sent_at, failed_at = h.failed_at, delivered_at = h.delivered_at, read_at = h.read_at,
    error_code = case when h.newly then h.code else m.error_code end,
    error_details = case when h.newly then h.details else m.error_details end,
    wamid = coalesce(m.wamid, h.said_wamid),
    state = case when h.read_at is not null then 'read' when h.delivered_at is not null then 'delivered'
                 when h.failed_at is not null then 'failed' when h.sent_at is not null then 'sent' else m.state end,
    reason = case when h.read_at is not null or h.delivered_at is not null then null
                  when h.failed_at is not null then 'provider_' || (case when h.newly then h.code else m.error_code end)
                  when h.sent_at is not null then null else m.reason end,
    settled_at = coalesce(m.settled_at, $10)
from held h
where m.tenant_id = h.tenant_id and m.message_id = h.message_id
returning m.tenant_id, m.message_id, m.campaign_id, m.channel, m.address, m.number_id, m.state, m.error_code, h.fresh;

-- Failures with one code, none of them delivered between. Paused, it begins again, so that a resumed campaign gets as many tries.
-- name: add_failures_in_row
update messaging.campaigns
set failed_in_row = case when failed_code = $3 and state <> 'paused' then failed_in_row else 0 end + $4, failed_code = $3
where tenant_id = $1 and campaign_id = $2
returning failed_in_row;

-- name: clear_failures_in_row
-- no-tenant: each campaign with its tenant's number
update messaging.campaigns c set failed_in_row = 0
from (
    select x.tenant_id, x.campaign_id
    from unnest($1::int[], $2::uuid[]) as a (tenant_id, campaign_id)
    join messaging.campaigns x on x.tenant_id = a.tenant_id and x.campaign_id = a.campaign_id and x.failed_in_row > 0
    order by x.tenant_id, x.campaign_id for update of x
) f
where c.tenant_id = f.tenant_id and c.campaign_id = f.campaign_id;

-- A status without our own note: found by the address it went to and the provider's name for it.
-- name: find_by_wamid
select w.tenant_id, w.wamid, m.message_id
from unnest($1::int[], $2::text[], $3::text[], $4::text[]) as w (tenant_id, channel, address, wamid)
join messaging.messages m on m.tenant_id = w.tenant_id and m.channel = w.channel and m.address = w.address and m.claimed_at is not null
    and (m.wamid = w.wamid or w.wamid = any (m.old_wamids));

-- name: arrived
delete from messaging.undeliverable u
using unnest($1::int[], $2::text[], $3::text[]) as a (tenant_id, channel, address)
where u.tenant_id = a.tenant_id and u.channel = a.channel and u.address = a.address;

-- name: keep_inbound
insert into messaging.inbound (tenant_id, wamid, connection_id, number_id, address, name, at, kind, text, payload, media_id, reply_to, wish)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
on conflict (tenant_id, wamid) do nothing
returning wamid;

-- name: list_inbound
select wamid, connection_id, number_id, address, name, at, kind, text, payload, media_id, reply_to, wish
from messaging.inbound
where tenant_id = $1 and ($2::text is null or address = $2) and ($3::timestamptz is null or (at, wamid) < ($3, $4))
    and ($6::text is null or number_id = $6) and (not $7 or wish is not null) and ($8::timestamptz is null or at >= $8)
order by at desc, wamid desc limit $5;

-- name: keep_preference
insert into messaging.preferences (tenant_id, channel, address, wish, at) values ($1, $2, $3, $4, $5)
on conflict (tenant_id, channel, address) do update set wish = excluded.wish, at = excluded.at
where messaging.preferences.at < excluded.at
    or (messaging.preferences.at = excluded.at and excluded.wish = 'stop' and messaging.preferences.wish = 'resume')
returning wish;

-- name: keep_alert
insert into messaging.alerts (tenant_id, alert_key, connection_id, at, field, event, body) values ($1, $2, $3, $4, $5, $6, $7)
on conflict (tenant_id, alert_key) do nothing
returning alert_key;

-- name: list_alerts
select alert_key, connection_id, at, field, event, body from messaging.alerts
where tenant_id = $1 and ($2::timestamptz is null or (at, alert_key) < ($2, $3)) order by at desc, alert_key desc limit $4;

-- Erasure: the address and what was said go; the countable row stays, under a name nobody can read back.
-- name: erase_messages
-- By portions of campaigns: the index that keeps an address once in a campaign is the one that leads to it. The provider's
-- name for a message has the person's number in it, for whoever decodes it; a word stays, so that no late status brings it back.
update messaging.messages m
set address = 'erased:' || m.message_id, contact_id = null, fields = '{}', zone = null, error_details = null,
    wamid = case when m.wamid is not null then 'erased' end, old_wamids = '{}',
    state = case when m.state in ('pending', 'claimed') then 'skipped' else m.state end,
    reason = case when m.state in ('pending', 'claimed') then 'erased' else m.reason end,
    claim = case when m.state in ('pending', 'claimed') then null else m.claim end
from messaging.campaigns c
where c.tenant_id = $1 and c.campaign_id = any ($3::uuid[])
    and m.tenant_id = $1 and m.campaign_id = c.campaign_id and m.channel = c.channel and m.address = any ($2::text[]);

-- name: campaign_ids
select campaign_id from messaging.campaigns where tenant_id = $1 and campaign_id > $2 order by campaign_id limit $3;

-- name: addresses_of
select a from messaging.addresses_of($1, $2) a where a is not null and $1::int is not null;  -- of this tenant_id

-- name: erase_inbound
update messaging.inbound set wamid = 'erased:' || gen_random_uuid(), address = 'erased', name = '', text = '', payload = '',
    media_id = null, reply_to = null
where tenant_id = $1 and address = any ($2::text[]);

-- The primary keys of the next three have a column before the address that takes few values: they are read off the index.
-- name: erase_reached
with recursive portfolios as (
    (select portfolio from messaging.reached where tenant_id = $1 order by portfolio limit 1)
    union all
    select (select r.portfolio from messaging.reached r where r.tenant_id = $1 and r.portfolio > p.portfolio
            order by r.portfolio limit 1)
    from portfolios p where p.portfolio is not null
)
delete from messaging.reached
where tenant_id = $1 and portfolio = any (array(select portfolio from portfolios)) and address = any ($2::text[]);

-- name: erase_undeliverable
with recursive channels as (
    (select channel from messaging.undeliverable where tenant_id = $1 order by channel limit 1)
    union all
    select (select u.channel from messaging.undeliverable u where u.tenant_id = $1 and u.channel > c.channel
            order by u.channel limit 1)
    from channels c where c.channel is not null
)
delete from messaging.undeliverable
where tenant_id = $1 and channel = any (array(select channel from channels)) and address = any ($2::text[]);

-- name: erase_preferences
with recursive channels as (
    (select channel from messaging.preferences where tenant_id = $1 order by channel limit 1)
    union all
    select (select p.channel from messaging.preferences p where p.tenant_id = $1 and p.channel > c.channel
            order by p.channel limit 1)
    from channels c where c.channel is not null
)
delete from messaging.preferences
where tenant_id = $1 and channel = any (array(select channel from channels)) and address = any ($2::text[]);

-- Bodies as they came have no index that leads to a person: they are searched, a portion at a time.
-- name: erase_webhooks
with portion as (
    select digest, exists (
        select from unnest($2::text[]) a where position(convert_to(ltrim(a, '+'), 'UTF8') in body) > 0) as matches
    from messaging.webhook_inbox where tenant_id = $1 and digest > $3::bytea order by digest limit $4
), gone as (
    delete from messaging.webhook_inbox
    where tenant_id = $1 and state <> 'new' and digest = any (array(select digest from portion where matches)) returning 1
)
select (select count(*)::int from gone), digest from portion order by digest desc limit 1;

-- name: erase_alerts
with portion as (
    select alert_key, exists (
        select from unnest($2::text[]) a where position(convert_to(ltrim(a, '+'), 'UTF8') in body) > 0) as matches
    from messaging.alerts where tenant_id = $1 and alert_key > $3::text order by alert_key limit $4
), gone as (
    delete from messaging.alerts
    where tenant_id = $1 and alert_key = any (array(select alert_key from portion where matches)) returning 1
)
select (select count(*)::int from gone), alert_key from portion order by alert_key desc limit 1;

-- name: erase_deliveries
with portion as (
    select delivery_id, exists (select from unnest($2::text[]) a where position(a in body::text) > 0) as matches
    from messaging.hook_deliveries where tenant_id = $1 and delivery_id > $3::uuid order by delivery_id limit $4
), cleared as (
    update messaging.hook_deliveries set body = '{}', state = case when state = 'waiting' then 'failed' else state end,
        error = case when state = 'waiting' then 'erased' else error end
    where tenant_id = $1 and delivery_id = any (array(select delivery_id from portion where matches)) returning 1
)
select (select count(*)::int from cleared), delivery_id from portion order by delivery_id desc limit 1;

-- name: export_messages
select m.message_id, m.campaign_id, c.name as campaign, m.channel, m.address, m.contact_id, m.fields::text as fields, m.zone, m.state,
    m.reason, m.accepted_at, m.sent_at, m.failed_at, m.delivered_at, m.read_at, m.error_code, m.error_details, m.created_at
from messaging.campaigns c
join messaging.messages m on m.tenant_id = $1 and m.campaign_id = c.campaign_id and m.channel = c.channel and m.address = any ($2::text[])
where c.tenant_id = $1 order by m.created_at, m.message_id limit $3;

-- name: export_inbound
select wamid, number_id, address, name, at, kind, text, payload, media_id, reply_to, wish from messaging.inbound
where tenant_id = $1 and address = any ($2::text[]) order by at, wamid limit $3;

-- name: export_preferences
select channel, address, wish, at from messaging.preferences
where tenant_id = $1 and address = any ($2::text[]) order by channel, address limit $3;

-- name: export_reached
select portfolio, address, last_at from messaging.reached
where tenant_id = $1 and address = any ($2::text[]) order by portfolio, address limit $3;

-- name: export_undeliverable
select channel, address, hits, last_at from messaging.undeliverable
where tenant_id = $1 and address = any ($2::text[]) order by channel, address limit $3;
