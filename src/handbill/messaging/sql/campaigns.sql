-- name: insert_campaign
insert into messaging.campaigns (
    tenant_id, campaign_id, name, channel, connection_id, numbers, content, bindings, audience, purpose, state, scheduled_at,
    expires_at, quiet_from, quiet_to, quiet_zone, quiet_by, cap_count, cap_hours, price, spend_cap, currency, created_by,
    created_at, updated_at
)
values ($1, $2, $3, $4, $5, $6, $7::jsonb, $8::jsonb, $9::jsonb, $10, 'draft', $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21,
    $22, $23, $23)
returning *, content::text as content_text, bindings::text as bindings_text, audience::text as audience_text;

-- name: update_campaign
update messaging.campaigns
set name = $3, connection_id = $4, numbers = $5, content = $6::jsonb, bindings = $7::jsonb, audience = $8::jsonb, purpose = $9,
    scheduled_at = $10, expires_at = $11, quiet_from = $12, quiet_to = $13, quiet_zone = $14, quiet_by = $15, cap_count = $16,
    cap_hours = $17, price = $18, spend_cap = $19, currency = $20, updated_at = $21, version = version + 1
where tenant_id = $1 and campaign_id = $2 and state = 'draft'
returning *, content::text as content_text, bindings::text as bindings_text, audience::text as audience_text;

-- name: delete_campaign
delete from messaging.campaigns where tenant_id = $1 and campaign_id = $2 and state = 'draft';

-- name: read_campaign
select *, content::text as content_text, bindings::text as bindings_text, audience::text as audience_text
from messaging.campaigns where tenant_id = $1 and campaign_id = $2;

-- name: lock_campaign
select *, content::text as content_text, bindings::text as bindings_text, audience::text as audience_text
from messaging.campaigns where tenant_id = $1 and campaign_id = $2 for update;

-- name: list_campaigns
select *, content::text as content_text, bindings::text as bindings_text, audience::text as audience_text
from messaging.campaigns
where tenant_id = $1 and ($2::uuid is null or campaign_id > $2) and ($4::text is null or state = $4)
order by campaign_id limit $3;

-- name: move_campaign
update messaging.campaigns
set state = $3, reason = $4, resume_to = $5, scheduled_at = coalesce($6, scheduled_at), updated_at = $7, version = version + 1,
    queued_at = case when $3 = 'queued' then coalesce(queued_at, $7) else queued_at end,
    started_at = case when $3 = 'running' then coalesce(started_at, $7) else started_at end,
    ended_at = case when $3 in ('completed', 'cancelled', 'expired') then $7 else null end
where tenant_id = $1 and campaign_id = $2
returning *, content::text as content_text, bindings::text as bindings_text, audience::text as audience_text;

-- Campaigns whose time has come, in rounds: every tenant's oldest first, then at most two ($3) more of each until as many are
-- chosen as may begin.
-- name: ready_campaigns
-- no-tenant: the poller chooses fairly among all tenants
with recursive tenants_ready as (
    (select c.tenant_id from messaging.campaigns c where c.state = 'queued' order by c.tenant_id limit 1)
    union all
    select (select c.tenant_id from messaging.campaigns c where c.state = 'queued' and c.tenant_id > r.tenant_id order by c.tenant_id limit 1)
    from tenants_ready r where r.tenant_id is not null
),
ready as (
    select r.tenant_id, q.campaign_id, q.scheduled_at, q.turn
    from tenants_ready r cross join lateral (
        select x.campaign_id, x.scheduled_at, row_number() over (order by x.scheduled_at, x.campaign_id) as turn
        from (
            select c.campaign_id, c.scheduled_at from messaging.campaigns c
            where c.tenant_id = r.tenant_id and c.state = 'queued' and c.scheduled_at <= $1
            order by c.scheduled_at, c.campaign_id limit $2
        ) x
    ) q
    where r.tenant_id is not null
        and not exists (select from messaging.switches s where s.tenant_id = r.tenant_id and s.stopped)
)
select tenant_id, campaign_id, turn from ready
order by case when turn = 1 then 0 else (turn + $3 - 1) / $3 end, scheduled_at, campaign_id
limit $2;

-- name: due_scheduled
-- no-tenant: the poller looks after every tenant
update messaging.campaigns set state = 'queued', queued_at = $1, updated_at = $1, version = version + 1
where state = 'scheduled' and scheduled_at <= $1
returning tenant_id, campaign_id;

-- name: expired_campaigns
-- no-tenant: the poller looks after every tenant
select tenant_id, campaign_id from messaging.campaigns
where state in ('scheduled', 'queued', 'running', 'paused') and expires_at <= $1
order by tenant_id, campaign_id limit 100;

-- name: begin_campaign
update messaging.campaigns set state = 'running', started_at = coalesce(started_at, $3), updated_at = $3, version = version + 1
where tenant_id = $1 and campaign_id = $2 and state = 'queued'
returning campaign_id;

-- name: audience_written
update messaging.campaigns
set audience_after = $3, audience_done = $4, audience_size = audience_size + $5, updated_at = $6
where tenant_id = $1 and campaign_id = $2 and audience_after is not distinct from $7::uuid and not audience_done
returning campaign_id;

-- Pages may be written twice: whoever is there already stays as he is.
-- name: insert_messages
insert into messaging.messages (tenant_id, message_id, campaign_id, channel, address, contact_id, number_id, fields, zone, due_at, created_at)
select $1, p.message_id, $2, $3, p.address, p.contact_id, p.number_id, p.fields, p.zone, $4, $4
from unnest($5::uuid[], $6::text[], $7::uuid[], $8::text[], $9::jsonb[], $10::text[])
    as p (message_id, address, contact_id, number_id, fields, zone)
on conflict (tenant_id, campaign_id, channel, address) do nothing
returning message_id;

-- What will not be sent any more, in pages: neither claimed ones whose attempt is under way nor anything sent.
-- name: skip_rest
with some_of as (
    select tenant_id, message_id from messaging.messages
    where tenant_id = $1 and campaign_id = $2 and state in ('pending', 'claimed')
    order by message_id limit $3
    for update skip locked
)
update messaging.messages m set state = 'skipped', reason = $4, claim = null, settled_at = $5
from some_of s where m.tenant_id = s.tenant_id and m.message_id = s.message_id
returning m.message_id;

-- A campaign is over when everybody has been dealt with; what is unknown may still become known.
-- name: finished_campaigns
-- no-tenant: the poller looks after every tenant
select c.tenant_id, c.campaign_id from messaging.campaigns c
where c.state = 'running' and c.audience_done and ($1::int is null or c.tenant_id = $1)
    and not exists (
        select from messaging.messages m
        where m.tenant_id = c.tenant_id and m.campaign_id = c.campaign_id and m.state = 'pending'
    )
    and not exists (
        select from messaging.messages m
        where m.tenant_id = c.tenant_id and m.number_id = any (c.numbers) and m.state in ('claimed', 'sending')
            and m.campaign_id = c.campaign_id
    )
order by c.tenant_id, c.campaign_id limit 100;

-- name: count_states
select state, reason, count(*)::int as messages
from messaging.messages where tenant_id = $1 and campaign_id = $2 group by state, reason order by state, reason;

-- name: recount_spent
-- no-tenant: the poller looks after every tenant
update messaging.campaigns c set spent = s.spent
from (
    select x.tenant_id, x.campaign_id, x.price * count(m.message_id) as spent
    from messaging.campaigns x left join messaging.messages m
        on m.tenant_id = x.tenant_id and m.campaign_id = x.campaign_id
        and (m.state in ('claimed', 'sending', 'unknown', 'accepted', 'sent', 'delivered', 'read')
             or (m.state = 'failed' and m.reason = 'unknown'))  -- it may have arrived, and been charged for
    where x.state = 'running' and x.spend_cap is not null and x.tenant_id = $1
    group by x.tenant_id, x.campaign_id
) s
where c.tenant_id = s.tenant_id and c.campaign_id = s.campaign_id and c.spent <> s.spent;

-- name: capped_tenants
-- no-tenant: the poller looks after every tenant
select distinct tenant_id from messaging.campaigns where state = 'running' and spend_cap is not null;

-- name: out_of_money
select c.campaign_id from messaging.campaigns c
where c.tenant_id = $1 and c.state = 'running' and c.spend_cap is not null and c.price > 0 and c.spend_cap - c.spent < c.price
    and exists (select from messaging.messages m where m.tenant_id = $1 and m.campaign_id = c.campaign_id and m.state = 'pending');

-- Failed ones once more, when a person asks for it. What is unknown is not among them: it may have arrived.
-- name: retry_failed
update messaging.messages m
set state = 'pending', reason = null, attempts = 0, due_at = $3, claim = null, settled_at = null, failed_at = null,
    old_wamids = case when m.wamid is null then m.old_wamids else m.old_wamids || m.wamid end,
    wamid = null, accepted_at = null, sent_at = null, error_code = null, error_details = null
where m.tenant_id = $1 and m.campaign_id = $2 and m.state = 'failed' and m.reason <> 'unknown'
    and m.address not like 'erased:%' and ($4::text[] is null or m.reason = any ($4))
returning m.message_id;

-- name: list_messages
select message_id, address, contact_id, number_id, state, reason, attempts, due_at, attempted_at, settled_at, wamid, accepted_at,
    sent_at, failed_at, delivered_at, read_at, error_code, error_details, created_at
from messaging.messages
where tenant_id = $1 and campaign_id = $2 and ($3::uuid is null or message_id > $3) and ($5::text is null or state = $5)
order by message_id limit $4;

-- Each recipient has exactly one outcome: what contradicts that, by kind.
-- name: verify_campaign
select
    count(*)::int as messages,
    count(*) filter (where state in ('accepted', 'sent', 'delivered', 'read'))::int as sent,
    count(*) filter (where state = 'failed')::int as failed,
    count(*) filter (where state = 'skipped')::int as skipped,
    count(*) filter (where state = 'unknown')::int as unknown,
    count(*) filter (where state in ('pending', 'claimed', 'sending'))::int as open,
    (count(*) - count(distinct (channel, address)))::int as twice,
    count(*) filter (where state in ('failed', 'skipped', 'unknown') and reason is null)::int as without_reason,
    count(*) filter (where state in ('accepted', 'sent', 'delivered', 'read') and attempts = 0)::int as without_attempt,
    count(*) filter (where state = 'skipped' and attempted_at is not null and wamid is not null)::int as skipped_though_sent
from messaging.messages where tenant_id = $1 and campaign_id = $2;

-- Fairness: of every tenant with messages attempted since, how many, and how long they had waited once they were due. What was
-- refused until later has its next time already: how long its last attempt waited is not there any more, so it counts in no mean.
-- name: fairness
-- no-tenant: shares compare tenants; only the operator and gauges see them, by internal number
select tenant_id, count(*)::int as messages,
    coalesce(extract(epoch from avg(attempted_at - ready_at) filter (where ready_at <= attempted_at)), 0)::float8 as wait_s,
    coalesce(extract(epoch from percentile_disc(0.95) within group (order by attempted_at - ready_at)
        filter (where ready_at <= attempted_at)), 0)::float8 as wait_p95_s
from (
    select tenant_id, attempted_at, greatest(created_at, due_at) as ready_at from messaging.messages where attempted_at >= $1
) m
group by tenant_id order by messages desc limit 1000;


-- name: audience_cursor
select audience_after from messaging.campaigns where tenant_id = $1 and campaign_id = $2;

-- name: complete_campaign
update messaging.campaigns c set state = 'completed', ended_at = $3, updated_at = $3, version = version + 1
where c.tenant_id = $1 and c.campaign_id = $2 and c.state = 'running' and c.audience_done
    and not exists (
        select from messaging.messages m where m.tenant_id = $1 and m.campaign_id = $2 and m.state = 'pending'
    )
    and not exists (
        select from messaging.messages m
        where m.tenant_id = $1 and m.number_id = any (c.numbers) and m.state in ('claimed', 'sending') and m.campaign_id = $2
    )
returning campaign_id;

-- A message came back to its place (refused for now, after it had counted as unknown) when its campaign was over already.
-- name: reopen_campaigns
-- no-tenant: the poller looks after every tenant
update messaging.campaigns c set state = 'running', ended_at = null, updated_at = $1, version = version + 1
where c.state = 'completed' and c.ended_at > $1::timestamptz - interval '7 days' and exists (
    select from messaging.messages m where m.tenant_id = c.tenant_id and m.campaign_id = c.campaign_id and m.state = 'pending'
);

-- An audience whose launch was lost on the way.
-- name: unwritten_audiences
-- no-tenant: the poller looks after every tenant
select tenant_id, campaign_id from messaging.campaigns
where state = 'running' and not audience_done and updated_at < $1 order by tenant_id, campaign_id limit 100;

-- name: ended_with_rest
-- no-tenant: the poller looks after every tenant
select c.tenant_id, c.campaign_id, c.state from messaging.campaigns c
where c.state in ('cancelled', 'expired') and c.ended_at > now() - interval '1 day'
    and (
        exists (select from messaging.messages m where m.tenant_id = c.tenant_id and m.campaign_id = c.campaign_id and m.state = 'pending')
        or exists (
            select from messaging.messages m
            where m.tenant_id = c.tenant_id and m.number_id = any (c.numbers) and m.state in ('claimed', 'sending')
                and m.campaign_id = c.campaign_id and m.state = 'claimed'
        )
    )
limit 100;

-- name: tenant_zone
select time_zone from tenants.tenants where tenant_id = $1;

-- name: campaigns_of_segment
select name from messaging.campaigns
where tenant_id = $1 and state in ('draft', 'scheduled', 'queued', 'running', 'paused') and audience ->> 'segment_id' = $2
order by campaign_id limit 5;
