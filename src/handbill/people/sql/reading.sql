-- What is read about people, by a tenant's own role behind its wall, or for those who follow them.

-- name: person
select person_id, named_by, ids, identified_at, properties::text as properties, created_at, updated_at
from people.persons where tenant_id = $1 and person_id = $2

-- name: person_of_id
select person_id from people.distinct_ids where tenant_id = $1 and distinct_id = $2

-- name: ids_of_person
select distinct_id, first_seen_at from people.distinct_ids
where tenant_id = $1 and person_id = $2 order by first_seen_at, distinct_id limit 1000

-- name: edges_of_person
-- In the order of the fold, the newest of very many: also those that were refused or taken back.
select edge_key, kind, source_id, target_id, first_at, first_event, outcome, voided_at, voided_by
from people.person_edges
where tenant_id = $1 and edge_key in (
    select e.edge_key from people.distinct_ids d
    join people.person_edges e on e.tenant_id = d.tenant_id and e.source_id = d.distinct_id
    where d.tenant_id = $1 and d.person_id = $2
    union
    select e.edge_key from people.distinct_ids d
    join people.person_edges e on e.tenant_id = d.tenant_id and e.target_id = d.distinct_id
    where d.tenant_id = $1 and d.person_id = $2
)
order by first_at desc, first_sequence desc, first_event desc, edge_key limit 1000

-- name: edge
select edge_key, kind, source_id, target_id, first_at, first_event, outcome, voided_at, voided_by
from people.person_edges where tenant_id = $1 and edge_key = $2

-- name: people_page
-- At most so many people are looked at for one page: a rare value costs more pages, never a longer wait.
with looked as (
    select person_id, named_by, ids, identified_at, properties, created_at, updated_at,
           row_number() over (order by created_at desc, person_id) as place
    from people.persons
    where tenant_id = $1
      and ($2::timestamptz is null or created_at <= $2 and (created_at < $2 or person_id > $3::uuid))
    order by created_at desc, person_id limit $5
)
select person_id, named_by, ids, identified_at, properties::text as properties, created_at, updated_at,
       place, (select count(*) from looked) as looked
from looked
where $4::jsonb is null or properties @> $4::jsonb or place = $5
order by place limit $6

-- name: warnings_page
select w.edge_key, w.code, w.detail, w.at, e.kind, e.source_id, e.target_id
from people.warnings w
join people.person_edges e on e.tenant_id = w.tenant_id and e.edge_key = w.edge_key
where w.tenant_id = $1 and ($2::timestamptz is null or (w.at, w.edge_key) < ($2, $3::bytea))
order by w.at desc, w.edge_key desc limit $4

-- name: event_definitions
select event_name as name, first_seen_at, last_seen_at from people.event_definitions
where tenant_id = $1 and event_name > $2 collate "C" order by event_name limit $3

-- name: property_definitions
select property_name as name, value_type, first_seen_at, last_seen_at from people.property_definitions
where tenant_id = $1 and property_type = $4 and property_name > $2 collate "C" order by property_name limit $3

-- name: event_properties
select property_name as name, value_type, first_seen_at, last_seen_at from people.event_properties
where tenant_id = $1 and event_name = $4 and property_name > $2 collate "C" order by property_name limit $3

-- name: siblings
-- Every id of the people who have these ids; an id that nobody knows has none.
select asked.distinct_id as asked, d.distinct_id
from people.distinct_ids asked
join people.persons p on p.tenant_id = $1 and p.person_id = asked.person_id and p.ids > 1
join people.distinct_ids d on d.tenant_id = $1 and d.person_id = asked.person_id
where asked.tenant_id = $1 and asked.distinct_id = any ($2::text[])

-- name: book
select words, moments from people.properties where tenant_id = $1 and distinct_id = $2

-- name: known_among
select distinct_id from people.distinct_ids where tenant_id = $1 and distinct_id = any ($2::text[])

-- name: erase_edges
delete from people.person_edges
where tenant_id = $1 and (source_id = any ($2::text[]) or target_id = any ($2::text[]))
returning edge_key

-- name: erase_books
delete from people.properties where tenant_id = $1 and distinct_id = any ($2::text[])

-- name: erase_ids
delete from people.distinct_ids where tenant_id = $1 and distinct_id = any ($2::text[])

-- name: erase_plans
-- After the ids: a squash that has just planned one of them held its row until its plan stood.
delete from people.squashing where tenant_id = $1 and distinct_id = any ($2::text[])

-- name: erase_marks
-- Work that waits, most of the time for less than a second: no index for a person, but portions in case it piles up.
with portion as (
    select ctid as place, regroup, mark_id, distinct_id = any ($2::text[]) as matches from people.unfolded
    where tenant_id = $1 and (regroup, mark_id) > ($3::boolean, $4::bigint) order by regroup, mark_id limit $5
), gone as (
    delete from people.unfolded
    where tenant_id = $1 and ctid = any (array(select place from portion where matches)) returning 1
)
select (select count(*)::int from gone), regroup, mark_id from portion order by regroup desc, mark_id desc limit 1

-- name: erase_followups
-- In portions, too. The others in it are told anew by the folding that follows.
with portion as (
    select followup_id, ids && $2::text[] as matches from people.followups
    where tenant_id = $1 and followup_id > $3::bigint order by followup_id limit $4
), gone as (
    delete from people.followups
    where tenant_id = $1 and followup_id = any (array(select followup_id from portion where matches)) returning 1
)
select (select count(*)::int from gone), followup_id from portion order by followup_id desc limit 1
