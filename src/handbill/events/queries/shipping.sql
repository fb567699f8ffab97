-- name: present
-- The slots hold numbers and hexadecimal digits of our own making; they are too many to be bound.
select tenant_id, hex(event_key) from events
where tenant_id in (<<tenants>>) and event_key in (<<keys>>)
  and at >= fromUnixTimestamp64Milli({start:Int64}) and at <= fromUnixTimestamp64Milli({end:Int64})
