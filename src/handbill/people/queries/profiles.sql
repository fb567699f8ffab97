-- Statements for ClickHouse. Slots hold numbers and ids of our own making.

-- name: forget_profiles
alter table person_profiles delete where tenant_id = <<tenant>> and person_id in (<<people>>)

-- name: clear_profiles
-- no-tenant: the profiles of all tenants are exported anew
truncate table person_profiles
