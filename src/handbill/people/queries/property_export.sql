-- Statements for ClickHouse. Slots hold numbers and ids of our own making.

-- name: forget_properties
alter table person_properties delete where tenant_id = <<tenant>> and person_id in (<<people>>)

-- name: clear_properties
-- no-tenant: the properties of all tenants are exported again
truncate table person_properties
