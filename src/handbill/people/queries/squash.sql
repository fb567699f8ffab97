-- Statements for ClickHouse. Slots hold names and numbers of our own making.

-- name: make_table
-- no-tenant: one run squashes the ids of all tenants
create table <<table>> (tenant_id UInt32, distinct_id String, person_id UUID)
engine = Join(any, left, tenant_id, distinct_id)

-- name: drop_table
-- no-tenant: the run's own table
drop table if exists <<table>>

-- name: write_people
alter table events
update person_id = assumeNotNull(joinGetOrNull('<<table>>', 'person_id', tenant_id, distinct_id))
where tenant_id in (<<tenants>>) and isNotNull(joinGetOrNull('<<table>>', 'person_id', tenant_id, distinct_id))

-- name: tidy_overrides
-- no-tenant: merges are of the whole table
optimize table person_distinct_id_overrides final cleanup

-- name: running
-- no-tenant: mutations are of the whole table
select mutation_id, command, latest_fail_reason from system.mutations
where database = currentDatabase() and table = 'events' and not is_done and position(command, {word:String}) > 0

-- name: kill_mutation
-- no-tenant: mutations are of the whole table
kill mutation where database = currentDatabase() and mutation_id = '<<mutation>>'

-- name: leftovers
-- no-tenant: only names of tables
select name from system.tables where database = currentDatabase() and startsWith(name, {word:String})
