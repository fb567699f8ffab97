-- What a claim at a moment would say of these people. Reasons and their order are those of `claim` in dispatch.sql.
-- name: foresee
select u.place,
    case
        when $8::int is not null and (
            select count(*) from messaging.messages o
            where o.tenant_id = $1 and o.channel = $2 and o.address = u.address
                and o.claimed_at > $7 - make_interval(hours => $9)
                and (o.state not in ('pending', 'skipped', 'failed') or o.reason = 'unknown')
                and (o.campaign_id is not null or exists (
                    select from messaging.single_messages x
                    where x.tenant_id = o.tenant_id and x.message_id = o.message_id and x.purpose = 'marketing'))
        ) >= $8 then 'person_cap'
        when f.reason is not null then f.reason
        when $10::timestamptz is not null and not exists (
            select from messaging.inbound i
            where i.tenant_id = $1 and i.address = u.address and i.number_id = u.number_id and i.at > $10
                and i.at < $7 + interval '5 minutes'
        ) then 'window_closed'
    end as reason,
    messaging.quiet_until(case when $11 then coalesce(u.zone, $12) else $12 end, $13, $14, $7) is not null as is_quiet,
    not exists (
        select from messaging.reached r
        where r.tenant_id = $1 and r.portfolio = $15 and r.address = u.address and r.last_at > $16
    ) as is_new
from unnest($3::text[], $4::uuid[], $5::text[], $6::text[]) with ordinality as u (address, contact_id, zone, number_id, place)
left join messaging.may_not_send(
    $1, array_fill($2::text, array[cardinality($3)]), $3, $4, array_fill($17::text, array[cardinality($3)]), $7
) f on f.place = u.place
order by u.place;

-- How fast and how far the campaign's senders may go, and what stops them.
-- name: sending_limits
select c.portfolio, c.token_state = 'dead' as is_token_dead, coalesce(s.stopped, false) as is_stopped, s.per_second as tenant_pace, t.tier as tenant_tier,
    count(n.number_id)::int as senders,
    count(n.number_id) filter (where coalesce(n.paused_until > $4, false))::int as paused_senders,
    coalesce(sum(n.per_second) filter (where not coalesce(n.paused_until > $4, false)), 0)::int as per_second,
    case when bool_and(n.tier is not null) then max(n.tier) end as tier
from messaging.connections c
join tenants.tenants t on t.tenant_id = c.tenant_id
left join messaging.switches s on s.tenant_id = c.tenant_id
left join messaging.numbers n on n.tenant_id = c.tenant_id and n.connection_id = c.connection_id and n.number_id = any ($3)
where c.tenant_id = $1 and c.connection_id = $2
group by c.portfolio, c.token_state, s.stopped, s.per_second, t.tier;

-- name: count_reached
select count(*)::int from (
    select from messaging.reached where tenant_id = $1 and portfolio = $2 and last_at > $3 limit $4
) x;

-- Which of these numbers each person wrote to last: only there is the answer window open.
-- name: last_written_to
select distinct on (i.address) i.address, i.number_id from messaging.inbound i
where i.tenant_id = $1 and i.address = any ($2::text[]) and i.number_id = any ($3::text[]) and i.at > $4
order by i.address, i.at desc;

-- name: read_estimate
select estimate::text from messaging.campaigns where tenant_id = $1 and campaign_id = $2;

-- name: keep_estimate
update messaging.campaigns set estimate = $3::jsonb where tenant_id = $1 and campaign_id = $2;
