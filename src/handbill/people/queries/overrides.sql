-- Statements for ClickHouse. A mutation is kept as text there, so no text of a client's may stand in it: names are
-- written as hexadecimal digits in the place <<names>>.

-- name: moves_of
select count() from person_distinct_id_overrides where tenant_id = <<tenant>> and distinct_id in (<<names>>)

-- name: forget_moves
alter table person_distinct_id_overrides delete where tenant_id = <<tenant>> and distinct_id in (<<names>>)
