-- name: merge_slice
-- One slice of the keys, whole: $4 the key, $5 the policy, $6 the mapped attributes, $7 the mapped fields, $8 tags for
-- all, $9 channels of the consent, $10 its source, $11 its proof, $12 who started the import, $13 when.
-- Consent is three-valued: a row that says neither yes nor no leaves everything as it is.
-- Rows of one key are folded as if they were applied one after the other, in the order of the file.
with staged as (
    delete from contacts.import_rows where tenant_id = $1 and import_id = $2 and slice = $3
    returning row_no, contact_id, phone, whatsapp, email, external_id, name, locale, attributes, tags, consent,
        case $4::text when 'phone' then phone when 'email' then email else external_id end as key
), ranked as (
    select *, count(*) over (partition by key) as copies from staged
), folded as (
    select key, contact_id, phone, whatsapp, email, external_id, name, locale, attributes, tags, consent
    from ranked where copies = 1
    union all
    select key, (array_agg(contact_id order by row_no))[1],
        contacts.pick($5, array_agg(phone order by row_no)), contacts.pick($5, array_agg(whatsapp order by row_no)),
        contacts.pick($5, array_agg(email order by row_no)), contacts.pick($5, array_agg(external_id order by row_no)),
        contacts.pick($5, array_agg(name order by row_no)), contacts.pick($5, array_agg(locale order by row_no)),
        case
            when $5::text = 'skip' then (array_agg(attributes order by row_no))[1]
            when $5 = 'replace' then (array_agg(attributes order by row_no desc))[1]
            when $5 = 'update' then contacts.overlay(attributes order by row_no)
            else contacts.overlay(attributes order by row_no desc)
        end,
        case when $5 = 'skip' then contacts.all_tags(tags order by row_no) filter (where row_no = first_row)
             else contacts.all_tags(tags order by row_no) end,
        case when $5 = 'skip' then (array_agg(consent order by row_no))[1] else bool_and(consent) end
    from (select *, min(row_no) over (partition by key) as first_row from ranked where copies > 1) several
    group by key
), matched as (
    select f.*, m.contact_id as found
    from folded f
    left join lateral (
        select contact_id from (
            select contact_id, created_at from contacts.contacts c
            where $4 = 'phone' and c.tenant_id = $1 and c.phone = f.key
            union all
            select contact_id, created_at from contacts.contacts c
            where $4 = 'email' and c.tenant_id = $1 and c.email = f.key
            union all
            select contact_id, created_at from contacts.contacts c
            where $4 = 'external_id' and c.tenant_id = $1 and c.external_id = f.key
        ) those order by created_at, contact_id limit 1
    ) m on true
), inserted as (
    insert into contacts.contacts (tenant_id, contact_id, phone, whatsapp, email, external_id, name, locale, attributes,
        tags, granted, denied, created_at, updated_at)
    select $1, contact_id, phone, whatsapp, email, external_id, name, locale, attributes,
        case when tags = '{}' then $8::text[] else contacts.add_tags(tags, $8::text[]) end,
        case when consent then $9::text[] else '{}' end, case when not consent then $9::text[] else '{}' end,
        $13::timestamptz, $13::timestamptz
    from matched where found is null
    returning contact_id, granted, denied
), before as (
    select c.contact_id, f.consent, c.phone, c.whatsapp, c.email, c.external_id, c.name, c.locale, c.attributes, c.tags,
        c.granted, c.denied,
        case $5::text
            when 'update' then (
                coalesce(f.phone, c.phone), coalesce(f.whatsapp, c.whatsapp), coalesce(f.email, c.email),
                coalesce(f.external_id, c.external_id), coalesce(f.name, c.name), coalesce(f.locale, c.locale),
                c.attributes || f.attributes
            )::contacts.fields
            when 'update_blanks' then (
                coalesce(c.phone, f.phone), coalesce(c.whatsapp, f.whatsapp), coalesce(c.email, f.email),
                coalesce(c.external_id, f.external_id), coalesce(c.name, f.name), coalesce(c.locale, f.locale),
                f.attributes || c.attributes
            )::contacts.fields
            else (
                case when 'phone' = any ($7::text[]) then f.phone else c.phone end,
                case when 'phone' = any ($7) then f.whatsapp else c.whatsapp end,
                case when 'email' = any ($7) then f.email else c.email end,
                case when 'external_id' = any ($7) then f.external_id else c.external_id end,
                case when 'name' = any ($7) then f.name else c.name end,
                case when 'locale' = any ($7) then f.locale else c.locale end,
                (c.attributes - $6::text[]) || f.attributes
            )::contacts.fields
        end as new,
        contacts.add_tags(c.tags, f.tags || $8::text[]) as new_tags,
        case when f.consent then contacts.add_tags(c.granted, contacts.without($9::text[], c.denied))
             when not f.consent then contacts.without(c.granted, $9::text[]) else c.granted end as new_granted,
        case when not f.consent then contacts.add_tags(c.denied, $9::text[]) else c.denied end as new_denied
    from matched f join contacts.contacts c on c.tenant_id = $1 and c.contact_id = f.found
    where $5::text <> 'skip'
    for update of c  -- as it is now: a no that was said since the statement began must not be written over
), changed as (
    select * from before b
    where ((b.new).phone, (b.new).whatsapp, (b.new).email, (b.new).external_id, (b.new).name, (b.new).locale,
            (b.new).attributes, b.new_tags, b.new_granted, b.new_denied)
        is distinct from (b.phone, b.whatsapp, b.email, b.external_id, b.name, b.locale, b.attributes, b.tags, b.granted,
            b.denied)
), updated as (
    update contacts.contacts c
    set phone = (b.new).phone, whatsapp = (b.new).whatsapp, email = (b.new).email, external_id = (b.new).external_id,
        name = (b.new).name, locale = (b.new).locale, attributes = (b.new).attributes, tags = b.new_tags,
        granted = b.new_granted, denied = b.new_denied, version = c.version + 1, updated_at = $13
    from changed b where c.tenant_id = $1 and c.contact_id = b.contact_id
    returning c.contact_id
), logged as (
    insert into contacts.import_changes (tenant_id, import_id, contact_id, before, after)
    select $1, $2, contact_id,
        jsonb_build_object('phone', phone, 'whatsapp', whatsapp, 'email', email, 'external_id', external_id, 'name', name,
            'locale', locale, 'attributes', attributes, 'tags', tags, 'granted', granted, 'denied', denied),
        jsonb_build_object('phone', (new).phone, 'whatsapp', (new).whatsapp, 'email', (new).email,
            'external_id', (new).external_id, 'name', (new).name, 'locale', (new).locale,
            'attributes', (new).attributes, 'tags', new_tags, 'granted', new_granted, 'denied', new_denied)
    from changed
), consents as (
    insert into contacts.consent_log (tenant_id, contact_id, consent_id, at, channel, granted, source, proof, actor, import_id)
    select $1, contact_id, gen_random_uuid(), $13, channel, yes, $10::text, $11::text, $12::text, $2
    from (
        select contact_id, channel, true as yes from inserted, unnest(granted) channel
        union all
        select contact_id, channel, false from inserted, unnest(denied) channel
        union all
        select contact_id, channel, true from changed, unnest(contacts.without(new_granted, granted)) channel
        union all
        select contact_id, channel, false from changed, unnest(contacts.without(new_denied, denied)) channel
    ) said
)
select (select count(*) from staged)::int as rows, (select count(*) from folded)::int as keys,
    (select count(*) from inserted)::int as created, (select count(*) from updated)::int as updated,
    (select count(*) from matched where found is not null)::int as matched

-- name: undo_created
-- Contacts that the import made and nobody has touched since. A range, and no join of contacts with themselves: its plan
-- is linear whatever the statistics of a table say that has just grown.
with portion as (
    select coalesce((
        select contact_id from contacts.contacts
        where tenant_id = $1 and contact_id between $2 and $3 and version = 1
        order by contact_id offset $4 - 1 limit 1
    ), $3) as last
), gone as (
    delete from contacts.contacts
    where tenant_id = $1 and contact_id between $2 and (select last from portion) and version = 1
    returning contact_id
), forgotten as (
    delete from contacts.consent_log
    where tenant_id = $1 and contact_id between $2 and (select last from portion)
      and contact_id in (select contact_id from gone)
)
select count(*)::int from gone

-- name: keep_created
insert into contacts.undo_kept (tenant_id, import_id, contact_id, fields, why)
select tenant_id, $4, contact_id, '{}', 'CHANGED_SINCE' from contacts.contacts
where tenant_id = $1 and contact_id between $2 and $3
on conflict do nothing

-- name: hold_changed
-- Before they are compared: what somebody changes at this moment is waited for, and then seen.
select c.contact_id from contacts.contacts c
where c.tenant_id = $1 and c.contact_id in (
    select contact_id from contacts.import_changes where tenant_id = $1 and import_id = $2 order by contact_id limit $3
)
order by c.contact_id for update

-- name: take_changes
with taken as (
    delete from contacts.import_changes i
    using (
        select contact_id from contacts.import_changes
        where tenant_id = $1 and import_id = $2 order by contact_id limit $3
    ) d
    where i.tenant_id = $1 and i.import_id = $2 and i.contact_id = d.contact_id
    returning i.contact_id, i.before, i.after
), silenced as (
    delete from contacts.consent_log l using taken t
    where l.tenant_id = $1 and l.contact_id = t.contact_id and l.import_id = $2
)
select t.contact_id, t.before, t.after, to_jsonb(c) as now
from taken t left join contacts.contacts c on c.tenant_id = $1 and c.contact_id = t.contact_id
order by t.contact_id

-- name: put_back
update contacts.contacts c
set phone = r.phone, whatsapp = r.whatsapp, email = r.email, external_id = r.external_id, name = r.name, locale = r.locale,
    attributes = r.attributes, tags = r.tags, granted = r.granted, denied = r.denied, version = c.version + 1, updated_at = $3
from jsonb_to_recordset($2::text::jsonb) r (contact_id uuid, phone text, whatsapp text, email text, external_id text,
    name text, locale text, attributes jsonb, tags text[], granted text[], denied text[])
where c.tenant_id = $1 and c.contact_id = r.contact_id

-- name: keep_changed
insert into contacts.undo_kept (tenant_id, import_id, contact_id, fields, why)
select $1, $2, contact_id, fields, why
from jsonb_to_recordset($3::text::jsonb) r (contact_id uuid, fields text[], why text)
on conflict do nothing

-- name: count_kept
select count(*)::int from contacts.undo_kept where tenant_id = $1 and import_id = $2

-- name: page_kept
select contact_id, fields, why from contacts.undo_kept
where tenant_id = $1 and import_id = $2 and ($3::uuid is null or contact_id > $3)
order by contact_id limit $4

-- name: set_kept
update contacts.imports set undo_kept = $3 where tenant_id = $1 and import_id = $2
