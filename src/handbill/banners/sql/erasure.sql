-- name: places_of_impressions
-- Where the tenant's rows of a month are. The order makes the index lead to them, the limit bounds what is read.
select ctid from banners.banner_impressions
where tenant_id = $1 and occurred_at >= $2 and occurred_at < $3
order by banner_id, occurred_at
limit $4

-- name: erase_impressions_at
update banners.banner_impressions set user_id = null, session_id = null
where tenant_id = $1 and occurred_at >= $3 and occurred_at < $4 and ctid = any ($5::tid[])
  and (user_id = any ($2::text[]) or session_id = any ($2::text[]))

-- name: erase_impressions
-- However large the month is, this reads the pages between two places only.
update banners.banner_impressions set user_id = null, session_id = null
where tenant_id = $1 and occurred_at >= $3 and occurred_at < $4 and ctid >= $5::tid and ctid < $6::tid
  and (user_id = any ($2::text[]) or session_id = any ($2::text[]))

-- name: export_impressions_at
select banner_id, placement_id, campaign_id, correlation_id, user_id, session_id, device_type, country_code, page_url,
       referrer_url, variant, occurred_at, received_at
from banners.banner_impressions
where tenant_id = $1 and occurred_at >= $3 and occurred_at < $4 and ctid = any ($5::tid[])
  and (user_id = any ($2::text[]) or session_id = any ($2::text[]))

-- name: export_impressions
select banner_id, placement_id, campaign_id, correlation_id, user_id, session_id, device_type, country_code, page_url,
       referrer_url, variant, occurred_at, received_at
from banners.banner_impressions
where tenant_id = $1 and occurred_at >= $3 and occurred_at < $4 and ctid >= $5::tid and ctid < $6::tid
  and (user_id = any ($2::text[]) or session_id = any ($2::text[]))
limit $7

-- name: places_of_clicks
-- Where the tenant's rows of a month are. The order makes the index lead to them, the limit bounds what is read.
select ctid from banners.banner_clicks
where tenant_id = $1 and occurred_at >= $2 and occurred_at < $3
order by banner_id, occurred_at
limit $4

-- name: erase_clicks_at
update banners.banner_clicks set user_id = null, session_id = null
where tenant_id = $1 and occurred_at >= $3 and occurred_at < $4 and ctid = any ($5::tid[])
  and (user_id = any ($2::text[]) or session_id = any ($2::text[]))

-- name: erase_clicks
-- However large the month is, this reads the pages between two places only.
update banners.banner_clicks set user_id = null, session_id = null
where tenant_id = $1 and occurred_at >= $3 and occurred_at < $4 and ctid >= $5::tid and ctid < $6::tid
  and (user_id = any ($2::text[]) or session_id = any ($2::text[]))

-- name: export_clicks_at
select banner_id, placement_id, campaign_id, correlation_id, user_id, session_id, device_type, country_code, page_url,
       destination_url, variant, occurred_at, received_at
from banners.banner_clicks
where tenant_id = $1 and occurred_at >= $3 and occurred_at < $4 and ctid = any ($5::tid[])
  and (user_id = any ($2::text[]) or session_id = any ($2::text[]))

-- name: export_clicks
select banner_id, placement_id, campaign_id, correlation_id, user_id, session_id, device_type, country_code, page_url,
       destination_url, variant, occurred_at, received_at
from banners.banner_clicks
where tenant_id = $1 and occurred_at >= $3 and occurred_at < $4 and ctid >= $5::tid and ctid < $6::tid
  and (user_id = any ($2::text[]) or session_id = any ($2::text[]))
limit $7

-- name: pages_of_month
-- no-tenant: partitions are everybody's
select pg_relation_size(c.oid) / current_setting('block_size')::bigint
from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = $1::text::regclass and c.relname ~ ('_' || to_char($2::date, 'YYYYMM') || '$')
