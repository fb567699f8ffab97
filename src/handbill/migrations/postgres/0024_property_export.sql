-- What people are like now goes to ClickHouse, for questions about events by properties of their people. A change is written
-- in the transaction that changes a person, and goes when ClickHouse has what holds since.
create table people.property_changes (
    tenant_id int not null references tenants.tenants (tenant_id),
    person_id uuid not null,
    change_id bigint generated always as identity,       -- the version in ClickHouse: taken while the person's row is held
    primary key (tenant_id, change_id)
);
create index ix_property_changes_change_id on people.property_changes (change_id);
select handbill_wall('people.property_changes'::regclass);
revoke insert, update, delete on people.property_changes from handbill_app;

create function people.mark_new_properties() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    insert into people.property_changes (tenant_id, person_id)
    select c.tenant_id, c.person_id from changed c where c.properties <> '{}' order by 1, 2;
    return null;
end
$$;

create function people.mark_changed_properties() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
begin
    insert into people.property_changes (tenant_id, person_id)
    select c.tenant_id, c.person_id
    from changed c
    join earlier e on e.tenant_id = c.tenant_id and e.person_id = c.person_id
    where c.properties <> e.properties
    order by 1, 2;
    return null;
end
$$;

create trigger properties_inserted after insert on people.persons
    referencing new table as changed for each statement execute function people.mark_new_properties();
create trigger properties_updated after update on people.persons
    referencing old table as earlier new table as changed for each statement execute function people.mark_changed_properties();
create trigger properties_deleted after delete on people.persons
    referencing old table as changed for each statement execute function people.mark_new_properties();

-- How far the people that were there before have been exported, in the order of their keys. One row.
create table people.property_backfill (
    is_only      boolean primary key default true check (is_only),
    after_tenant int not null default 0,
    after_person uuid not null default '00000000-0000-0000-0000-000000000000',
    finished_at  timestamptz
);
grant select, update on people.property_backfill to handbill_worker;
insert into people.property_backfill default values;
