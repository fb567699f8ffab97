-- Statements for the event store. Slots in double angle brackets are filled with expressions of event_stats.py's own
-- making; whatever a caller wrote is bound as a parameter.

-- name: event_series
with hasAny(e.marks, {apart:Array(String)}) as apart
select <<cut>> as cut, <<dimensions>>
    countIf(e.event = '$banner_impression' and not apart) as impressions,
    countIf(e.event = '$banner_click' and not apart) as clicks,
    countIf(e.event = '$banner_view' and not apart) as views,
    countIf(e.event = '$banner_view' and not apart and JSONExtractBool(e.properties, 'dismissed')) as dismissals,
    countIf(e.event = '$banner_impression' and apart) as marked_impressions,
    countIf(e.event = '$banner_click' and apart) as marked_clicks,
    countIf(e.event = '$banner_view' and apart) as marked_views
from events as e
where e.tenant_id = {tenant:UInt32} and e.source = 'banners'
  and e.at >= fromUnixTimestamp64Milli({start:Int64}, 'UTC') and e.at < fromUnixTimestamp64Milli({end:Int64}, 'UTC')
  and e.event in ('$banner_impression', '$banner_click', '$banner_view')
  and (e.event != '$banner_view' or JSONExtractBool(e.properties, 'counted')) and <<where>>
group by <<groups>>
order by <<groups>>
limit {rows:UInt32}

-- name: event_days
select toString(toDate32(e.at, 'UTC')) as day, countIf(e.event = '$banner_impression') as impressions,
    countIf(e.event = '$banner_click') as clicks, countIf(e.event = '$banner_view') as views
from events as e
where e.tenant_id = {tenant:UInt32} and e.source = 'banners'
  and e.at >= fromUnixTimestamp64Milli({start:Int64}, 'UTC') and e.at < fromUnixTimestamp64Milli({end:Int64}, 'UTC')
  and e.event in ('$banner_impression', '$banner_click', '$banner_view')
  and (e.event != '$banner_view' or JSONExtractBool(e.properties, 'counted')) and <<where>>
group by day
