-- Where a tenant's phone numbers in national form are dialled. One row for each tenant; an empty column rewrites none.
alter table tenants.settings add column default_region text check (default_region ~ '^[A-Z]{2}$');
