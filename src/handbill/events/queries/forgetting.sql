-- Statements for ClickHouse. A mutation is kept as text there, so no text of a client's may stand in it: names are
-- written as hexadecimal digits in the places <<name>>.

-- name: forget
alter table events update
    distinct_id = 'erased:<<new>>', person_id = toUUID('<<new>>'), event_id = '', session_id = '', properties = '{}',
    set = '', set_once = '', unset = '', url = '', referrer = '', ip = '', user_agent = ''
where tenant_id = <<tenant>> and distinct_id = unhex('<<name>>')

-- name: forget_session
alter table events update session_id = '' where tenant_id = <<tenant>> and session_id = unhex('<<name>>')

-- name: forget_moves
alter table person_distinct_id_overrides delete where tenant_id = <<tenant>> and distinct_id = unhex('<<name>>')

-- name: named
select countIf(distinct_id = {name:String}), countIf(session_id = {name:String} and distinct_id != {name:String})
from events where tenant_id = {tenant:UInt32} and (distinct_id = {name:String} or session_id = {name:String})

-- name: told
select event, event_id, at, received, distinct_id, session_id, properties, set, set_once, unset, url, referrer, country,
    browser, os, device_type, language, timezone, ip, user_agent, lib
from events where tenant_id = {tenant:UInt32} and distinct_id = {name:String}
order by at
limit {most:UInt32}
