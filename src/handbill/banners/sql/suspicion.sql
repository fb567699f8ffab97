-- name: forget_marks
delete from banners.event_marks where tenant_id = $1 and occurred_at >= $2 and occurred_at < $3

-- name: mark_unseen_clicks
-- A click without an impression of the same banner, by the same session or user, in the day before it. Session and user
-- are asked one after the other: joined by an "or", PostgreSQL would look through a banner's whole day for every click.
insert into banners.event_marks (tenant_id, event_key, reason, kind, banner_id, placement_id, campaign_id, occurred_at)
select c.tenant_id, c.event_key, 'no_impression', 'click', c.banner_id, c.placement_id, c.campaign_id, c.occurred_at
from banners.banner_clicks c
where c.tenant_id = $1 and c.occurred_at >= $2 and c.occurred_at < $3
  and coalesce(c.session_id, c.user_id) is not null
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
where occurred_at >= $2 and before > occurred_at - interval '1 second'
on conflict do nothing

-- name: count_marks
select reason, kind, count(*) as events from banners.event_marks
where tenant_id = $1 and occurred_at >= $2 and occurred_at < $3
  and ($4::int[] is null or banner_id = any ($4))
group by reason, kind
order by reason, kind
