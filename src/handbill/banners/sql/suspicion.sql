-- name: forget_marks
delete from banners.event_marks where tenant_id = $1 and occurred_at >= $2 and occurred_at < $3

-- name: mark_unseen_clicks
-- A click without an impression of the same banner, by the same session or user, in the day before it. Session and user
-- are asked one after the other: joined by an "or", PostgreSQL would look through a banner's whole day for every click.
-- Clicks that are counted apart ($4) are in no count that a mark could put in doubt.
insert into banners.event_marks (tenant_id, event_key, reason, kind, banner_id, placement_id, campaign_id, occurred_at)
select c.tenant_id, c.event_key, 'no_impression', 'click', c.banner_id, c.placement_id, c.campaign_id, c.occurred_at
from banners.banner_clicks c
where c.tenant_id = $1 and c.occurred_at >= $2 and c.occurred_at < $3
  and coalesce(c.session_id, c.user_id) is not null and not c.marks && $4
  and not exists (
    select from banners.banner_impressions i
    where i.tenant_id = $1 and i.occurred_at > $2::timestamptz - interval '1 day' and i.occurred_at < $3
      and i.banner_id = c.banner_id and i.session_id = c.session_id
      and i.occurred_at > c.occurred_at - interval '1 day' and i.occurred_at <= c.occurred_at
  )
  and not exists (
    select from banners.banner_impressions i
    where i.tenant_id = $1 and i.occurred_at > $2::timestamptz - interval '1 day' and i.occurred_at < $3
      and i.banner_id = c.banner_id and i.user_id = c.user_id
      and i.occurred_at > c.occurred_at - interval '1 day' and i.occurred_at <= c.occurred_at
  )
on conflict do nothing

-- name: mark_fast_repeats
-- Faster than a hand: the same session or user, the same banner, less than a second after the one before.
insert into banners.event_marks (tenant_id, event_key, reason, kind, banner_id, placement_id, campaign_id, occurred_at)
select tenant_id, event_key, 'too_fast', 'click', banner_id, placement_id, campaign_id, occurred_at
from (
    select *, lag(occurred_at) over (
        partition by banner_id, coalesce(session_id, user_id) order by occurred_at, event_key
    ) as before
    from banners.banner_clicks
    where tenant_id = $1 and occurred_at >= $2::timestamptz - interval '1 second' and occurred_at < $3
      and coalesce(session_id, user_id) is not null
) c
where occurred_at >= $2 and before > occurred_at - interval '1 second' and not marks && $4
on conflict do nothing

-- name: count_marks
select reason, kind, count(*) as events from banners.event_marks
where tenant_id = $1 and occurred_at >= $2 and occurred_at < $3
  and ($4::int[] is null or banner_id = any ($4))
  and ($5::int[] is null or placement_id = any ($5))
  and ($6::int[] is null or campaign_id = any ($6))
group by reason, kind
order by reason, kind

-- name: count_marks_of_clicks
-- The same by what only the raw rows say, of a bounded number of marks. Banner and time lead to the row by the index.
with marked as (
    select reason, kind, event_key, banner_id, occurred_at from banners.event_marks
    where tenant_id = $1 and occurred_at >= $2 and occurred_at < $3
      and ($4::int[] is null or banner_id = any ($4))
      and ($5::int[] is null or placement_id = any ($5))
      and ($6::int[] is null or campaign_id = any ($6))
    limit $12
)
select m.reason, m.kind, count(*) as looked_at, count(*) filter (where c.event_key is null) as gone,
       count(*) filter (
           where c.event_key is not null
             and ($7::text[] is null or c.variant = any ($7))
             and ($8::text[] is null or upper(c.country_code) = any ($8))
             and ($9::text[] is null or lower(c.device_type) = any ($9))
             and ($10::text[] is null
                  or left(split_part(split_part(c.page_url, '#', 1), '?', 1), $11::int) = any ($10))
       ) as events
from marked m
left join banners.banner_clicks c
       on c.tenant_id = $1 and c.banner_id = m.banner_id and c.occurred_at = m.occurred_at
      and c.occurred_at >= $2 and c.occurred_at < $3 and c.event_key = m.event_key
group by m.reason, m.kind
order by m.reason, m.kind
