-- name: unique_people
select uniqExactIf(person, event = '$banner_impression'), uniqExactIf(person, event = '$banner_click'),
       uniqExactIf(person, event = '$banner_view' and JSONExtractBool(properties, 'counted'))
from (
    select e.event as event, e.properties as properties, if(empty(o.distinct_id), e.person_id, o.person_id) as person
    from events e
    left join (
        select distinct_id, argMax(person_id, version) as person_id from person_distinct_id_overrides
        where tenant_id = {tenant:UInt32} group by distinct_id having argMax(deleted, version) = 0
    ) o on o.distinct_id = e.distinct_id
    where e.tenant_id = {tenant:UInt32}
      and e.at >= fromUnixTimestamp64Milli({start:Int64}) and e.at < fromUnixTimestamp64Milli({end:Int64})
      and e.event in ('$banner_impression', '$banner_click', '$banner_view') and not has(e.marks, 'bot')
      and ({all_banners:UInt8} or has({banners:Array(UInt32)}, e.banner_id))
      and ({all_placements:UInt8} or has({placements:Array(UInt32)}, e.placement_id))
      and ({all_campaigns:UInt8} or has({campaigns:Array(UInt32)}, e.campaign_id))
)
