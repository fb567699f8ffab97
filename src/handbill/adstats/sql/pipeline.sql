-- The stages of a sync, each one statement. $1 is always the seller's tenant number.

-- name: lock_seller
-- Syncs of one seller write one after the other: what one compares with, no other changes meanwhile.
select pg_advisory_xact_lock(hashtextextended('adstats', $1::int))  -- tenant_id

-- name: raw_month
-- no-tenant: partitions are everybody's
select adstats.raw_month($1)

-- name: write_raw
-- Stage 1, for answers that are the whole day so far: a row where a figure changed, else it was seen once more.
-- An entity that never had anything gets no row.
with told as (
    select * from unnest($6::uuid[], $7::text[], $8::date[], $9::numeric[], $10::bigint[], $11::bigint[], $12::bigint[],
                         $13::bigint[], $14::bigint[], $15::bigint[], $16::numeric[])
        as t (entity_id, external_entity_id, date_start, spend, impressions, link_clicks, content_views, add_to_cart,
              checkout_initiated, purchases, purchase_value)
), compared as (
    select t.*, n.sync_id as known,
           n.sync_id is not null and (n.spend, n.impressions, n.link_clicks, n.content_views, n.add_to_cart,
               n.checkout_initiated, n.purchases, n.purchase_value)
             = (t.spend, t.impressions, t.link_clicks, t.content_views, t.add_to_cart, t.checkout_initiated,
                t.purchases, t.purchase_value) as same
    from told t
    left join lateral (
        select r.* from adstats.ad_stats_raw r
        where r.tenant_id = $1 and r.entity_id = t.entity_id and r.date_start = t.date_start
        order by r.last_seen_at desc, r.fetched_at desc, r.sync_id desc limit 1
    ) n on true
), again as (
    update adstats.ad_stats_raw r set last_seen_at = greatest(r.last_seen_at, $5), seen = r.seen + 1
    from compared c
    where c.same and r.tenant_id = $1 and r.entity_id = c.entity_id and r.date_start = c.date_start
      and r.sync_id = c.known
), fresh as (
    insert into adstats.ad_stats_raw (
        tenant_id, entity_id, date_start, sync_id, entity_type, external_entity_id, connection_id, fetched_at,
        last_seen_at, spend, impressions, link_clicks, content_views, add_to_cart, checkout_initiated, purchases,
        purchase_value)
    select $1, c.entity_id, c.date_start, $4, $3, c.external_entity_id, $2, $5, $5, c.spend, c.impressions,
           c.link_clicks, c.content_views, c.add_to_cart, c.checkout_initiated, c.purchases, c.purchase_value
    from compared c
    where not c.same and (c.known is not null or c.spend > 0 or c.purchase_value > 0
        or greatest(c.impressions, c.link_clicks, c.content_views, c.add_to_cart, c.checkout_initiated, c.purchases) > 0)
    returning entity_id, date_start
)
select entity_id, date_start from fresh

-- name: add_raw
-- Stage 1, for answers that are increments: each piece once, however often it is told.
with told as (
    select * from unnest($6::uuid[], $7::text[], $8::date[], $9::numeric[], $10::bigint[], $11::bigint[], $12::bigint[],
                         $13::bigint[], $14::bigint[], $15::bigint[], $16::numeric[], $17::text[])
        as t (entity_id, external_entity_id, date_start, spend, impressions, link_clicks, content_views, add_to_cart,
              checkout_initiated, purchases, purchase_value, piece)
), fresh as (
    insert into adstats.ad_stats_raw (
        tenant_id, entity_id, date_start, sync_id, piece, entity_type, external_entity_id, connection_id, fetched_at,
        last_seen_at, spend, impressions, link_clicks, content_views, add_to_cart, checkout_initiated, purchases,
        purchase_value)
    select $1, t.entity_id, t.date_start, $4, t.piece, $3, t.external_entity_id, $2, $5, $5, t.spend, t.impressions,
           t.link_clicks, t.content_views, t.add_to_cart, t.checkout_initiated, t.purchases, t.purchase_value
    from told t
    where not exists (
        select from adstats.ad_stats_raw r where r.tenant_id = $1 and r.entity_id = t.entity_id
          and r.date_start = t.date_start and r.piece = t.piece)
    on conflict do nothing
    returning entity_id, date_start
)
select entity_id, date_start from fresh

-- name: write_daily
-- Stage 2: each day anew from its raw rows, and into the ledger when that changed what we believe. $8: add up all
-- answers instead of taking the newest; $9: the raw rows are increments, so that adding up is no exaggeration.
with days as (
    select distinct entity_id, stat_date from unnest($6::uuid[], $7::date[]) as t (entity_id, stat_date)
), figures as (
    select d.entity_id, d.stat_date, n.last_seen_at,
           case when $8 then s.spend else n.spend end as spend,
           case when $8 then s.impressions else n.impressions end as impressions,
           case when $8 then s.link_clicks else n.link_clicks end as link_clicks,
           case when $8 then s.content_views else n.content_views end as content_views,
           case when $8 then s.add_to_cart else n.add_to_cart end as add_to_cart,
           case when $8 then s.checkout_initiated else n.checkout_initiated end as checkout_initiated,
           case when $8 then s.purchases else n.purchases end as purchases,
           case when $8 then s.purchase_value else n.purchase_value end as purchase_value,
           case when $8 and not $9 and n.spend > 0 then round(s.spend / n.spend, 6) else 1 end as factor
    from days d
    cross join lateral (
        select r.* from adstats.ad_stats_raw r
        where r.tenant_id = $1 and r.entity_id = d.entity_id and r.date_start = d.stat_date
        order by r.last_seen_at desc, r.fetched_at desc, r.sync_id desc limit 1
    ) n
    left join lateral (
        select sum(r.spend * r.seen) as spend, sum(r.impressions * r.seen)::bigint as impressions,
               sum(r.link_clicks * r.seen)::bigint as link_clicks, sum(r.content_views * r.seen)::bigint as content_views,
               sum(r.add_to_cart * r.seen)::bigint as add_to_cart,
               sum(r.checkout_initiated * r.seen)::bigint as checkout_initiated,
               sum(r.purchases * r.seen)::bigint as purchases, sum(r.purchase_value * r.seen) as purchase_value
        from adstats.ad_stats_raw r
        where $8 and r.tenant_id = $1 and r.entity_id = d.entity_id and r.date_start = d.stat_date
    ) s on true
), put as (
    insert into adstats.ad_stats_daily as k (
        tenant_id, entity_type, entity_id, stat_date, connection_id, currency, spend, impressions, link_clicks,
        content_views, add_to_cart, checkout_initiated, purchases, purchase_value, cpm, ctr, cpc, cost_per_purchase,
        roas, factor, fetched_at)
    select $1, $3, f.entity_id, f.stat_date, $2, $4, f.spend, f.impressions, f.link_clicks, f.content_views,
           f.add_to_cart, f.checkout_initiated, f.purchases, f.purchase_value,
           adstats.ratio(f.spend * 1000, f.impressions), adstats.ratio(f.link_clicks, f.impressions),
           adstats.ratio(f.spend, f.link_clicks), adstats.ratio(f.spend, f.purchases),
           adstats.ratio(f.purchase_value, f.spend), f.factor, f.last_seen_at
    from figures f
    on conflict on constraint uq_ad_stats_daily do update set
        connection_id = excluded.connection_id, currency = excluded.currency, spend = excluded.spend,
        impressions = excluded.impressions, link_clicks = excluded.link_clicks,
        content_views = excluded.content_views, add_to_cart = excluded.add_to_cart,
        checkout_initiated = excluded.checkout_initiated, purchases = excluded.purchases,
        purchase_value = excluded.purchase_value, cpm = excluded.cpm, ctr = excluded.ctr, cpc = excluded.cpc,
        cost_per_purchase = excluded.cost_per_purchase, roas = excluded.roas, factor = excluded.factor,
        fetched_at = excluded.fetched_at
    where (k.spend, k.impressions, k.link_clicks, k.content_views, k.add_to_cart, k.checkout_initiated, k.purchases,
           k.purchase_value, k.factor)
       is distinct from (excluded.spend, excluded.impressions, excluded.link_clicks, excluded.content_views,
           excluded.add_to_cart, excluded.checkout_initiated, excluded.purchases, excluded.purchase_value,
           excluded.factor)
    returning k.*
), noted as (
    insert into adstats.ad_stats_ledger (
        tenant_id, entity_type, entity_id, stat_date, believed_on, believed_at, currency, spend, impressions,
        link_clicks, content_views, add_to_cart, checkout_initiated, purchases, purchase_value)
    select $1, p.entity_type, p.entity_id, p.stat_date, ($5::timestamptz at time zone 'UTC')::date, $5, p.currency,
           p.spend, p.impressions, p.link_clicks, p.content_views, p.add_to_cart, p.checkout_initiated, p.purchases,
           p.purchase_value
    from put p
    on conflict (tenant_id, entity_type, entity_id, stat_date, believed_on) do update set
        believed_at = excluded.believed_at, currency = excluded.currency, spend = excluded.spend,
        impressions = excluded.impressions, link_clicks = excluded.link_clicks,
        content_views = excluded.content_views, add_to_cart = excluded.add_to_cart,
        checkout_initiated = excluded.checkout_initiated, purchases = excluded.purchases,
        purchase_value = excluded.purchase_value
    returning 1
)
select count(*)::int from put

-- name: roll_sellpages
-- Stage 3: the sellpages of these days from their campaigns as they are assigned now; a row nobody stands for any more
-- goes. $3, $4: the word of each provider as the source of ads; one without stands by its name.
with fresh as (
    select e.sellpage_id, d.stat_date, coalesce(w.ad_source, f.provider) as ad_source, d.currency, sum(d.spend) as spend, sum(d.impressions)::bigint as impressions,
           sum(d.link_clicks)::bigint as link_clicks, sum(d.content_views)::bigint as content_views,
           sum(d.add_to_cart)::bigint as add_to_cart, sum(d.checkout_initiated)::bigint as checkout_initiated,
           sum(d.purchases)::bigint as purchases, sum(d.purchase_value) as purchase_value
    from adstats.ad_stats_daily d
    join adstats.entities e on e.tenant_id = d.tenant_id and e.entity_id = d.entity_id
    join adstats.fb_connections f on f.tenant_id = e.tenant_id and f.connection_id = e.connection_id
    left join unnest($3::text[], $4::text[]) as w (provider, ad_source) on w.provider = f.provider
    where d.tenant_id = $1 and d.entity_type = 'CAMPAIGN' and d.stat_date = any ($2::date[])
    group by 1, 2, 3, 4
), gone as (
    delete from adstats.sellpage_stats_daily k
    where k.tenant_id = $1 and k.stat_date = any ($2::date[])
      and not exists (select from fresh f where f.sellpage_id is not distinct from k.sellpage_id
                        and f.stat_date = k.stat_date and f.ad_source = k.ad_source and f.currency = k.currency)
    returning 1
), put as (
    insert into adstats.sellpage_stats_daily as k (
        tenant_id, sellpage_id, stat_date, ad_source, currency, ad_spend, impressions, link_clicks, content_views,
        add_to_cart, checkout_initiated, purchases, purchase_value, orders_count, revenue, cpm, ctr,
        cost_per_purchase, roas, cr1, cr2, cr3)
    select $1, f.sellpage_id, f.stat_date, f.ad_source, f.currency, f.spend, f.impressions, f.link_clicks, f.content_views,
           f.add_to_cart, f.checkout_initiated, f.purchases, f.purchase_value, f.purchases, f.purchase_value,
           adstats.ratio(f.spend * 1000, f.impressions), adstats.ratio(f.link_clicks, f.impressions),
           adstats.ratio(f.spend, f.purchases), adstats.ratio(f.purchase_value, f.spend),
           adstats.ratio(f.link_clicks, f.impressions), adstats.ratio(f.purchases, f.link_clicks),
           adstats.ratio(f.purchases, f.content_views)
    from fresh f
    on conflict on constraint uq_sellpage_stats_daily do update set
        ad_spend = excluded.ad_spend, impressions = excluded.impressions, link_clicks = excluded.link_clicks,
        content_views = excluded.content_views, add_to_cart = excluded.add_to_cart,
        checkout_initiated = excluded.checkout_initiated, purchases = excluded.purchases,
        purchase_value = excluded.purchase_value, orders_count = excluded.orders_count, revenue = excluded.revenue,
        cpm = excluded.cpm, ctr = excluded.ctr, cost_per_purchase = excluded.cost_per_purchase, roas = excluded.roas,
        cr1 = excluded.cr1, cr2 = excluded.cr2, cr3 = excluded.cr3
    where (k.ad_spend, k.impressions, k.link_clicks, k.content_views, k.add_to_cart, k.checkout_initiated, k.purchases,
           k.purchase_value)
       is distinct from (excluded.ad_spend, excluded.impressions, excluded.link_clicks, excluded.content_views,
           excluded.add_to_cart, excluded.checkout_initiated, excluded.purchases, excluded.purchase_value)
    returning 1
)
select ((select count(*) from put) + (select count(*) from gone))::int

-- name: note_synced
insert into adstats.sync_state as k (tenant_id, connection_id, entity_type, sync_id, synced_at, hourly_at, daily_at, syncs,
                                     unmatched)
values ($1, $2, $3, $4, case when $6 then $5::timestamptz end, case when $7 then $5::timestamptz end,
        case when $8 then $5::timestamptz end, 1, $9)
on conflict (tenant_id, connection_id, entity_type) do update set
    sync_id = excluded.sync_id, synced_at = greatest(k.synced_at, excluded.synced_at),
    hourly_at = greatest(k.hourly_at, excluded.hourly_at), daily_at = greatest(k.daily_at, excluded.daily_at),
    syncs = k.syncs + 1, error = null, unmatched = excluded.unmatched

-- name: claim_listing
-- One row of the connection's stands for all its levels: of syncs side by side one goes and asks.
insert into adstats.sync_state as k (tenant_id, connection_id, entity_type, listed_at)
values ($1, $2, 'CAMPAIGN', $3)
on conflict (tenant_id, connection_id, entity_type) do update set listed_at = excluded.listed_at
where k.listed_at is null or k.listed_at <= $4
returning 1

-- name: note_failed
insert into adstats.sync_state as k (tenant_id, connection_id, entity_type, failed_at, error)
values ($1, $2, $3, $4, $5)
on conflict (tenant_id, connection_id, entity_type) do update set failed_at = excluded.failed_at, error = excluded.error

-- name: raw_days
-- Every (entity, day) of one connection and level with raw rows between two days, for a rebuild of the days.
select distinct entity_id, date_start from adstats.ad_stats_raw
where tenant_id = $1 and connection_id = $2 and entity_type = $3 and date_start between $4 and $5

-- name: raw_months
-- no-tenant: partitions are everybody's
select to_date(right(c.relname, 6), 'YYYYMM') as month
from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = 'adstats.ad_stats_raw'::regclass order by 1

-- name: drop_raw_month
-- no-tenant: the partition of all tenants goes
select adstats.drop_raw_month($1)

-- name: longest_look_back
-- no-tenant: a shared partition goes only when no seller can be restated any more
select coalesce(max(look_back_days), 0) from adstats.fb_connections

-- name: note_gone
-- no-tenant: the partition of all tenants is gone
insert into adstats.raw_gone (month, gone_at) values ($1, $2) on conflict (month) do nothing

-- name: gone_months
-- no-tenant: partitions are everybody's
select count(*)::int from adstats.raw_gone where month between date_trunc('month', $1::date)::date and $2
