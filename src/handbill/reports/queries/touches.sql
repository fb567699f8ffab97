-- name: by_utm
-- A click is a click id; where a visit carries none, the visit itself. The property wins over the address.
select utm,
       uniqExactIf(touch, utm_visit) as clicks,
       uniqExact(distinct_id) as people,
       countIf(event in ('purchase', 'Purchase', '$purchase', 'Order Completed')) as purchases
from (
    select event, distinct_id,
           if(JSONExtractString(properties, 'utm_campaign') != '', JSONExtractString(properties, 'utm_campaign'),
              decodeURLComponent(extractURLParameter(url, 'utm_campaign'))) as utm,
           coalesce(nullIf(JSONExtractString(properties, 'fbclid'), ''), nullIf(extractURLParameter(url, 'fbclid'), ''),
                    concat(distinct_id, ' ', session_id)) as touch,
           event not in ('purchase', 'Purchase', '$purchase', 'Order Completed') as utm_visit
    from events
    where tenant_id = {tenant:UInt32}
      and at >= toDateTime64({start:String}, 3, {zone:String}) and at < toDateTime64({end:String}, 3, {zone:String})
      and (position(properties, 'utm_campaign') > 0 or position(url, 'utm_campaign') > 0)
)
where utm in {wanted:Array(String)}
group by utm
order by utm
