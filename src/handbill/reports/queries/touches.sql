-- name: by_utm
-- A click is a click id; a visit none of whose events carries one is a click itself. The property wins over the address.
-- An impression or click that named no user, session or device is nobody's: neither a visit nor a person.
with visits as (
    select utm, distinct_id, session_id,
           groupUniqArrayIf(fbclid, fbclid != '' and not bought) as ids,
           countIf(not bought) as seen,
           countIf(bought) as purchases,
           any(nobodys) as nobodys
    from (
        select distinct_id, session_id, source = 'banners' and distinct_id = concat('event:', event_id) as nobodys,
               if(JSONExtractString(properties, 'utm_campaign') != '', JSONExtractString(properties, 'utm_campaign'),
                  decodeURLFormComponent(extractURLParameter(url, 'utm_campaign'))) as utm,
               if(JSONExtractString(properties, 'fbclid') != '', JSONExtractString(properties, 'fbclid'),
                  extractURLParameter(url, 'fbclid')) as fbclid,
               event in ('purchase', 'Purchase', '$purchase', 'Order Completed') as bought
        from events
        where tenant_id = {tenant:UInt32}
          and at >= toDateTime64({start:String}, 3, {zone:String}) and at < toDateTime64({end:String}, 3, {zone:String})
          and (position(properties, 'utm_campaign') > 0 or position(url, 'utm_campaign') > 0)
    )
    where utm in {wanted:Array(String)}
    group by utm, distinct_id, session_id
)
select utm, uniqExactArray(ids) + countIf(empty(ids) and seen > 0 and not nobodys) as clicks,
       uniqExactIf(distinct_id, not nobodys) as people, sum(purchases) as purchases
from visits
group by utm
order by utm
