-- Statements for the event store. Slots in double angle brackets are filled by compile.py with expressions of its own
-- making; whatever a caller wrote, names of properties included, is bound as a parameter and never becomes text.

-- name: people
left join (
    select distinct_id, argMax(person_id, version) as person_id from person_distinct_id_overrides
    where tenant_id = {tenant:UInt32} group by distinct_id having argMax(deleted, version) = 0
) as o on o.distinct_id = e.distinct_id

-- name: person_properties
-- What is asked of people as they are now, read from their properties before the join: it keeps no more than that of each.
left join (
    select person_id, [<<said>>] as said from person_properties final
    where tenant_id = {tenant:UInt32} and deleted = 0 and arrayExists(found -> notEmpty(found), said)
) as p on p.person_id = if(empty(o.distinct_id), e.person_id, o.person_id)

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

-- name: ties
-- Where ids decide: events of one person, microsecond and sequence that match different steps. `part` is the first 10 bits of
-- the instant's hash, a hit its other 54 and the steps. Instants whose hashes are equal are named needlessly, which is harmless.
select arrayJoin(arrayMap(
    hit -> bitOr(bitShiftLeft(part, 54), bitShiftRight(hit, 10)),
    arrayFilter((hit, previous) -> bitXor(hit, previous) between 1 and 1023, hits, arrayShiftRight(hits, 1))
))
from (
    with <<instant>> as instant
    select
        bitShiftRight(instant, 54) as part,
        arraySort(groupArray(bitOr(bitShiftLeft(instant, 10), <<mask>>))) as hits
    from events as e <<people>>
    where <<scope>> and <<where>> and e.tenant_id = {tenant:UInt32}
    group by part
)

-- name: funnel
-- A moment is one number that sorts as the events do: microseconds from the start (55 bits), sequence (62), steps (10), and
-- whether ids decide (1). `by_id` has the steps of those that ids decide, in order: the n-th of them takes the n-th.
select kind, value, <<levels>>
from (
    select <<kind>> as kind, <<value>> as value, <<walk>>
    from (
        select
            entry,
            arrayMap(moment -> toInt64(bitShiftRight(moment, 73)) + {start:Int64} * 1000, moments) as times,
            arrayMap(moment -> toUInt8(bitAnd(toUInt64(moment), 1)), moments) as ties,
            arrayMap(
                (moment, is_tied, n) -> if(is_tied, by_id[n], bitAnd(bitShiftRight(toUInt64(moment), 1), 1023)),
                moments, ties, arrayCumSum(ties)
            ) as hits
        from (
            with <<moment>> as us, <<mask>> as mask, <<instant>> in (<<ties>>) as is_tied
            select
                <<person>> as person,
                <<entry>> as entry,
                arraySort(groupArray(bitOr(
                    bitShiftLeft(toUInt128(us - {start:Int64} * 1000), 73),
                    bitOr(bitShiftLeft(toUInt128(e.sequence), 11), toUInt128(bitOr(bitShiftLeft(mask, 1), is_tied)))
                ))) as moments,
                arrayMap(tie -> tie.4, arraySort(groupArrayIf((us, e.sequence, e.event_id, mask), is_tied))) as by_id
            from events as e <<people>>
            where <<scope>> and <<where>> and e.tenant_id = {tenant:UInt32}
            group by person
        )
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
    <<moment>>, toUnixTimestamp64Milli(e.received), e.event, e.event_id, e.distinct_id,
    <<person>>, e.session_id, e.properties, e.url, e.referrer, e.country, e.browser, e.os, e.device_type, e.lib,
    e.source, e.marks, lower(hex(e.event_key)), e.sequence
from (
    select e.* from events as e <<narrowing>>
    where <<scope>> and <<where>> and e.tenant_id = {tenant:UInt32}
    order by e.at desc, e.micros desc, e.sequence desc, e.event_id desc, e.event_key desc
    limit {rows:UInt32}
) as e <<people>>
order by e.at desc, e.micros desc, e.sequence desc, e.event_id desc, e.event_key desc
