-- name: settle_banner
-- Unless it was raised again meanwhile, the limit is now known whole.
update banners.banners set limits_raised_at = null where tenant_id = $1 and id = $2 and limits_raised_at = $3

-- name: settle_campaign
update banners.campaigns set limits_raised_at = null where tenant_id = $1 and id = $2 and limits_raised_at = $3

-- name: settle_placement
update banners.placements set limits_raised_at = null where tenant_id = $1 and id = $2 and limits_raised_at = $3
