-- name: changed_catalogue
-- Everything that keeps a copy compares this number.
insert into banners.catalogue_versions (tenant_id) values ($1)
on conflict (tenant_id) do update set version = banners.catalogue_versions.version + 1, changed_at = now()
returning version

-- name: versions_since
-- no-tenant: every process keeps the whole catalogue
select tenant_id, version from banners.catalogue_versions where changed_at > $1

-- name: all_versions
-- no-tenant: every process keeps the whole catalogue
select tenant_id, version from banners.catalogue_versions

-- name: version_of
select version from banners.catalogue_versions where tenant_id = $1

-- name: load_banners
-- no-tenant: $1 lists the tenants, null loads all
select * from banners.banners
where deleted_at is null and archived_at is null and ($1::int[] is null or tenant_id = any ($1))

-- name: load_placements
-- no-tenant: $1 lists the tenants, null loads all
select * from banners.placements where deleted_at is null and ($1::int[] is null or tenant_id = any ($1))

-- name: load_campaigns
-- no-tenant: $1 lists the tenants, null loads all
select * from banners.campaigns where deleted_at is null and ($1::int[] is null or tenant_id = any ($1))

-- name: person_rules
-- Rules that may ask about the person; whoever reads them looks closer.
select name, targeting from banners.banners
where tenant_id = $1 and deleted_at is null and archived_at is null
    and (strpos(targeting::text, '"person.') > 0 or strpos(targeting::text, '"segment"') > 0)

-- name: address_rules
-- Rules that may have patterns of addresses.
select targeting::text as targeting from banners.banners
where tenant_id = $1 and deleted_at is null and archived_at is null
    and (strpos(targeting::text, '"url"') > 0 or strpos(targeting::text, '"referrer"') > 0)

-- name: find_public
-- no-tenant: a public id is how the tenant is found
select tenant_id, id from banners.find_public($1, $2)

-- name: read_deleted_banner
select * from banners.banners where tenant_id = $1 and id = $2

-- name: create_placement
insert into banners.placements (tenant_id, public_id, name, slug, description, ranking, caps, created_at, updated_at)
values ($1, $2, $3, $4, $5, $6, $7::jsonb, $8, $8)
returning *

-- name: update_placement
update banners.placements
set name = $3, slug = $4, description = $5, ranking = $6, caps = $7::jsonb, updated_at = $8, limits_raised_at = $9,
    version = version + 1
where tenant_id = $1 and id = $2
returning *

-- name: delete_placement
update banners.placements set deleted_at = $3, updated_at = $3, version = version + 1
where tenant_id = $1 and id = $2

-- name: find_placement
select * from banners.placements where tenant_id = $1 and public_id = $2 and deleted_at is null

-- name: lock_placement
select * from banners.placements where tenant_id = $1 and public_id = $2 and deleted_at is null for update

-- name: list_placements
select * from banners.placements
where tenant_id = $1 and deleted_at is null and id > $2
  and ($4::text is null or position(lower($4) in lower(name)) > 0)
order by id
limit $3

-- name: create_campaign
insert into banners.campaigns (
    tenant_id, public_id, name, status, is_active, starts_at, ends_at, caps, created_at, updated_at
)
values ($1, $2, $3, $4, $5, $6, $7, $8::jsonb, $9, $9)
returning *

-- name: update_campaign
update banners.campaigns
set name = $3, status = $4, is_active = $5, starts_at = $6, ends_at = $7, caps = $8::jsonb, updated_at = $9,
    limits_raised_at = $10, version = version + 1
where tenant_id = $1 and id = $2
returning *

-- name: delete_campaign
update banners.campaigns set deleted_at = $3, updated_at = $3, version = version + 1
where tenant_id = $1 and id = $2

-- name: find_campaign
select * from banners.campaigns where tenant_id = $1 and public_id = $2 and deleted_at is null

-- name: lock_campaign
select * from banners.campaigns where tenant_id = $1 and public_id = $2 and deleted_at is null for update

-- name: list_campaigns
select * from banners.campaigns
where tenant_id = $1 and deleted_at is null and id > $2
  and ($4::text is null or status = $4)
  and ($5::text is null or position(lower($5) in lower(name)) > 0)
order by id
limit $3

-- name: create_banner
insert into banners.banners (
    tenant_id, public_id, campaign_id, name, title, description, image_url, cta_link, asset_url,
    x_times, y_hours, z_duration_sec, is_active, publish_at, expires_at, schedule_status, placement_ids,
    targeting, priority, weight, revenue, variants, holdout_percent, caps, cap_mode, cap_by, created_at, updated_at
)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17,
        $18::jsonb, $19, $20, $21, $22::jsonb, $23, $24::jsonb, $25, $26, $27, $27)
returning *

-- name: update_banner
update banners.banners
set campaign_id = $3, name = $4, title = $5, description = $6, image_url = $7, cta_link = $8, asset_url = $9,
    x_times = $10, y_hours = $11, z_duration_sec = $12, is_active = $13, publish_at = $14, expires_at = $15,
    schedule_status = $16, placement_ids = $17, targeting = $18::jsonb, priority = $19, weight = $20, revenue = $21,
    variants = $22::jsonb, holdout_percent = $23, caps = $24::jsonb, cap_mode = $25, cap_by = $26, archived_at = $27,
    updated_at = $28, limits_raised_at = $29, version = version + 1
where tenant_id = $1 and id = $2
returning *

-- name: delete_banner
update banners.banners set deleted_at = $3, updated_at = $3, version = version + 1
where tenant_id = $1 and id = $2

-- name: find_banner
select * from banners.banners where tenant_id = $1 and public_id = $2 and deleted_at is null

-- name: lock_banner
select * from banners.banners where tenant_id = $1 and public_id = $2 and deleted_at is null for update

-- name: list_banners
select * from banners.banners
where tenant_id = $1 and deleted_at is null and id > $2
  and (archived_at is not null) = $4
  and ($5::text is null or schedule_status = $5)
  and ($6::boolean is null or is_active = $6)
  and ($7::int is null or campaign_id = $7)
  and ($8::int is null or placement_ids = '{}' or $8 = any (placement_ids))
  and ($9::text is null or position(lower($9) in lower(name || ' ' || coalesce(title, ''))) > 0)
order by id
limit $3

-- name: public_placements
select id, public_id from banners.placements where tenant_id = $1 and id = any ($2)

-- name: public_campaigns
select id, public_id from banners.campaigns where tenant_id = $1 and id = any ($2)

-- name: ids_of_placements
select id, public_id from banners.placements
where tenant_id = $1 and public_id = any ($2::uuid[]) and deleted_at is null

-- name: sync_banners
-- no-tenant: the clock moves every tenant's schedules at once; one statement decides each row from now
update banners.banners b
set schedule_status = s.status, updated_at = $1, version = b.version + 1
from (
    select id, case when expires_at <= $1 then 'expired' when publish_at > $1 then 'scheduled' else 'active' end as status
    from banners.banners where deleted_at is null
) s
where b.id = s.id and b.schedule_status <> s.status
returning b.tenant_id, s.status

-- name: sync_campaigns
-- no-tenant: the clock moves every tenant's schedules at once; one statement decides each row from now
update banners.campaigns c
set status = s.status, updated_at = $1, version = c.version + 1
from (
    select id, case when ends_at <= $1 then 'ended' when starts_at > $1 then 'scheduled' else 'active' end as status
    from banners.campaigns where deleted_at is null
) s
where c.id = s.id and c.status <> s.status
returning c.tenant_id, s.status

-- name: now
-- no-tenant: the database's clock is everybody's
select now()

-- name: banner_by_number
-- no-tenant: a job of another program names a banner by its number; the tenant comes from the banner
select tenant_id, id from banners.banners where id = $1

-- name: placement_by_number
select id from banners.placements where tenant_id = $1 and id = $2

-- name: campaign_by_number
select id from banners.campaigns where tenant_id = $1 and id = $2

-- name: names_by_public_id
-- Deleted ones are there.
select 'banner' as kind, name from banners.banners where tenant_id = $1 and public_id = $2
union all
select 'placement', name from banners.placements where tenant_id = $1 and public_id = $3
union all
select 'campaign', name from banners.campaigns where tenant_id = $1 and public_id = $4

-- name: public_ids_of_tenants
-- For an export, which has events of many tenants at once. Deleted ones are there.
with asked as (select * from unnest($1::int[], $2::text[], $3::int[]) as u (tenant_id, kind, id))
select a.kind, b.tenant_id, b.id, b.public_id
from asked a join banners.banners b on a.kind = 'banner' and b.tenant_id = a.tenant_id and b.id = a.id
union all
select a.kind, p.tenant_id, p.id, p.public_id
from asked a join banners.placements p on a.kind = 'placement' and p.tenant_id = a.tenant_id and p.id = a.id
union all
select a.kind, c.tenant_id, c.id, c.public_id
from asked a join banners.campaigns c on a.kind = 'campaign' and c.tenant_id = a.tenant_id and c.id = a.id

-- name: read_deciding
select ranking, version, smart_scheduling from banners.deciding where tenant_id = $1

-- name: write_deciding
insert into banners.deciding (tenant_id, ranking, smart_scheduling, updated_at) values ($1, $2, $3, $4)
on conflict (tenant_id) do update
set ranking = excluded.ranking, smart_scheduling = excluded.smart_scheduling, updated_at = excluded.updated_at,
    version = banners.deciding.version + 1
returning ranking, version, smart_scheduling

-- name: load_deciding
-- no-tenant: $1 lists the tenants
select tenant_id, ranking, version, smart_scheduling from banners.deciding where tenant_id = any ($1)

-- name: rates
-- no-tenant: $1 lists the tenants that rank by it
select banner_id, sum(impressions)::bigint as impressions, sum(clicks)::bigint as clicks
from banners.banner_stats
where tenant_id = any ($1) and bucket >= $2
group by banner_id
