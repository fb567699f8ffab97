-- Statements for ClickHouse. A mutation is kept as text there, so no text of a client's may stand in it: names are
-- written as hexadecimal digits in the places <<names>>.

-- name: forget
-- A banner event goes on counting: what it was about, and whether it counts, say nothing of anybody.
alter table events update
    distinct_id = 'erased:<<new>>', person_id = toUUID('<<new>>'), event_id = '', session_id = '',
    properties = if(source = 'banners', concat('{', arrayStringConcat(arrayMap(
        name -> concat('"', name, '":', JSONExtractRaw(properties, name)),
        arrayFilter(
            name -> JSONHas(properties, name),
            ['banner_id', 'placement_id', 'campaign_id', 'variant', 'duration_ms', 'dismissed', 'counted', 'viewable',
             'required_ms']
        )
    ), ','), '}'), '{}'),
    set = '', set_once = '', unset = '', url = '', referrer = '', ip = '', user_agent = ''
where tenant_id = <<tenant>> and distinct_id in (<<names>>)

-- name: forget_sessions
alter table events update session_id = '' where tenant_id = <<tenant>> and session_id in (<<names>>)

-- name: named
select countIf(distinct_id in (<<names>>)), countIf(session_id in (<<names>>) and distinct_id not in (<<names>>))
from events where tenant_id = <<tenant>> and (distinct_id in (<<names>>) or session_id in (<<names>>))

-- name: told
select event, event_id, addMicroseconds(at, micros), received, distinct_id, session_id, properties, set, set_once, unset, url,
    referrer, country, browser, os, device_type, language, timezone, ip, user_agent, lib
from events where tenant_id = {tenant:UInt32} and distinct_id = {name:String}
order by at, micros, sequence, event_id, event_key
limit {most:UInt32}
