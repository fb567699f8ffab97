-- Statements for the event store. Slots in double angle brackets are filled by compile.py with expressions of its own
-- making; whatever a caller wrote, names of properties included, is bound as a parameter and never becomes text.

-- name: people
left join (
    select distinct_id, argMax(person_id, version) as person_id from person_distinct_id_overrides
    where tenant_id = {tenant:UInt32} group by distinct_id having argMax(deleted, version) = 0
) as o on o.distinct_id = e.distinct_id

-- name: scope
e.tenant_id = {tenant:UInt32}
and e.at >= fromUnixTimestamp64Milli({start:Int64}, 'UTC') and e.at < fromUnixTimestamp64Milli({end:Int64}, 'UTC')

-- name: top_values
select <<text>> as value, count() as events
from events as e <<people>>
where <<scope>> and <<where>> and <<said>> and e.tenant_id = {tenant:UInt32}
group by value
order by events desc, value
limit {groups:UInt32}

-- name: trends
select
    toUnixTimestamp64Milli(e.at) >= {middle:Int64} as current,
    roundDown(toUnixTimestamp64Milli(e.at), {cuts:Array(Int64)}) as cut,
    <<kind>> as kind,
    <<value>> as value,
    <<figures>>
from events as e <<people>>
where <<scope>> and <<where>> and e.tenant_id = {tenant:UInt32}
group by grouping sets ((current, cut, kind, value), (current, kind, value))

-- name: funnel
select kind, value, <<levels>>
from (
    select <<kind>> as kind, <<value>> as value, <<walk>>
    from (
        select
            <<person>> as person,
            <<entry>> as entry,
            arraySort(groupArray((toUnixTimestamp64Milli(e.at), <<mask>>))) as moments
        from events as e <<people>>
        where <<scope>> and <<where>> and e.tenant_id = {tenant:UInt32}
        group by person
    )
)
where notEmpty(chain)
group by kind, value

-- name: retention
select
    cohort,
    arrayJoin(arrayConcat([toInt64(0)], arrayFilter(k -> k > 0, arrayMap(r -> r - cohort, returned)))) as later,
    count() as people
from (
    select arrayJoin(cohorts) as cohort, returned
    from (
        select
            <<person>> as person,
            <<cohorts>> as cohorts,
            groupUniqArrayIf(<<place>>, <<returns>> and toUnixTimestamp64Milli(e.at) >= {middle:Int64}) as returned
        from events as e <<people>>
        where <<scope>> and <<where>> and e.tenant_id = {tenant:UInt32}
        group by person
    )
)
group by cohort, later

-- name: counts
select <<counts>>
from events as e <<people>>
where <<scope>> and <<where>> and e.tenant_id = {tenant:UInt32}

-- name: events
select
    toUnixTimestamp64Milli(e.at), toUnixTimestamp64Milli(e.received), e.event, e.event_id, e.distinct_id,
    <<person>>, e.session_id, e.properties, e.url, e.referrer, e.country, e.browser, e.os, e.device_type, e.lib,
    e.source, e.marks, lower(hex(e.event_key))
from (
    select * from events as e
    where <<scope>> and <<where>> and e.tenant_id = {tenant:UInt32}
    order by e.at desc, e.event_key desc
    limit {rows:UInt32}
) as e <<people>>
order by e.at desc, e.event_key desc
