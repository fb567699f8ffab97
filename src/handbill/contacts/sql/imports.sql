-- name: insert_import
insert into contacts.imports (tenant_id, import_id, file_name, file, size, sha256, status, plan, fixes, created_by, created_at)
values ($1, $2, $3, $4, $5, $6, 'ready', $7::text::jsonb, $8, $9, $10)
returning *

-- name: read_import
select * from contacts.imports where tenant_id = $1 and import_id = $2

-- name: lock_import
select * from contacts.imports where tenant_id = $1 and import_id = $2 for update

-- name: page_imports
select * from contacts.imports
where tenant_id = $1 and ($2::uuid is null or import_id < $2)
order by import_id desc limit $3

-- name: change_plan
update contacts.imports set plan = $3::text::jsonb, version = version + 1
where tenant_id = $1 and import_id = $2
returning *

-- name: move_import
update contacts.imports
set status = $3, paused = $4, error = $5, started_at = coalesce(started_at, $6), finished_at = $7, version = version + 1
where tenant_id = $1 and import_id = $2
returning *

-- name: open_imports
select count(*)::int from contacts.imports
where tenant_id = $1 and status in ('queued', 'splitting', 'parsing', 'parsed', 'merging', 'undoing')

-- name: count_unstarted
select count(*)::int as files, coalesce(sum(size), 0)::bigint as size from contacts.imports
where tenant_id = $1 and status = 'ready' and not file_gone

-- name: hold_uploads
-- Uploads of a tenant are stored one after the other: each sees those before it.
select pg_advisory_xact_lock(hashtextextended('contacts-uploads:' || $1::int, 0)), $1::int as tenant_id

-- name: expired_uploads
-- no-tenant: the clean-up of uploads serves all tenants
select tenant_id, import_id from contacts.imports
where not file_gone and status = 'ready' and created_at < $1
order by created_at limit $2

-- name: imports_with_files
-- no-tenant: the clean-up of uploads serves all tenants; the ids come from the names of files
select import_id from contacts.imports where not file_gone and import_id = any($1::uuid[])

-- name: running_imports
select count(*)::int from contacts.imports
where tenant_id = $1 and import_id <> $2 and not paused and status in ('splitting', 'parsing', 'merging', 'undoing')

-- name: save_cut
update contacts.imports set canonical = $3, rows = $4, slices = $5 where tenant_id = $1 and import_id = $2

-- name: insert_chunks
insert into contacts.import_parts (tenant_id, import_id, phase, no, start_at, end_at, first_row, rows)
select $1, $2, 'chunk', n - 1, s, e, f, r
from unnest($3::bigint[], $4::bigint[], $5::int[], $6::int[]) with ordinality u (s, e, f, r, n)

-- name: insert_slices
insert into contacts.import_parts (tenant_id, import_id, phase, no)
select $1, $2, 'slice', n from generate_series(0, $3::int - 1) n

-- name: read_part
select * from contacts.import_parts where tenant_id = $1 and import_id = $2 and phase = $3 and no = $4

-- name: claim_part
-- The first to finish a part keeps its result; a second one finds nothing to do.
update contacts.import_parts set done = true, counts = $5::text::jsonb
where tenant_id = $1 and import_id = $2 and phase = $3 and no = $4 and not done

-- name: close_part
update contacts.import_parts set counts = $5::text::jsonb where tenant_id = $1 and import_id = $2 and phase = $3 and no = $4

-- name: open_parts
select no from contacts.import_parts where tenant_id = $1 and import_id = $2 and phase = $3 and not done order by no

-- name: sum_counts
select phase, key, sum(value::text::bigint)::bigint as total
from contacts.import_parts p, jsonb_each(p.counts)
where tenant_id = $1 and import_id = $2 and done
group by phase, key

-- name: save_counts
update contacts.imports set counts = $3::text::jsonb where tenant_id = $1 and import_id = $2

-- name: hold_table
-- One import at a time writes a tenant's contacts; who asks for the table, and who gives it back, meet here.
select pg_advisory_xact_lock(hashtextextended('contacts-merge:' || $1::int, 0)), $1::int as tenant_id

-- name: table_taken
select exists (
    select from contacts.imports where tenant_id = $1 and import_id <> $2 and status in ('merging', 'undoing')
)

-- name: next_parsed
select import_id from contacts.imports
where tenant_id = $1 and status = 'parsed' and not paused order by started_at, import_id limit 1

-- name: by_index
-- no-tenant: how this transaction's statements are planned; fresh tables have no statistics to tell it
select set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true), set_config('work_mem', '32MB', true)

-- name: drop_staged
with portion as (
    select ctid as place, slice, row_no from contacts.import_rows
    where tenant_id = $1 and import_id = $2 and (slice, row_no) > ($3::int, $4::int) order by slice, row_no limit $5
), gone as (
    delete from contacts.import_rows where tenant_id = $1 and ctid = any (array(select place from portion)) returning 1
)
select (select count(*)::int from gone), slice, row_no from portion order by slice desc, row_no desc limit 1

-- name: causes
select severity, code, field, count(distinct row_no)::int as rows, min(value) as example
from contacts.import_findings where tenant_id = $1 and import_id = $2
group by severity, code, field order by severity desc, rows desc, code, field

-- name: findings_page
select row_no, severity, code, field, value, original, finding from contacts.import_findings
where tenant_id = $1 and import_id = $2 and (row_no, finding) > ($3, $4) and ($5::text is null or severity = $5)
order by row_no, finding limit $6

-- name: match_phones
select distinct phone as key from contacts.contacts where tenant_id = $1 and phone = any ($2::text[])

-- name: match_emails
select distinct email as key from contacts.contacts where tenant_id = $1 and email = any ($2::text[])

-- name: match_externals
select distinct external_id as key from contacts.contacts where tenant_id = $1 and external_id = any ($2::text[])

-- name: old_files
-- no-tenant: the clean-up of uploads serves all tenants
select tenant_id, import_id, file, canonical from contacts.imports
where not file_gone and status in ('done', 'failed', 'cancelled', 'undone') and created_at < $1
order by created_at limit $2

-- name: file_gone
update contacts.imports set file_gone = true where tenant_id = $1 and import_id = $2

-- name: share_import
-- Held while a part is done: a pause, a cancel or an end waits for it, other parts do not.
select * from contacts.imports where tenant_id = $1 and import_id = $2 for share
