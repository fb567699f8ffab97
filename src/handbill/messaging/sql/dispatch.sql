-- Claiming, sending, settling, sweeping. The state of a message is drawn in docs/states/message.md.

-- A turn of a number begins: whoever holds its row is the only one that claims for it.
-- name: lock_number
select n.number_id, n.connection_id, n.per_second, n.tier, n.throttled, c.waba_id, c.portfolio,
    n.turn is not distinct from $3::uuid as ours, n.turn_until,
    coalesce(n.paused_until > $4, false) as paused, n.paused_until,
    coalesce(s.stopped, false) or t.status <> 'active' as stopped, s.per_second as tenant_pace, t.tier as tenant_tier
from messaging.numbers n
join messaging.connections c on c.tenant_id = n.tenant_id and c.connection_id = n.connection_id
join tenants.tenants t on t.tenant_id = n.tenant_id
left join messaging.switches s on s.tenant_id = n.tenant_id
where n.tenant_id = $1 and n.number_id = $2
for update of n;

-- One at a time, as claims of several numbers count the same things: money, a person's cap, the portfolio's tier. Always, for
-- a campaign that counts may begin between the look and the claim.
-- name: lock_counted
select pg_advisory_xact_lock(hashtextextended('handbill.messaging', $1::int)); -- tenant_id

-- Claims what may be sent now. What must not be sent is skipped with its reason in the same breath; what may only be
-- sent later (quiet hours where the person lives, a full tier) keeps its place with a later time. $10: since when the person
-- must have written to this number for free text. `foresee` (estimates.sql) predicts the reasons, in the same order.
-- name: claim
with flight as (
    select count(*)::int as n from messaging.messages
    where tenant_id = $1 and number_id = $2 and state in ('claimed', 'sending')
),
live as (
    select c.campaign_id, c.purpose, c.expires_at, c.cap_count, c.cap_hours, c.quiet_by, c.quiet_zone, c.quiet_from, c.quiet_to,
        c.content ->> 'type' = 'text' as is_free_text,
        case when c.spend_cap is null or c.price = 0 then 1000000
             else greatest(least(floor((c.spend_cap - c.spent) / c.price), 1000000), 0)::int end as affordable
    from messaging.campaigns c
    where c.tenant_id = $1 and c.state = 'running' and $2 = any (c.numbers)
        and (c.quiet_by is distinct from 'tenant'
             or messaging.quiet_until(c.quiet_zone, c.quiet_from, c.quiet_to, $5) is null)
),
due as (
    select l.campaign_id, m.message_id, m.channel, m.address, m.contact_id, m.zone, m.due_at
    from live l cross join lateral (
        select p.message_id, p.channel, p.address, p.contact_id, p.zone, p.due_at
        from messaging.messages p
        where p.tenant_id = $1 and p.campaign_id = l.campaign_id and p.number_id = $2 and p.state = 'pending'
            and (p.attempts > 0) = $4 and p.due_at <= $5
        order by p.due_at
        limit least($3, l.affordable)
        for update skip locked
    ) m
),
picked as (
    select d.*, row_number() over (order by d.turn, d.campaign_id) as place
    from (
        select due.*, row_number() over (partition by due.campaign_id order by due.due_at, due.message_id) as turn from due
    ) d
    order by d.turn, d.campaign_id
    limit greatest($3 - (select n from flight), 0)
),
forbidden as (
    select f.place, f.reason
    from (
        select array_agg(p.channel order by p.place) as channels, array_agg(p.address order by p.place) as addresses,
            array_agg(p.contact_id order by p.place) as contact_ids, array_agg(l.purpose order by p.place) as purposes
        from picked p join live l using (campaign_id)
    ) a
    cross join lateral messaging.may_not_send($1, a.channels, a.addresses, a.contact_ids, a.purposes, $5) f
    where f.reason is not null
),
judged as (
    select p.message_id, p.campaign_id, p.address, p.place,
        case
            when l.expires_at <= $5 then 'expired'
            when l.cap_count is not null and row_number() over (partition by p.channel, p.address order by p.place) - 1 + (
                select count(*) from messaging.messages o
                where o.tenant_id = $1 and o.channel = p.channel and o.address = p.address
                    and o.claimed_at > $5 - make_interval(hours => l.cap_hours)
                    and (o.state not in ('pending', 'skipped', 'failed') or o.reason = 'unknown')
                    and (o.campaign_id is not null or exists (  -- a receipt or an answer uses nothing of it up
                        select from messaging.single_messages x
                        where x.tenant_id = o.tenant_id and x.message_id = o.message_id and x.purpose = 'marketing'))
            ) >= l.cap_count then 'person_cap'
            when f.reason is not null then f.reason
            when l.is_free_text and not exists (
                select from messaging.inbound i
                where i.tenant_id = $1 and i.address = p.address and i.number_id = $2 and i.at > $10
                    and i.at < $5 + interval '5 minutes'
            ) then 'window_closed'
        end as no,
        case when l.quiet_by = 'contact'
             then messaging.quiet_until(coalesce(p.zone, l.quiet_zone), l.quiet_from, l.quiet_to, $5) end as quiet
    from picked p join live l using (campaign_id) left join forbidden f on f.place = p.place
),
counted as (
    select count(*)::int as n, min(last_at) as oldest
    from (
        select r.last_at from messaging.reached r
        where r.tenant_id = $1 and r.portfolio = $7 and r.last_at > $9 and $8::int is not null
        order by r.last_at desc limit $8
    ) x
),
fitted as (
    select j.message_id, j.campaign_id, j.address, j.no,
        coalesce(
            j.quiet,
            case when j.no is null and $8::int is not null and j.quiet is null and f.fresh
                and sum(case when j.no is null and j.quiet is null and f.fresh then 1 else 0 end) over (order by j.place)
                    > $8 - c.n
            then greatest(c.oldest + ($5 - $9), $5 + interval '1 minute') end
        ) as later
    from judged j cross join counted c
    cross join lateral (
        select $8::int is not null and not exists (
            select from messaging.reached r
            where r.tenant_id = $1 and r.portfolio = $7 and r.address = j.address and r.last_at > $9
        ) as fresh
    ) f
),
remembered as (
    insert into messaging.reached (tenant_id, portfolio, address, last_at)
    select distinct $1::int, $7::text, f.address, $5::timestamptz from fitted f
    where $8::int is not null and f.no is null and f.later is null
    on conflict (tenant_id, portfolio, address) do update set last_at = greatest(messaging.reached.last_at, excluded.last_at)
),
paid as (
    update messaging.campaigns c set spent = c.spent + c.price * s.n
    from (select campaign_id, count(*) as n from fitted where no is null and later is null group by campaign_id) s
    where c.tenant_id = $1 and c.campaign_id = s.campaign_id and c.spend_cap is not null
),
moved as (
    update messaging.messages m
    set state = case when f.no is not null then 'skipped' when f.later is not null then 'pending' else 'claimed' end,
        reason = f.no,
        due_at = coalesce(f.later, m.due_at),
        claim = case when f.no is null and f.later is null then $6::uuid end,
        claimed_at = case when f.no is null and f.later is null then $5 else m.claimed_at end,
        settled_at = case when f.no is not null then $5 end
    from fitted f
    where m.tenant_id = $1 and m.message_id = f.message_id
    returning m.message_id, m.campaign_id, m.address, m.state, m.reason, m.attempts, m.fields::text as fields, m.created_at
)
select * from moved;

-- Whether this number has more to do now, and when the next thing is due at the latest.
-- name: next_due
select min(m.due_at) as due_at
from messaging.campaigns c cross join lateral (
    select p.due_at from messaging.messages p
    where p.tenant_id = $1 and p.campaign_id = c.campaign_id and p.number_id = $2 and p.state = 'pending' and (p.attempts > 0) = $3
    order by p.due_at limit 1
) m
where c.tenant_id = $1 and c.state = 'running' and $2 = any (c.numbers)
    and (c.spend_cap is null or c.price = 0 or c.spend_cap - c.spent >= c.price)
    and (c.quiet_by is distinct from 'tenant'
         or messaging.quiet_until(c.quiet_zone, c.quiet_from, c.quiet_to, $4) is null);

-- name: hold_turn
update messaging.numbers set turn = $3, turn_until = $4 where tenant_id = $1 and number_id = $2;

-- A chain of turns for numbers that have due work and no living chain. The lease makes a lost chain begin anew.
-- name: ring_numbers
-- no-tenant: the poller and every launch ring whatever number has work; each row names its tenant
update messaging.numbers n set turn = gen_random_uuid(), turn_until = $2
from (
    select w.tenant_id, w.number_id
    from messaging.numbers w
    where ($3::int is null or w.tenant_id = $3) and w.turn_until < $1
        and coalesce(w.paused_until, '-infinity') <= $1
        and not exists (select from messaging.switches s where s.tenant_id = w.tenant_id and s.stopped)
        and exists (
            select from messaging.campaigns c cross join lateral (
                select from messaging.messages p
                where p.tenant_id = c.tenant_id and p.campaign_id = c.campaign_id and p.number_id = w.number_id
                    and p.state = 'pending' and (p.attempts > 0) = false and p.due_at <= $1
                limit 1
            ) m
            where c.tenant_id = w.tenant_id and c.state = 'running' and w.number_id = any (c.numbers)
        )
    order by w.tenant_id, w.number_id
    for update skip locked
) x
where n.tenant_id = x.tenant_id and n.number_id = x.number_id
returning n.tenant_id, n.number_id, n.turn;

-- Numbers whose second tries are due.
-- name: due_retries
-- no-tenant: the poller looks after every tenant's retries; each row names its tenant
select n.tenant_id, n.number_id
from messaging.numbers n
where ($2::int is null or n.tenant_id = $2) and coalesce(n.paused_until, '-infinity') <= $1
    and not exists (select from messaging.switches s where s.tenant_id = n.tenant_id and s.stopped)
    and exists (
        select from messaging.campaigns c cross join lateral (
            select from messaging.messages p
            where p.tenant_id = c.tenant_id and p.campaign_id = c.campaign_id and p.number_id = n.number_id
                and p.state = 'pending' and (p.attempts > 0) = true and p.due_at <= $1
            limit 1
        ) m
        where c.tenant_id = n.tenant_id and c.state = 'running' and n.number_id = any (c.numbers)
    )
order by n.tenant_id, n.number_id limit 1000;

-- The attempt, committed just before the request is written. What is not returned must not be sent. Rows are found by
-- their key: the state is wrapped, lest the planner walk all that is claimed once for each of them.
-- name: record_attempts
update messaging.messages m
set state = 'sending', attempts = m.attempts + 1, attempted_at = $4, wamid = null
from unnest($1::int[], $2::uuid[], $3::uuid[]) as a (tenant_id, message_id, claim)
where m.tenant_id = a.tenant_id and m.message_id = a.message_id and m.claim = a.claim and coalesce(m.state, '') = 'claimed'
    and (m.campaign_id is null or exists (  -- a single message has none
        select from messaging.campaigns c where c.tenant_id = m.tenant_id and c.campaign_id = m.campaign_id and c.state = 'running'))
    and not exists (select from messaging.switches s where s.tenant_id = m.tenant_id and s.stopped)
returning m.message_id;

-- What came of them. A webhook may have been faster: what it said stays, the answer only adds.
--   accepted  the provider's name for it
--   failed    refused for good           again  refused for now, or never written: back in its place, due later
--   unknown   nobody can tell            back   claimed and not tried: back in its place
--   skipped   claimed, and it turned out that it must not go
-- name: settle
with asked as (
    select * from unnest($1::int[], $2::uuid[], $3::uuid[], $4::text[], $5::text[], $6::text[], $7::int[], $8::text[], $9::timestamptz[])
        as a (tenant_id, message_id, claim, kind, wamid, reason, code, details, due_at)
),
held as (
    select m.tenant_id, m.message_id
    from messaging.messages m join asked a on a.tenant_id = m.tenant_id and a.message_id = m.message_id
    order by m.tenant_id, m.message_id
    for update of m
)
update messaging.messages m
set state = case
        when a.kind in ('back', 'again') then 'pending'
        when a.kind = 'accepted' and m.state in ('sent', 'delivered', 'read') then m.state
        when a.kind = 'accepted' and m.failed_at is not null then m.state
        else a.kind end,
    reason = case when a.kind = 'accepted' then (case when m.failed_at is not null then m.reason end) else a.reason end,
    wamid = coalesce(a.wamid, m.wamid),
    error_code = coalesce(a.code, m.error_code),
    error_details = coalesce(a.details, m.error_details),
    accepted_at = case when a.kind = 'accepted' then coalesce(m.accepted_at, $10) else m.accepted_at end,
    due_at = coalesce(a.due_at, m.due_at),
    claim = case when a.kind in ('back', 'again') then null else m.claim end,
    settled_at = case when a.kind in ('back', 'again', 'unknown') then null else $10 end
from asked a, held h
where m.tenant_id = a.tenant_id and m.message_id = a.message_id and h.tenant_id = m.tenant_id and h.message_id = m.message_id
    and m.claim = a.claim
    and case a.kind
        when 'accepted' then m.state in ('sending', 'unknown', 'sent', 'delivered', 'read', 'failed')
        when 'failed' then m.state in ('sending', 'unknown')
        when 'unknown' then m.state = 'sending'
        when 'again' then m.state in ('sending', 'unknown') and m.sent_at is null and m.delivered_at is null and m.read_at is null
        when 'back' then m.state = 'claimed'
        when 'skipped' then m.state = 'claimed'
    end
returning m.tenant_id, m.message_id, m.campaign_id is null as single;

-- A claim whose worker is gone, with no attempt recorded: nothing was written, it may go again.
-- name: sweep_claims
-- no-tenant: the sweeper looks after every tenant
update messaging.messages m set state = 'pending', claim = null
from (
    select tenant_id, message_id from messaging.messages
    where state = 'claimed' and claimed_at < $1
    order by tenant_id, message_id limit $2 for update skip locked
) x
where m.tenant_id = x.tenant_id and m.message_id = x.message_id and m.state = 'claimed'
returning m.tenant_id, m.message_id, m.campaign_id is null as single;

-- An attempt without an answer: it may have arrived. Only a webhook can tell.
-- name: sweep_attempts
-- no-tenant: the sweeper looks after every tenant
update messaging.messages m set state = 'unknown', reason = 'unknown'
from (
    select tenant_id, message_id from messaging.messages
    where state = 'sending' and attempted_at < $1
    order by tenant_id, message_id limit $2 for update skip locked
) x
where m.tenant_id = x.tenant_id and m.message_id = x.message_id and m.state = 'sending'
returning m.tenant_id, m.message_id, m.campaign_id is null as single;

-- The deadline: no webhook has told. Failed, never sent again by a machine; a webhook that comes later still lifts it.
-- name: sweep_unknown
-- no-tenant: the sweeper looks after every tenant
update messaging.messages m set state = 'failed', reason = 'unknown', settled_at = $3
from (
    select tenant_id, message_id from messaging.messages
    where state = 'unknown' and attempted_at < $1
    order by tenant_id, message_id limit $2 for update skip locked
) x
where m.tenant_id = x.tenant_id and m.message_id = x.message_id and m.state = 'unknown'
returning m.tenant_id, m.message_id, m.campaign_id is null as single;

-- name: pause_number
update messaging.numbers set paused_until = $3, pause_reason = $4, updated_at = $5
where tenant_id = $1 and number_id = $2 and (paused_until is null or paused_until < $3)
returning number_id;

-- name: undeliverable_hit
insert into messaging.undeliverable (tenant_id, channel, address, hits, last_at) values ($1, $2, $3, 1, $4)
on conflict (tenant_id, channel, address) do update set hits = messaging.undeliverable.hits + 1, last_at = $4
returning hits;

-- name: forget_reached
-- no-tenant: retention
-- The next portfolio behind a place, and at most so many of its old rows: the index is by portfolio and time.
with next as (
    select tenant_id, portfolio from messaging.reached
    where (tenant_id, portfolio) > ($2::int, $3::text) order by tenant_id, portfolio limit 1
), gone as (
    delete from messaging.reached
    where last_at < $1 and ctid = any (array(
        select r.ctid from next n cross join lateral (
            select ctid from messaging.reached
            where tenant_id = n.tenant_id and portfolio = n.portfolio and last_at < $1 order by last_at limit $4
        ) r))
    returning 1
)
select (select count(*)::int from gone), tenant_id, portfolio from next;
