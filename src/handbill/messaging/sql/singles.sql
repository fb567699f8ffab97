-- Single messages: rows of messaging.messages without a campaign, and what was asked for beside them.

-- name: read_single
select s.message_id, s.idempotency_key, s.digest, s.connection_id, s.content::text as content, s.purpose, s.reply_to, s.source,
    s.expires_at, s.created_by, m.channel, m.address, m.contact_id, m.number_id, m.fields::text as fields, m.state, m.reason, m.attempts,
    m.attempted_at, m.settled_at, m.wamid, m.accepted_at, m.sent_at, m.failed_at, m.delivered_at, m.read_at, m.error_code,
    m.error_details, s.created_at
from messaging.single_messages s
join messaging.messages m on m.tenant_id = s.tenant_id and m.message_id = s.message_id
where s.tenant_id = $1 and s.message_id = $2;

-- name: single_by_key
select message_id, digest from messaging.single_messages where tenant_id = $1 and idempotency_key = $2;

-- The newest first.
-- name: list_singles
select s.message_id, s.idempotency_key, s.digest, s.connection_id, s.content::text as content, s.purpose, s.reply_to, s.source,
    s.expires_at, s.created_by, m.channel, m.address, m.contact_id, m.number_id, m.fields::text as fields, m.state, m.reason, m.attempts,
    m.attempted_at, m.settled_at, m.wamid, m.accepted_at, m.sent_at, m.failed_at, m.delivered_at, m.read_at, m.error_code,
    m.error_details, s.created_at
from messaging.single_messages s
join messaging.messages m on m.tenant_id = s.tenant_id and m.message_id = s.message_id
where s.tenant_id = $1 and ($2::uuid is null or s.message_id < $2) and ($4::text is null or m.state = $4)
    and ($5::text is null or s.idempotency_key = $5) and ($6::text is null or m.address = $6)
order by s.message_id desc limit $3;

-- Both rows or none; none when the key is taken.
-- name: insert_single
with made as (
    insert into messaging.single_messages (
        tenant_id, message_id, idempotency_key, digest, connection_id, content, purpose, reply_to, source, expires_at, created_by,
        created_at, reported_state)
    values ($1, $2, $3, $4, $5, $6::jsonb, $7, $8, $9, $10, $11, $12, null)
    on conflict (tenant_id, idempotency_key) do nothing
    returning message_id
)
insert into messaging.messages (
    tenant_id, message_id, campaign_id, channel, address, contact_id, number_id, fields, zone, state, reason, due_at, settled_at, created_at)
select $1, made.message_id, null, $13, $14, $15, $16, $17::jsonb, null, case when $18::text is null then 'pending' else 'skipped' end, $18,
    $12, case when $18::text is null then null else $12 end, $12
from made
returning message_id;

-- How many messages of the tenant have no outcome yet, counted as far as $2.
-- name: count_open_singles
select count(*)::int from (select from messaging.single_messages where tenant_id = $1 and reported_state is null limit $2) x;

-- What stands against writing to one person now; no row or null: nothing.
-- name: may_not_send_single
select f.reason from messaging.may_not_send(
    $1, array[$2::text], array[$3::text], array[$4::uuid], array[$5::text], $6) f where $1::int is not null;  -- of this tenant_id

-- The numbers of a tenant that could send, and when the person last wrote to each.
-- name: senders_for
select n.number_id, n.connection_id,
    (select max(i.at) from messaging.inbound i where i.tenant_id = n.tenant_id and i.address = $2 and i.number_id = n.number_id) as wrote_at
from messaging.numbers n
where n.tenant_id = $1 and ($3::uuid is null or n.connection_id = $3) and ($4::text is null or n.number_id = $4)
order by n.connection_id, n.number_id;

-- name: inbound_sender
select connection_id, number_id, address from messaging.inbound where tenant_id = $1 and wamid = $2;

-- Begins the chain of turns that sends a number's single messages, unless one is alive. It waits for a claim that is under
-- way: either that claim saw the new message, or this begins a chain that will.
-- name: begin_singles
update messaging.numbers set single_turn = $3, single_until = $5
where tenant_id = $1 and number_id = $2 and single_until < $4
returning single_turn;

-- name: hold_singles
update messaging.numbers set single_turn = $3, single_until = $4 where tenant_id = $1 and number_id = $2;

-- Claims single messages, oldest first. What must not be sent is skipped with its reason; what may only be sent later (a full
-- tier) keeps its place. Whoever wrote to us within the window takes no place in the tier.
-- name: claim_singles
with due as (
    select p.message_id, p.channel, p.address, p.contact_id, p.due_at, p.attempts, p.created_at, p.fields,
        row_number() over (order by p.due_at, p.message_id) as place
    from (
        select m.message_id, m.channel, m.address, m.contact_id, m.due_at, m.attempts, m.created_at, m.fields
        from messaging.messages m
        where m.tenant_id = $1 and m.campaign_id is null and m.number_id = $2 and m.state = 'pending'
            and (m.attempts > 0) = any (array[false, true]) and m.due_at <= $4
        order by m.due_at, m.message_id
        limit $3
        for update skip locked
    ) p
),
asked as (
    select d.*, s.purpose, s.expires_at, s.connection_id, s.content, s.reply_to,
        (select max(i.at) from messaging.inbound i where i.tenant_id = $1 and i.address = d.address and i.number_id = $2) as wrote_at
    from due d join messaging.single_messages s on s.tenant_id = $1 and s.message_id = d.message_id
),
forbidden as (
    select f.place, f.reason
    from (
        select array_agg(a.channel order by a.place) as channels, array_agg(a.address order by a.place) as addresses,
            array_agg(a.contact_id order by a.place) as contact_ids, array_agg(a.purpose order by a.place) as purposes
        from asked a
    ) x
    cross join lateral messaging.may_not_send($1, x.channels, x.addresses, x.contact_ids, x.purposes, $4) f
    where f.reason is not null
),
judged as (
    select a.*, case when a.expires_at <= $4 then 'expired'
                     when a.purpose = 'marketing' and a.contact_id is null then coalesce(f.reason, 'consent_missing')
                     else f.reason end as no
    from asked a left join forbidden f on f.place = a.place
),
counted as (
    select count(*)::int as n, min(last_at) as oldest
    from (
        select r.last_at from messaging.reached r
        where r.tenant_id = $1 and r.portfolio = $6 and r.last_at > $8 and $7::int is not null
        order by r.last_at desc limit $7
    ) x
),
fitted as (
    select j.*, f.fresh,
        case when j.no is null and f.fresh
            and sum(case when j.no is null and f.fresh then 1 else 0 end) over (order by j.place) > $7 - c.n
        then greatest(c.oldest + ($4 - $8), $4 + interval '1 minute') end as later
    from judged j cross join counted c
    cross join lateral (
        select $7::int is not null and coalesce(j.wrote_at, '-infinity') <= $9 and not exists (
            select from messaging.reached r
            where r.tenant_id = $1 and r.portfolio = $6 and r.address = j.address and r.last_at > $8
        ) as fresh
    ) f
),
remembered as (
    insert into messaging.reached (tenant_id, portfolio, address, last_at)
    select distinct $1::int, $6::text, f.address, $4::timestamptz from fitted f
    where $7::int is not null and f.no is null and f.later is null and coalesce(f.wrote_at, '-infinity') <= $9
    on conflict (tenant_id, portfolio, address) do update set last_at = greatest(messaging.reached.last_at, excluded.last_at)
),
moved as (
    update messaging.messages m
    set state = case when f.no is not null then 'skipped' when f.later is not null then 'pending' else 'claimed' end,
        reason = f.no,
        due_at = coalesce(f.later, m.due_at),
        claim = case when f.no is null and f.later is null then $5::uuid end,
        claimed_at = case when f.no is null and f.later is null then $4 else m.claimed_at end,
        settled_at = case when f.no is not null then $4 end
    from fitted f
    where m.tenant_id = $1 and m.message_id = f.message_id
    returning m.message_id, m.address, m.state, m.reason, m.attempts, m.fields::text as fields, m.created_at, f.connection_id,
        f.content::text as content, f.reply_to, f.wrote_at, f.place
)
select * from moved order by place;

-- When the next single message of this number is due.
-- name: next_single
select min(m.due_at) from messaging.messages m
where m.tenant_id = $1 and m.campaign_id is null and m.number_id = $2 and m.state = 'pending'
    and (m.attempts > 0) = any (array[false, true]);

-- Numbers with single messages that have been due for a while and no living chain: their job was lost on the way.
-- name: ring_singles
-- no-tenant: the sweeper looks after every tenant; each row names its tenant
update messaging.numbers n set single_turn = gen_random_uuid(), single_until = $2
from (
    select w.tenant_id, w.number_id
    from messaging.numbers w
    where ($3::int is null or w.tenant_id = $3) and w.single_until < $1
        and coalesce(w.paused_until, '-infinity') <= $1
        and not exists (select from messaging.switches s where s.tenant_id = w.tenant_id and s.stopped)
        and exists (
            select from messaging.messages m
            where m.tenant_id = w.tenant_id and m.campaign_id is null and m.number_id = w.number_id and m.state = 'pending'
                and (m.attempts > 0) = any (array[false, true]) and m.due_at <= $4
        )
    order by w.tenant_id, w.number_id
    for update skip locked
) x
where n.tenant_id = x.tenant_id and n.number_id = x.number_id
returning n.tenant_id, n.number_id, n.single_turn as turn;

-- Their time is over and they were not sent: what is claimed or under way is left to its answer.
-- name: expire_singles
-- no-tenant: the sweeper looks after every tenant
update messaging.messages m set state = 'skipped', reason = 'expired', claim = null, settled_at = $1
from (
    select s.tenant_id, s.message_id
    from messaging.single_messages s join messaging.messages p on p.tenant_id = s.tenant_id and p.message_id = s.message_id
    where s.reported_state is null and s.expires_at <= $1 and p.state = 'pending'
    order by s.expires_at limit $2 for update of p skip locked
) x
where m.tenant_id = x.tenant_id and m.message_id = x.message_id and m.state = 'pending'
returning m.tenant_id, m.message_id;

-- What has become of single messages, each change once: only rows whose state differs from the one that was reported.
-- name: report_singles
update messaging.single_messages s
set reported_state = case when m.state in ('pending', 'claimed', 'sending') then null else m.state end
from unnest($1::int[], $2::uuid[]) as a (tenant_id, message_id)
join messaging.messages m on m.tenant_id = a.tenant_id and m.message_id = a.message_id
where s.tenant_id = a.tenant_id and s.message_id = a.message_id
    and s.reported_state is distinct from case when m.state in ('pending', 'claimed', 'sending') then null else m.state end
returning s.tenant_id, s.message_id, s.idempotency_key, m.address, m.state, m.reason, m.wamid, m.error_code, m.error_details;

-- Each accepted key has exactly one message, and each that was not sent a reason: what contradicts that, by kind.
-- name: verify_singles
select
    count(*)::int as messages,
    count(*) filter (where m.state in ('accepted', 'sent', 'delivered', 'read'))::int as sent,
    count(*) filter (where m.state = 'failed')::int as failed,
    count(*) filter (where m.state = 'skipped')::int as skipped,
    count(*) filter (where m.state = 'unknown')::int as unknown,
    count(*) filter (where m.state in ('pending', 'claimed', 'sending'))::int as open,
    count(*) filter (where m.message_id is null)::int as without_message,
    count(*) filter (where m.state in ('failed', 'skipped', 'unknown') and m.reason is null)::int as without_reason,
    count(*) filter (where m.state in ('accepted', 'sent', 'delivered', 'read') and m.attempts = 0)::int as without_attempt,
    count(*) filter (where m.state = 'skipped' and m.attempted_at is not null and m.wamid is not null)::int as skipped_though_sent
from messaging.single_messages s
left join messaging.messages m on m.tenant_id = s.tenant_id and m.message_id = s.message_id
where s.tenant_id = $1;

-- Erasure: as for campaigns. The digest goes too, for a number can be guessed from it; the key stays, so that no copy of
-- the request is sent to somebody who was erased.
-- name: erase_single_messages
with erased as (
    update messaging.messages m
    set address = 'erased:' || m.message_id, contact_id = null, fields = '{}', error_details = null,
        wamid = case when m.wamid is not null then 'erased' end, old_wamids = '{}',
        state = case when m.state in ('pending', 'claimed') then 'skipped' else m.state end,
        reason = case when m.state in ('pending', 'claimed') then 'erased' else m.reason end,
        claim = case when m.state in ('pending', 'claimed') then null else m.claim end
    where m.tenant_id = $1 and m.campaign_id is null and m.channel = 'whatsapp' and m.address = any ($2::text[])
    returning m.message_id, m.state
)
update messaging.single_messages s
set digest = '', reply_to = null, reported_state = case when e.state = 'skipped' then 'skipped' else s.reported_state end
from erased e where s.tenant_id = $1 and s.message_id = e.message_id;

-- name: export_single_messages
select m.message_id, s.idempotency_key, s.purpose, s.content::text as content, m.channel, m.address, m.contact_id,
    m.fields::text as fields, m.state, m.reason, m.accepted_at, m.sent_at, m.failed_at, m.delivered_at, m.read_at, m.error_code,
    m.error_details, m.created_at
from messaging.messages m join messaging.single_messages s on s.tenant_id = m.tenant_id and s.message_id = m.message_id
where m.tenant_id = $1 and m.campaign_id is null and m.channel = 'whatsapp' and m.address = any ($2::text[])
order by m.created_at, m.message_id limit $3;

-- A turn of single messages begins: as lock_number, for the chain of these.
-- name: lock_number_for_singles
select n.number_id, n.connection_id, n.per_second, n.tier, n.throttled, c.waba_id, c.portfolio,
    n.single_turn is not distinct from $3::uuid as ours, n.single_until as turn_until,
    coalesce(n.paused_until > $4, false) as paused, n.paused_until,
    coalesce(s.stopped, false) or t.status <> 'active' as stopped, s.per_second as tenant_pace, t.tier as tenant_tier
from messaging.numbers n
join messaging.connections c on c.tenant_id = n.tenant_id and c.connection_id = n.connection_id
join tenants.tenants t on t.tenant_id = n.tenant_id
left join messaging.switches s on s.tenant_id = n.tenant_id
where n.tenant_id = $1 and n.number_id = $2
for update of n;
