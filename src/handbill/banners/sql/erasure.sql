-- name: erase_impressions
update banners.banner_impressions set user_id = null, session_id = null
where tenant_id = $1 and occurred_at >= $3 and occurred_at < $4 and (user_id = $2 or session_id = $2)

-- name: erase_clicks
update banners.banner_clicks set user_id = null, session_id = null
where tenant_id = $1 and occurred_at >= $3 and occurred_at < $4 and (user_id = $2 or session_id = $2)
