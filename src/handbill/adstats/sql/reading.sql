-- name: series
-- The days as they stand now. Grouped by what is asked for; always by currency, for two currencies cannot be added.
select case when $6 then d.stat_date end as day, case when $7 then d.entity_id end as entity_id,
       case when $8 then c.sellpage_id end as sellpage_id, d.currency, sum(d.spend) as spend,
       sum(d.impressions)::bigint as impressions, sum(d.link_clicks)::bigint as link_clicks,
       sum(d.content_views)::bigint as content_views, sum(d.add_to_cart)::bigint as add_to_cart,
       sum(d.checkout_initiated)::bigint as checkout_initiated, sum(d.purchases)::bigint as purchases,
       sum(d.purchase_value) as purchase_value, max(d.factor) as factor, max(d.fetched_at) as fetched_at
from adstats.ad_stats_daily d
join adstats.entities e on e.tenant_id = d.tenant_id and e.entity_id = d.entity_id
join adstats.entities c on c.tenant_id = e.tenant_id and c.entity_id = e.campaign_id
where d.tenant_id = $1 and d.stat_date >= $2 and d.stat_date < $3 and d.entity_type = $4
  and ($5::uuid[] is null or d.entity_id = any ($5) or e.parent_id = any ($5) or e.campaign_id = any ($5))
  and ($9::uuid[] is null or c.sellpage_id = any ($9))
  and ($10::uuid is null or d.connection_id = $10)
group by 1, 2, 3, 4
order by 1, 2, 3, 4
limit $11

-- name: series_as_of
-- The same as it was believed at the end of a UTC day ($12).
select case when $6 then d.stat_date end as day, case when $7 then d.entity_id end as entity_id,
       case when $8 then c.sellpage_id end as sellpage_id, d.currency, sum(d.spend) as spend,
       sum(d.impressions)::bigint as impressions, sum(d.link_clicks)::bigint as link_clicks,
       sum(d.content_views)::bigint as content_views, sum(d.add_to_cart)::bigint as add_to_cart,
       sum(d.checkout_initiated)::bigint as checkout_initiated, sum(d.purchases)::bigint as purchases,
       sum(d.purchase_value) as purchase_value, 1::numeric as factor, max(d.believed_at) as fetched_at
from (
    select distinct on (l.entity_id, l.stat_date) l.*
    from adstats.ad_stats_ledger l
    where l.tenant_id = $1 and l.stat_date >= $2 and l.stat_date < $3 and l.entity_type = $4 and l.believed_on <= $12
    order by l.entity_id, l.stat_date, l.believed_on desc
) d
join adstats.entities e on e.tenant_id = d.tenant_id and e.entity_id = d.entity_id
join adstats.entities c on c.tenant_id = e.tenant_id and c.entity_id = e.campaign_id
where ($5::uuid[] is null or d.entity_id = any ($5) or e.parent_id = any ($5) or e.campaign_id = any ($5))
  and ($9::uuid[] is null or c.sellpage_id = any ($9))
  and ($10::uuid is null or e.connection_id = $10)
group by 1, 2, 3, 4
order by 1, 2, 3, 4
limit $11

-- name: drift
-- Each day: what was believed at the end of the UTC day in which it ended, what is believed now, and how often that
-- changed. What was believed while the day still ran is no belief about the day: it would pass for a restatement.
-- $5 to $7: accounts, and the first and last day of spans of days that end there on the next UTC date.
with told as (
    select l.stat_date, l.currency, l.entity_id, l.believed_on, l.spend, l.purchases, l.purchase_value,
           l.stat_date + (z.connection_id is not null)::int as ended_on
    from adstats.ad_stats_ledger l
    join adstats.entities e on e.tenant_id = l.tenant_id and e.entity_id = l.entity_id
    left join unnest($5::uuid[], $6::date[], $7::date[]) as z (connection_id, first_day, last_day)
        on z.connection_id = e.connection_id and l.stat_date between z.first_day and z.last_day
    where l.tenant_id = $1 and l.stat_date >= $2 and l.stat_date < $3 and l.entity_type = $4
), ended as (
    select t.*, max(t.believed_on) filter (where t.believed_on <= t.ended_on)
                    over (partition by t.entity_id, t.stat_date) as whole_on
    from told t
), beliefs as (
    select t.*, row_number() over (partition by t.entity_id, t.stat_date order by t.believed_on) as nth,
           row_number() over (partition by t.entity_id, t.stat_date order by t.believed_on desc) as nth_last
    from ended t where t.whole_on is null or t.believed_on >= t.whole_on
)
select stat_date as day, currency, sum(spend) filter (where nth = 1) as first_spend,
       sum(spend) filter (where nth_last = 1) as spend,
       sum(purchase_value) filter (where nth = 1) as first_purchase_value,
       sum(purchase_value) filter (where nth_last = 1) as purchase_value,
       sum(purchases) filter (where nth = 1)::bigint as first_purchases,
       sum(purchases) filter (where nth_last = 1)::bigint as purchases,
       count(distinct believed_on)::int as beliefs, min(believed_on) as first_on, max(believed_on) as last_on
from beliefs group by 1, 2 order by 1, 2 limit 2000

-- name: beliefs
-- What was believed about one entity and day, in order.
select believed_on, believed_at, currency, spend, impressions, link_clicks, content_views, add_to_cart,
       checkout_initiated, purchases, purchase_value
from adstats.ad_stats_ledger
where tenant_id = $1 and entity_id = $2 and stat_date = $3 order by believed_on limit 400

-- name: answers
-- What the platform told about one entity and day, in order; empty once the month's raw rows are gone.
select sync_id, fetched_at, last_seen_at, seen, spend, impressions, link_clicks, content_views, add_to_cart,
       checkout_initiated, purchases, purchase_value
from adstats.ad_stats_raw
where tenant_id = $1 and entity_id = $2 and date_start = $3 order by fetched_at, sync_id limit 400

-- name: sellpage_series
select case when $4 then k.stat_date end as day, k.sellpage_id, k.ad_source, k.currency, sum(k.ad_spend) as spend,
       sum(k.impressions)::bigint as impressions, sum(k.link_clicks)::bigint as link_clicks,
       sum(k.content_views)::bigint as content_views, sum(k.add_to_cart)::bigint as add_to_cart,
       sum(k.checkout_initiated)::bigint as checkout_initiated, sum(k.purchases)::bigint as purchases,
       sum(k.purchase_value) as purchase_value
from adstats.sellpage_stats_daily k
where k.tenant_id = $1 and k.stat_date >= $2 and k.stat_date < $3 and ($5::uuid[] is null or k.sellpage_id = any ($5))
group by 1, 2, 3, 4 order by 1, 2, 3, 4 limit $6

-- name: names_of
select entity_id, name from adstats.entities where tenant_id = $1 and entity_id = any ($2::uuid[])

-- name: sellpage_names
select sellpage_id, name from adstats.sellpages where tenant_id = $1 and sellpage_id = any ($2::uuid[])

-- name: zones
select distinct time_zone from adstats.fb_connections
where tenant_id = $1 and ($2::uuid is null or connection_id = $2) order by 1

-- name: campaigns_for_reports
select entity_id, name, utm_campaign, banner_campaign_id from adstats.entities
where tenant_id = $1 and entity_type = 'CAMPAIGN' and entity_id = any ($2::uuid[])
