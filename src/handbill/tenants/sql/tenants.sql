-- Tenants and their settings.

-- name: create_tenant
insert into tenants.tenants (public_id, slug, name, tier, time_zone, created_at, updated_at)
values ($1, $2, $3, $4, $5, $6, $6)
returning tenant_id, public_id, slug, name, tier, time_zone, status, version, created_at;

-- name: create_settings
insert into tenants.settings (tenant_id, updated_at) values ($1, $2);

-- name: list_tenants
-- no-tenant: the operator sees all tenants, from the command line only
select tenant_id, public_id, slug, name, tier, time_zone, status, version, created_at
from tenants.tenants
order by tenant_id;

-- name: find_tenant_by_slug
-- no-tenant: the operator names a tenant by its slug, from the command line only
select tenant_id, public_id, slug, name, tier, time_zone, status, version, created_at
from tenants.tenants
where slug = $1;

-- name: read_tenant
select tenant_id, public_id, slug, name, tier, time_zone, status, version, created_at
from tenants.tenants
where tenant_id = $1;

-- name: lock_tenant
select tenant_id, public_id, slug, name, tier, time_zone, status, version, created_at
from tenants.tenants
where tenant_id = $1
for update;

-- name: update_tenant
update tenants.tenants
set name = $2, time_zone = $3, status = $4, tier = $5, version = version + 1, updated_at = $6
where tenant_id = $1
returning tenant_id, public_id, slug, name, tier, time_zone, status, version, created_at;

-- name: read_settings
select jwt::text as jwt, jwt_secret, limits::text as limits, privacy::text as privacy, version,
       default_region
from tenants.settings
where tenant_id = $1;

-- name: update_settings
update tenants.settings
set jwt = $2::text::jsonb, jwt_secret = $3, limits = $4::text::jsonb, privacy = $5::text::jsonb,
    version = version + 1, updated_at = $6, default_region = $7
where tenant_id = $1;
