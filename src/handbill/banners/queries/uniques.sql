-- name: unique_people
-- An event that named no user, session or device has a distinct id made of its own id: it is nobody's.
select uniqExactIf(person, event = '$banner_impression' and not nobodys),
       uniqExactIf(person, event = '$banner_click' and not nobodys),
       uniqExactIf(person, event = '$banner_view' and not nobodys),
       countIf(event = '$banner_impression' and nobodys), countIf(event = '$banner_click' and nobodys),
       countIf(event = '$banner_view' and nobodys)
from (
    select e.event as event, e.distinct_id = concat('event:', e.event_id) as nobodys,
           if(empty(o.distinct_id), e.person_id, o.person_id) as person
    from events as e
    left join (
        select distinct_id, argMax(person_id, version) as person_id from person_distinct_id_overrides
        where tenant_id = {tenant:UInt32} group by distinct_id having argMax(deleted, version) = 0
    ) as o on o.distinct_id = e.distinct_id
    where e.tenant_id = {tenant:UInt32} and e.source = 'banners'
      and e.at >= fromUnixTimestamp64Milli({start:Int64}, 'UTC')
      and e.at < fromUnixTimestamp64Milli({end:Int64}, 'UTC')
      and e.event in ('$banner_impression', '$banner_click', '$banner_view')
      and (e.event != '$banner_view' or JSONExtractBool(e.properties, 'counted'))
      and not hasAny(e.marks, {apart:Array(String)}) and <<where>>
)
