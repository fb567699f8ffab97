-- name: present
-- The slots hold numbers and hexadecimal digits of our own making; they are too many to be bound.
select tenant_id, hex(event_key) from events
where tenant_id in (<<tenants>>) and event_key in (<<keys>>) and toDate(at) in (<<days>>)
  and at >= fromUnixTimestamp64Milli({start:Int64}) and at <= fromUnixTimestamp64Milli({end:Int64})

-- name: stored_rows
-- The slots hold numbers and hexadecimal digits of our own making. `at` leads to the partitions.
select hex(batch_id), count() from events
where tenant_id in (<<tenants>>) and batch_id in (<<batches>>)
  and at >= fromUnixTimestamp64Milli({start:Int64}) and at <= fromUnixTimestamp64Milli({end:Int64})
group by batch_id

-- name: stored_of_batches
-- no-tenant: a batch holds the events of every tenant of its lane
select hex(batch_id), count() from events where batch_id in (<<batches>>) group by batch_id

-- name: stored_event
select marks, properties from events
where tenant_id = {tenant:UInt32} and event_key = toFixedString(unhex({key:String}), 16)
limit 1
