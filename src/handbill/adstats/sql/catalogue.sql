-- name: create_connection
insert into adstats.fb_connections (
    tenant_id, connection_id, provider, external_id, name, currency, time_zone, look_back_days, token_state,
    token_sealed, token_changed_at, created_at, updated_at, token_ends_at, verified_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $12, $13, $14)
returning *

-- name: read_connection
select * from adstats.fb_connections where tenant_id = $1 and connection_id = $2

-- name: lock_connection
select * from adstats.fb_connections where tenant_id = $1 and connection_id = $2 for update

-- name: lock_account
select * from adstats.fb_connections where tenant_id = $1 and provider = $2 and external_id = $3 for update

-- name: list_connections
select * from adstats.fb_connections where tenant_id = $1 and connection_id > $2 order by connection_id limit $3

-- name: update_connection
update adstats.fb_connections set
    name = $3, is_active = $4, look_back_days = $5, token_state = $6, token_sealed = $7, token_note = $8,
    token_changed_at = $9, updated_at = $10, version = version + 1, token_ends_at = $11, token_checked_at = $12,
    currency = $13, time_zone = $14, verified_at = $15
where tenant_id = $1 and connection_id = $2
returning *

-- name: note_verified
-- Only of the token that was asked with.
update adstats.fb_connections set verified_at = $4
where tenant_id = $1 and connection_id = $2 and token_sealed is not distinct from $3

-- name: clear_verified
-- The next sync asks the platform for the account again.
update adstats.fb_connections set verified_at = null
where tenant_id = $1 and connection_id = $2

-- name: relabel_days
-- The figures are the platform's own, in its currency: what was wrong is the name of it.
with daily as (
    update adstats.ad_stats_daily set currency = $3 where tenant_id = $1 and connection_id = $2 and currency <> $3
)
update adstats.ad_stats_ledger l set currency = $3
from adstats.entities e
where l.tenant_id = $1 and e.tenant_id = $1 and e.entity_id = l.entity_id and e.connection_id = $2 and l.currency <> $3

-- name: connection_days
select distinct stat_date from adstats.ad_stats_daily
where tenant_id = $1 and entity_type = 'CAMPAIGN' and connection_id = $2

-- name: delete_days_after
-- Days that have not begun where the account is, read while its zone was taken to be another one.
with raw as (
    delete from adstats.ad_stats_raw where tenant_id = $1 and connection_id = $2 and date_start > $3
), ledger as (
    delete from adstats.ad_stats_ledger l using adstats.entities e
    where l.tenant_id = $1 and e.tenant_id = $1 and e.entity_id = l.entity_id and e.connection_id = $2 and l.stat_date > $3
), daily as (
    delete from adstats.ad_stats_daily where tenant_id = $1 and connection_id = $2 and stat_date > $3
    returning stat_date
)
select distinct stat_date from daily

-- name: restart_look_back
-- The next sync reads the whole look-back.
update adstats.sync_state set synced_at = null, hourly_at = null, daily_at = null
where tenant_id = $1 and connection_id = $2

-- name: kill_token
-- Only the token that was used: one that came in meanwhile stays.
update adstats.fb_connections set
    token_state = 'dead', token_note = $4, token_changed_at = $5, updated_at = $5, version = version + 1
where tenant_id = $1 and connection_id = $2 and token_state <> 'dead' and token_sealed is not distinct from $3
returning connection_id

-- name: claim_token_check
-- Whoever gets the row asks the platform; nobody else does before $4 is over.
update adstats.fb_connections set token_checked_at = $3
where tenant_id = $1 and connection_id = $2 and (token_checked_at is null or token_checked_at < $4)
returning connection_id

-- name: note_token_end
-- Only of the token that was asked about.
update adstats.fb_connections set token_ends_at = $4
where tenant_id = $1 and connection_id = $2 and token_sealed is not distinct from $3
returning connection_id

-- name: summarise_tokens
-- no-tenant: one figure for the metrics page, of all tenants together
select extract(epoch from min(token_ends_at) filter (where token_state = 'valid') - $1)::float8 as seconds_left,
       count(*) filter (where token_state = 'valid' and token_ends_at < $2) as ending,
       count(*) filter (where token_state = 'dead') as dead
from adstats.fb_connections where is_active

-- name: first_token_ends
-- no-tenant: for the log, which names the tenant of each
select tenant_id, connection_id::text as connection_id, token_ends_at as ends_at from adstats.fb_connections
where is_active and token_state = 'valid' and token_ends_at < $1 order by token_ends_at limit $2

-- name: usable_connections
-- What a sync of this seller goes through, with the tree down to the level that is asked for ($2), and whether a
-- backfill waits for any. All statuses: what was archived still has its last days, and levels add up only when nothing
-- is left out.
select f.*, exists (select from adstats.backfill_parts p where p.tenant_id = f.tenant_id and p.state = 'waiting') as waiting,
       (select json_agg(e)::text from adstats.entities e where e.tenant_id = f.tenant_id
          and e.connection_id = f.connection_id and e.entity_type = any ($2::text[])) as tree
from adstats.fb_connections f
where f.tenant_id = $1 and f.connection_type = 'AD_ACCOUNT' and f.is_active and f.token_state <> 'dead'
  and (f.provider = 'MOCK' or f.token_state = 'valid')
order by f.connection_id

-- name: eligible
-- no-tenant: the scheduler looks at all sellers at once
-- Active and connected, and a campaign that runs, is paused, or had spend inside the look-back. `spent_on`: only spend
-- speaks for it, last on that day. Which day is today is worked out by the caller: a seller's zone that this engine does
-- not know must not stop everybody else.
select f.tenant_id, t.public_id as seller, f.connection_id, l.level, f.time_zone, f.look_back_days, s.synced_at,
       s.hourly_at, s.daily_at, f.spent_on
from (
    select c.*, x.running, case when x.running then null else (
            select max(d.stat_date)
            from adstats.entities e
            join adstats.ad_stats_daily d on d.tenant_id = e.tenant_id and d.entity_type = 'CAMPAIGN'
                and d.entity_id = e.entity_id
            where e.tenant_id = c.tenant_id and e.connection_id = c.connection_id and e.entity_type = 'CAMPAIGN'
              and d.stat_date >= ($1::timestamptz at time zone 'UTC')::date - c.look_back_days - 1 and d.spend > 0
        ) end as spent_on
    from adstats.fb_connections c
    join tenants.tenants o on o.tenant_id = c.tenant_id and o.status = 'active'
    cross join lateral (
        select exists (
            select from adstats.entities e
            where e.tenant_id = c.tenant_id and e.connection_id = c.connection_id and e.entity_type = 'CAMPAIGN'
              and e.status in ('ACTIVE', 'PAUSED')) as running
    ) x
    where c.connection_type = 'AD_ACCOUNT' and c.is_active and c.token_state <> 'dead'
      and (c.provider = 'MOCK' or c.token_state = 'valid')
      and (c.tenant_id, c.connection_id) > ($2, $3) and ($4::int is null or c.tenant_id = $4)
    offset 0
) f
join tenants.tenants t on t.tenant_id = f.tenant_id
cross join unnest(array['CAMPAIGN', 'ADSET', 'AD']) as l (level)
left join adstats.sync_state s on s.tenant_id = f.tenant_id and s.connection_id = f.connection_id
    and s.entity_type = l.level
where f.running or f.spent_on is not null
order by f.tenant_id, f.connection_id, l.level
limit $5

-- name: create_sellpage
insert into adstats.sellpages (tenant_id, sellpage_id, name, url, created_at, updated_at)
values ($1, $2, $3, $4, $5, $5) returning *

-- name: read_sellpage
select * from adstats.sellpages where tenant_id = $1 and sellpage_id = $2

-- name: lock_sellpage
select * from adstats.sellpages where tenant_id = $1 and sellpage_id = $2 for update

-- name: list_sellpages
select * from adstats.sellpages where tenant_id = $1 and sellpage_id > $2 order by sellpage_id limit $3

-- name: update_sellpage
update adstats.sellpages set name = $3, url = $4, updated_at = $5, version = version + 1
where tenant_id = $1 and sellpage_id = $2 returning *

-- name: create_entity
insert into adstats.entities (
    tenant_id, entity_id, entity_type, connection_id, parent_id, campaign_id, sellpage_id, external_id, name, status,
    budget_type, budget, utm_campaign, banner_campaign_id, created_at, updated_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $15)
returning *

-- name: read_entity
select * from adstats.entities where tenant_id = $1 and entity_id = $2

-- name: lock_entity
select * from adstats.entities where tenant_id = $1 and entity_id = $2 for update

-- name: list_entities
select * from adstats.entities
where tenant_id = $1 and entity_id > $2
  and ($4::text is null or entity_type = $4) and ($5::uuid is null or connection_id = $5)
  and ($6::uuid is null or parent_id = $6) and ($7::text is null or status = $7)
order by entity_id limit $3

-- name: update_entity
update adstats.entities set
    name = $3, status = $4, sellpage_id = $5, budget_type = $6, budget = $7, utm_campaign = $8,
    banner_campaign_id = $9, updated_at = $10, version = version + 1
where tenant_id = $1 and entity_id = $2
returning *

-- name: entities_by_external
select * from adstats.entities where tenant_id = $1 and connection_id = $2 and external_id = any ($3::text[])

-- name: campaign_days
select distinct stat_date from adstats.ad_stats_daily
where tenant_id = $1 and entity_type = 'CAMPAIGN' and entity_id = $2

-- name: sync_states
select * from adstats.sync_state where tenant_id = $1 and ($2::uuid is null or connection_id = $2)
order by connection_id, entity_type limit 600

-- name: tenant_of_seller
-- no-tenant: another program's job names its seller by the public id alone
select tenant_id from tenants.tenants where public_id = $1

-- name: seller_of_tenant
select public_id from tenants.tenants where tenant_id = $1

-- name: delete_sellpage
delete from adstats.sellpages s
where s.tenant_id = $1 and s.sellpage_id = $2
  and not exists (select from adstats.entities e where e.tenant_id = s.tenant_id and e.sellpage_id = s.sellpage_id)
