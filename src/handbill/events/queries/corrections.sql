-- name: stored_sequences
-- The slots hold numbers and hexadecimal digits of our own making; they are too many to be bound.
select tenant_id, hex(event_key), max(sequence) from events
where tenant_id in (<<tenants>>) and event_key in (<<keys>>)
group by tenant_id, event_key

-- name: correct_sequences
-- The slots hold numbers and hexadecimal digits of our own making. Two tenants may have events with one key.
alter table events update sequence = <<wanted>>
where tenant_id in (<<tenants>>) and event_key in (<<keys>>) and sequence > <<wanted>>

-- name: wanted_sequence
transform(concat(toString(tenant_id), ' ', hex(event_key)), [<<names>>], [<<sequences>>], sequence)

-- name: corrections_running
-- no-tenant: mutations are of the whole table
select mutation_id, latest_fail_reason from system.mutations
where database = currentDatabase() and table = 'events' and not is_done and position(command, 'UPDATE sequence =') > 0

-- name: end_mutation
-- no-tenant: mutations are of the whole table
kill mutation where database = currentDatabase() and mutation_id = '<<mutation>>'
