-- name: create_segment
insert into segments.segments (tenant_id, public_id, name, description, rule, created_at, updated_at)
values ($1, $2, $3, $4, $5::jsonb, $6, $6)
returning *

-- name: count_segments
select count(*) from segments.segments where tenant_id = $1 and deleted_at is null

-- name: find_segment
select * from segments.segments where tenant_id = $1 and public_id = $2 and deleted_at is null

-- name: lock_segment
select * from segments.segments where tenant_id = $1 and public_id = $2 and deleted_at is null for update

-- name: list_segments
select * from segments.segments
where tenant_id = $1 and deleted_at is null and id > $2
    and ($4::text is null or strpos(lower(name), lower($4)) > 0)
order by id limit $3

-- name: all_segments
select * from segments.segments where tenant_id = $1 and deleted_at is null order by id

-- name: update_segment
update segments.segments set name = $3, description = $4, rule = $5::jsonb, version = version + 1, updated_at = $6
where tenant_id = $1 and id = $2
returning *

-- name: delete_segment
update segments.segments set deleted_at = $3, version = version + 1, updated_at = $3 where tenant_id = $1 and id = $2

-- name: walk_again
update segments.segments set walk = walk + 1 where tenant_id = $1 and id = any ($2::int[])

-- name: lock_rules
-- One change of rules at a time for a tenant: two that name each other would otherwise both pass.
select tenant_id from segments.watched where tenant_id = $1 for update

-- name: watch_tenant
insert into segments.watched (tenant_id) values ($1) on conflict (tenant_id) do nothing

-- name: known_segments
select public_id from segments.segments where tenant_id = $1 and public_id = any ($2::uuid[]) and deleted_at is null

-- name: read_needs
select need, ready from segments.needs where tenant_id = $1 order by need

-- name: add_needs
insert into segments.needs (tenant_id, need) select $1, n from unnest($2::text[]) as u (n) order by n
on conflict (tenant_id, need) do nothing

-- name: drop_needs
delete from segments.needs where tenant_id = $1 and not (need = any ($2::text[]))

-- name: settle_needs
update segments.needs set ready = true where tenant_id = $1 and need = any ($2::text[]) and not ready

-- name: those_inside
select d.distinct_id
from people.distinct_ids d
join segments.segment_members m on m.tenant_id = $1 and m.segment_id = $2 and m.person_id = d.person_id
where d.tenant_id = $1 and d.distinct_id = any ($3::text[])

-- name: members
select p.person_id, p.named_by, p.properties::text as properties, p.created_at
from segments.segment_members m
join people.persons p on p.tenant_id = $1 and p.person_id = m.person_id
where m.tenant_id = $1 and m.segment_id = $2 and m.person_id > $3
order by m.person_id limit $4

-- name: person_of
select p.person_id, p.properties::text as properties,
    floor(extract(epoch from p.created_at) * 1000)::bigint as created,
    (select array_agg(o.distinct_id) from people.distinct_ids o where o.tenant_id = $1 and o.person_id = p.person_id) as ids
from people.distinct_ids d
join people.persons p on p.tenant_id = $1 and p.person_id = d.person_id
where d.tenant_id = $1 and d.distinct_id = $2

-- name: preview
-- People stand in the order of their ids, which are digests: the first of them are a fair sample of all.
with seen as materialized (
    select p.person_id, p.named_by, p.properties, p.created_at
    from people.persons p where p.tenant_id = $1 order by p.person_id limit $2
), taken as materialized (
    select s.* from seen s
    where jsonb_path_match(
        jsonb_build_object(
            'p', s.properties, 'c', floor(extract(epoch from s.created_at) * 1000)::bigint, 'i', case when $5 then
                (select jsonb_agg(d.distinct_id) from people.distinct_ids d
                 where d.tenant_id = $1 and d.person_id = s.person_id) end),
        $3::text::jsonpath, $4::jsonb, true)
)
select (select count(*) from seen) as looked_at, (select count(*) from taken) as size,
    (select person_id from seen order by person_id desc limit 1) as last,
    (select json_agg(json_build_object(
        'person_id', t.person_id, 'named_by', t.named_by, 'properties', t.properties, 'created_at', t.created_at))
     from (select * from taken order by person_id limit 10) as t)::text as sample
