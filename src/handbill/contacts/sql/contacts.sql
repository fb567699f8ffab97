-- name: insert_contact
insert into contacts.contacts (tenant_id, contact_id, phone, whatsapp, email, external_id, name, locale, attributes, tags,
    created_at, updated_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9::text::jsonb, $10, $11, $11)
returning *

-- name: read_contact
select * from contacts.contacts where tenant_id = $1 and contact_id = $2

-- name: lock_contact
select * from contacts.contacts where tenant_id = $1 and contact_id = $2 for update

-- name: update_contact
update contacts.contacts
set phone = $3, whatsapp = $4, email = $5, external_id = $6, name = $7, locale = $8, attributes = $9::text::jsonb,
    tags = $10, granted = $11, denied = $12, version = version + 1, updated_at = $13
where tenant_id = $1 and contact_id = $2
returning *

-- name: delete_contact
delete from contacts.contacts where tenant_id = $1 and contact_id = $2

-- name: forget_consents
delete from contacts.consent_log where tenant_id = $1 and contact_id = any ($2::uuid[])

-- name: hold_external
-- A statement of its own: what is asked afterwards must see what the one before us has committed.
select pg_advisory_xact_lock(hashtextextended('contacts:' || $1::int || ':' || $2::text, 0)), $1::int as tenant_id

-- name: external_taken
select exists (select from contacts.contacts where tenant_id = $1 and external_id = $2 and contact_id <> $3)

-- name: page_contacts
-- Any part of a name, or the beginning of an address or id: reads on in the order of ids until the page is full.
select * from contacts.contacts c
where tenant_id = $1 and ($2::uuid is null or contact_id > $2)
  and ($4::text is null or $4 = any (tags))
  and ($5::text is null or case $5 when 'email' then email else phone end is not null)
  and ($6::text is null or name ilike $6 or email like $7 or phone like $8 or external_id like $7)
order by contact_id limit $3

-- name: page_by_address
-- The beginning of an address, by its index: $6 says which, $7 and $8 are the bounds.
select * from (
    select * from contacts.contacts where $6::text = 'phone' and tenant_id = $1 and phone >= $7 and phone < $8
    union all
    select * from contacts.contacts where $6::text = 'email' and tenant_id = $1 and email >= $7 and email < $8
) c
where tenant_id = $1 and ($2::uuid is null or contact_id > $2)
  and ($4::text is null or $4 = any (tags))
  and ($5::text is null or case $5 when 'email' then email else phone end is not null)
order by contact_id limit $3

-- name: find_by_address
select * from contacts.contacts
where tenant_id = $1 and (phone = any ($2::text[]) or email = $3)
order by contact_id limit 1000 for update

-- name: recipient_by_address
select contact_id from contacts.contacts
where tenant_id = $1 and (phone = any ($2::text[]) or email = $3)
order by $4 = any (granted) desc, contact_id limit 1;

-- name: audience_page
-- One page of a campaign's audience on one channel: those with an address there, with what stands against writing.
select c.contact_id, a.address, c.name, c.attributes, c.locale,
    $4 = any (c.granted) as granted, $4 = any (c.denied) as denied, s.reason as suppressed, c.external_id, c.phone, c.email
from contacts.contacts c
cross join lateral (
    select case $4 when 'whatsapp' then c.whatsapp when 'email' then c.email else c.phone end as address
) a
left join contacts.suppressions s
    on s.tenant_id = c.tenant_id and s.channel = $4 and s.address = a.address and (s.until is null or s.until > $9)
where c.tenant_id = $1 and ($2::uuid is null or c.contact_id > $2) and a.address is not null
  and ($5::text[] = '{}' or c.tags && $5)
  and c.tags @> $6::text[]
  and not c.tags && $7::text[]
  and ($8::uuid[] = '{}' or c.contact_id = any ($8))
order by c.contact_id limit $3

-- name: tag_counts
select t as tag, count(*)::int as contacts
from contacts.contacts c, unnest(c.tags) t
where c.tenant_id = $1 group by t order by t limit 1000

-- name: insert_consent
insert into contacts.consent_log (tenant_id, contact_id, consent_id, at, channel, granted, source, proof, actor)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: page_consents
select at, channel, granted, source, proof, actor, import_id, consent_id from contacts.consent_log
where tenant_id = $1 and contact_id = $2 and ($3::uuid is null or consent_id > $3)
order by consent_id limit $4

-- name: consent_before_opt_out
-- An opt-out that the person sent is written down by the system, and by no import.
select c.contact_id, last.opted_out, other.granted as granted_before
from unnest($3::uuid[]) as c (contact_id)
cross join lateral (
    select not l.granted and l.actor = 'system' and l.import_id is null as opted_out from contacts.consent_log l
    where l.tenant_id = $1 and l.contact_id = c.contact_id and l.channel = $2
    order by l.at desc, l.consent_id desc limit 1
) last
left join lateral (
    select l.granted from contacts.consent_log l
    where l.tenant_id = $1 and l.contact_id = c.contact_id and l.channel = $2
        and (l.granted or l.actor <> 'system' or l.import_id is not null)
    order by l.at desc, l.consent_id desc limit 1
) other on true

-- name: put_suppression
-- A lasting one is not shortened by a passing one; an opt-out is not renamed by anything but itself.
insert into contacts.suppressions as s (tenant_id, channel, address, reason, until, note, created_at)
values ($1, $2, $3, $4, $5, $6, $7)
on conflict (tenant_id, channel, address) do update
set reason = case when s.reason = 'opt_out' and (s.until is null or s.until > $7) then s.reason else excluded.reason end,
    until = case
        when s.until is null or excluded.until is null then null
        else greatest(s.until, excluded.until)
    end,
    note = coalesce(excluded.note, s.note)
returning *

-- name: lift_suppression
delete from contacts.suppressions where tenant_id = $1 and channel = $2 and address = $3 returning *

-- name: lift_opt_out
delete from contacts.suppressions where tenant_id = $1 and channel = $2 and address = $3 and reason = 'opt_out'
returning address

-- name: page_suppressions
select * from contacts.suppressions
where tenant_id = $1 and ($2::text is null or (channel, address) > ($2, $3)) and ($5::text is null or channel = $5)
order by channel, address limit $4

-- name: standing_suppressions
select address, reason from contacts.suppressions
where tenant_id = $1 and channel = $2 and address = any ($3::text[]) and (until is null or until > $4)

-- name: sweep_suppressions
-- no-tenant: what has expired has expired for everybody
-- In portions by the primary key: few suppressions end, and no opt-out pays for an index.
with portion as (
    select ctid as place, tenant_id, channel, address, until from contacts.suppressions
    where (tenant_id, channel, address) > ($2::int, $3::text, $4::text)
    order by tenant_id, channel, address limit $5
), gone as (
    delete from contacts.suppressions
    where ctid = any (array(select place from portion where until <= $1)) and until <= $1 returning 1
)
select (select count(*)::int from gone), tenant_id, channel, address from portion
order by tenant_id desc, channel desc, address desc limit 1

-- name: erase_find
select contact_id, phone, email from contacts.contacts
where tenant_id = $1 and (external_id = $2 or phone = $3 or email = $4) for update

-- name: erase_contacts
delete from contacts.contacts where tenant_id = $1 and contact_id = any ($2::uuid[])

-- name: import_ids
select import_id from contacts.imports where tenant_id = $1 and import_id > $2 order by import_id limit $3

-- name: erase_changes
-- Import by import: the primary key leads to the contact only within an import.
delete from contacts.import_changes
where tenant_id = $1 and import_id = any ($3::uuid[]) and contact_id = any ($2::uuid[])

-- name: erase_staged
-- Staged rows have no index that leads to a person; they are written by the million and live for an import. In portions.
with portion as (
    select ctid as place, import_id, slice, row_no,
           external_id = $2 or phone = any ($3::text[]) or email = any ($4::text[]) as matches
    from contacts.import_rows
    where tenant_id = $1 and (import_id, slice, row_no) > ($5::uuid, $6::int, $7::int)
    order by import_id, slice, row_no limit $8
), gone as (
    delete from contacts.import_rows
    where tenant_id = $1 and ctid = any (array(select place from portion where matches)) returning 1
)
select (select count(*)::int from gone), import_id, slice, row_no from portion
order by import_id desc, slice desc, row_no desc limit 1

-- name: erase_findings
-- A rejected row has no contact: its text is searched for the addresses as they were written. In portions.
with portion as (
    select ctid as place, import_id, row_no, finding,
           exists (select from unnest($2::text[]) w where position(w in original) > 0) as matches
    from contacts.import_findings
    where tenant_id = $1 and (import_id, row_no, finding) > ($3::uuid, $4::int, $5::int)
    order by import_id, row_no, finding limit $6
), gone as (
    delete from contacts.import_findings
    where tenant_id = $1 and ctid = any (array(select place from portion where matches)) returning 1
)
select (select count(*)::int from gone), import_id, row_no, finding from portion
order by import_id desc, row_no desc, finding desc limit 1

-- name: erase_suppression_notes
update contacts.suppressions set note = null
where tenant_id = $1 and channel = any ($3::text[]) and address = any ($2::text[]) and note is not null

-- name: export_contacts
select contact_id, phone, whatsapp, email, external_id, name, locale, attributes, tags, granted, denied, created_at, updated_at
from contacts.contacts where tenant_id = $1 and contact_id = any ($2::uuid[]) order by contact_id limit $3

-- name: export_consents
select contact_id, at, channel, granted, source, proof, actor, import_id from contacts.consent_log
where tenant_id = $1 and contact_id = any ($2::uuid[]) order by contact_id, consent_id limit $3

-- name: export_findings
select import_id, row_no, severity, code, field, original from contacts.import_findings
where tenant_id = $1 and exists (select from unnest($2::text[]) w where position(w in original) > 0)
order by import_id, row_no, finding limit $3

-- name: export_suppressions
select channel, address, reason, until, note, created_at from contacts.suppressions
where tenant_id = $1 and address = any ($2::text[]) order by channel, address limit $3

-- name: old_reports
-- no-tenant: reports grow old in the same way for everybody
-- A portion of all imports, and which of them are old and still have a report.
select i.tenant_id, i.import_id,
       i.created_at < $1 and (
           select f.row_no from contacts.import_findings f
           where f.tenant_id = i.tenant_id and f.import_id = i.import_id
           order by f.row_no limit 1) is not null as due
from contacts.imports i
where (i.tenant_id, i.import_id) > ($2::int, $3::uuid)
order by i.tenant_id, i.import_id limit $4

-- name: sweep_findings
delete from contacts.import_findings
where tenant_id = $1 and ctid = any (array(
    select ctid from contacts.import_findings where tenant_id = $1 and import_id = $2 order by row_no limit $3))
