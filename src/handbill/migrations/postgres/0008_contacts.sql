-- Contacts: who may be written to, what they agreed to, who must be left alone, and the files they came in.
create schema contacts;

-- Tags, channels: sorted, each once, so that equal sets are equal arrays.
create function contacts.add_tags(one text[], other text[]) returns text[]
    language sql immutable parallel safe
    return case
        when other = '{}' then one
        when one = '{}' and array_length(other, 1) = 1 then other
        else (
            select coalesce(array_agg(t order by t), '{}')
            from (select distinct u collate "C" as t from unnest(one || other) u) each_once
        )
    end;

create function contacts.without(one text[], other text[]) returns text[]
    language sql immutable parallel safe
    return case
        when one = '{}' or other = '{}' then one
        else (select coalesce(array_agg(t order by t collate "C"), '{}') from unnest(one) t where t <> all (other))
    end;

-- What one field of several rows of one contact becomes, the rows in file order: as if they were applied one by one.
create function contacts.pick(policy text, vals text[]) returns text
    language sql immutable parallel safe
    return (
        select v from unnest(vals) with ordinality u (v, n)
        where policy in ('skip', 'replace') or v is not null
        order by case when policy in ('update', 'replace') then -n else n end limit 1
    );

-- A contact's own fields, as a merge weighs the old against the new.
create type contacts.fields as (
    phone text, whatsapp text, email text, external_id text, name text, locale text, attributes jsonb
);

create aggregate contacts.overlay(jsonb) (sfunc = jsonb_concat, stype = jsonb, initcond = '{}');
create aggregate contacts.all_tags(text[]) (sfunc = contacts.add_tags, stype = text[], initcond = '{}');

-- No address is unique: two people may share a telephone. An import tells contacts apart by the key it was given.
-- No foreign key to the tenant where rows come by the million: the wall and the import's own row stand for it.
create table contacts.contacts (
    tenant_id   int not null,
    contact_id  uuid not null,
    phone       text collate "C",                        -- E.164
    whatsapp    text collate "C",                        -- the same as WhatsApp counts it
    email       text collate "C",                        -- lower case
    external_id text collate "C",                        -- the tenant's own; also the distinct id of the person (Know)
    name        text,
    locale      text,
    attributes  jsonb not null default '{}',
    tags        text[] not null default '{}',            -- sorted
    granted     text[] not null default '{}',            -- channels the contact agreed to
    denied      text[] not null default '{}',            -- channels the contact refused; never in both
    version     int not null default 1,
    created_at  timestamptz not null,
    updated_at  timestamptz not null,
    primary key (tenant_id, contact_id),
    check ((phone is null) = (whatsapp is null))
) with (fillfactor = 90);
create index ix_contacts_phone on contacts.contacts (tenant_id, phone) where phone is not null;
create index ix_contacts_email on contacts.contacts (tenant_id, email) where email is not null;
create index ix_contacts_denied on contacts.contacts (tenant_id, whatsapp) where denied <> '{}';
create index ix_contacts_external on contacts.contacts (tenant_id, external_id) where external_id is not null;

create table contacts.consent_log (
    tenant_id  int not null,
    contact_id uuid not null,
    consent_id uuid not null,
    at         timestamptz not null,
    channel    text not null check (channel in ('whatsapp', 'sms', 'email')),
    granted    boolean not null,
    source     text not null,
    proof      text,
    actor      text not null,
    import_id  uuid,
    primary key (tenant_id, contact_id, consent_id)
);

create table contacts.suppressions (
    tenant_id  int not null references tenants.tenants (tenant_id),
    channel    text not null check (channel in ('whatsapp', 'sms', 'email')),
    address    text collate "C" not null,                -- as in contacts.whatsapp, .phone, .email
    reason     text not null check (reason in ('opt_out', 'bounce', 'complaint', 'invalid', 'manual')),
    until      timestamptz,                              -- null: for ever
    note       text,
    created_at timestamptz not null,
    primary key (tenant_id, channel, address)
);

-- ------------------------------------------------------------------------------------------------ imports
create table contacts.imports (
    tenant_id   int not null references tenants.tenants (tenant_id),
    import_id   uuid not null,
    file_name   text not null,
    file        text not null,                           -- the name of the stored file in the uploads' directory
    canonical   text,                                    -- and of the one that is parsed, once it is known
    size        bigint not null,
    sha256      text not null,
    status      text not null check (status in ('ready', 'queued', 'splitting', 'parsing', 'parsed', 'merging', 'done',
                                                'failed', 'cancelled', 'undoing', 'undone')),
    paused      boolean not null default false,
    plan        jsonb not null,
    counts      jsonb not null default '{}',
    rows        int not null default 0,
    slices      int not null default 1,
    fixes       uuid,                                    -- the import whose rejected rows these are
    error       text,
    undo_kept   int not null default 0,
    version     int not null default 1,
    created_by  text not null,
    created_at  timestamptz not null,
    started_at  timestamptz,
    finished_at timestamptz,
    file_gone   boolean not null default false,
    primary key (tenant_id, import_id)
);
create index ix_imports_open on contacts.imports (tenant_id, status)
    where status in ('queued', 'splitting', 'parsing', 'parsed', 'merging', 'undoing');
create index ix_imports_files on contacts.imports (created_at) where not file_gone;

-- Chunks (byte ranges of the file) and slices (of the keys' hashes): what can be done, and repeated, alone.
create table contacts.import_parts (
    tenant_id int not null references tenants.tenants (tenant_id),
    import_id uuid not null,
    phase     text not null check (phase in ('chunk', 'slice')),
    no        int not null,
    start_at  bigint not null default 0,
    end_at    bigint not null default 0,
    first_row int not null default 0,
    rows      int not null default 0,
    done      boolean not null default false,
    counts    jsonb not null default '{}',
    primary key (tenant_id, import_id, phase, no)
);

-- Rows on their way: read, checked, not yet merged. The merge takes them out.
create table contacts.import_rows (
    tenant_id   int not null,
    import_id   uuid not null,
    slice       int not null,
    row_no      int not null,
    contact_id  uuid not null,
    phone       text collate "C",
    whatsapp    text collate "C",
    email       text collate "C",
    external_id text collate "C",
    name        text,
    locale      text,
    attributes  jsonb not null,
    tags        text[] not null,
    consent     boolean,
    primary key (tenant_id, import_id, slice, row_no)
);

create table contacts.import_findings (
    tenant_id int not null,
    import_id uuid not null,
    row_no    int not null,
    severity  text not null check (severity in ('reject', 'note')),
    code      text not null,
    field     text,
    value     text not null,
    original  text not null,
    finding   int not null generated always as identity,
    primary key (tenant_id, import_id, row_no, finding)
);

-- What an import changed, as it was before and as it left it: for the way back. Created contacts need none.
create table contacts.import_changes (
    tenant_id  int not null,
    import_id  uuid not null,
    contact_id uuid not null,
    before     jsonb not null,
    after      jsonb not null,
    primary key (tenant_id, import_id, contact_id)
);

-- Contacts that an undo did not put back whole, because somebody had changed them since.
create table contacts.undo_kept (
    tenant_id  int not null,
    import_id  uuid not null,
    contact_id uuid not null,
    fields     text[] not null,
    why        text not null,
    primary key (tenant_id, import_id, contact_id)
);

select handbill_wall(t) from unnest(array[
    'contacts.contacts', 'contacts.consent_log', 'contacts.suppressions', 'contacts.imports', 'contacts.import_parts',
    'contacts.import_rows', 'contacts.import_findings', 'contacts.import_changes', 'contacts.undo_kept'
]::regclass[]) t;
