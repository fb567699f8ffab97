-- An e-mail address is unique in its tenant, not in the installation: to refuse an address because another tenant has it
-- revealed that tenant's users. Tenants have few users, so the indexes are built at once.
alter table tenants.users add constraint uq_users_tenant_email unique (tenant_id, email);
create index ix_users_email on tenants.users (email);
alter table tenants.users drop constraint uq_users_email;

create function tenants.find_accounts(
    wanted text, of_tenant text, most int, out tenant_id int, out user_id uuid
) returns setof record
    language sql stable security definer rows 1
    set search_path = pg_catalog, pg_temp
as $$
    select u.tenant_id, u.user_id
    from tenants.users u
    join tenants.tenants t on t.tenant_id = u.tenant_id
    where u.email = lower(wanted) and (of_tenant is null or t.slug = of_tenant)
    order by u.user_id
    limit most
$$;

-- Row-level security is forced, so the function belongs to the role that bypasses it.
grant create on schema tenants to handbill_worker;
alter function tenants.find_accounts(text, text, int) owner to handbill_worker;
revoke create on schema tenants from handbill_worker;
revoke execute on function tenants.find_accounts(text, text, int) from public;
grant execute on function tenants.find_accounts(text, text, int) to handbill_app;
