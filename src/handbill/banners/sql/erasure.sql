-- name: erase_impressions
update banners.banner_impressions set user_id = null, session_id = null
where tenant_id = $1 and occurred_at >= $3 and occurred_at < $4
  and (user_id = any ($2::text[]) or session_id = any ($2::text[]))

-- name: erase_clicks
update banners.banner_clicks set user_id = null, session_id = null
where tenant_id = $1 and occurred_at >= $3 and occurred_at < $4
  and (user_id = any ($2::text[]) or session_id = any ($2::text[]))

-- name: export_impressions
select banner_id, placement_id, campaign_id, correlation_id, user_id, session_id, device_type, country_code, page_url,
       referrer_url, occurred_at, received_at
from banners.banner_impressions
where tenant_id = $1 and occurred_at >= $3 and occurred_at < $4 and (user_id = $2 or session_id = $2)
order by occurred_at
limit $5

-- name: export_clicks
select banner_id, placement_id, campaign_id, correlation_id, user_id, session_id, device_type, country_code, page_url,
       destination_url, occurred_at, received_at
from banners.banner_clicks
where tenant_id = $1 and occurred_at >= $3 and occurred_at < $4 and (user_id = $2 or session_id = $2)
order by occurred_at
limit $5
