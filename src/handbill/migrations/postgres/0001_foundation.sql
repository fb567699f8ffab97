-- The ground floor: two roles, the wall between tenants, and the tenants themselves.

-- Roles belong to the whole cluster, so another database may have made them already. They log in themselves; the
-- migration runner gives them their passwords.
do $$
begin
    -- Asked first, because CREATE ROLE checks the privilege before it sees that the role is there.
    if not exists (select from pg_roles where rolname = 'handbill_app') then
        begin
            create role handbill_app login nosuperuser nobypassrls nocreatedb nocreaterole;
        exception when duplicate_object or unique_violation then null;
        end;
    end if;
    if not exists (select from pg_roles where rolname = 'handbill_worker') then
        begin
            create role handbill_worker login nosuperuser bypassrls nocreatedb nocreaterole;
        exception when duplicate_object or unique_violation then null;
        end;
    end if;
exception when insufficient_privilege then
    raise exception 'the owner may not create the roles handbill_app and handbill_worker; nothing was changed'
        using hint = 'as an administrator: create role handbill_app login; create role handbill_worker login bypassrls;'
                     ' grant both to the owner; then migrate again';
end
$$;

-- One call per tenant table: nobody but the current tenant's own rows, whoever asks, save the roles that bypass walls.
create function handbill_wall(wall_table regclass) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp
as $$
declare
    room text;
begin
    select n.nspname into strict room
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.oid = wall_table;

    execute format('alter table %s enable row level security', wall_table);
    execute format('alter table %s force row level security', wall_table);
    execute format(
        'create policy wall on %s'
        ' using (tenant_id = nullif(current_setting(''handbill.tenant'', true), '''')::int)'
        ' with check (tenant_id = nullif(current_setting(''handbill.tenant'', true), '''')::int)',
        wall_table
    );
    execute format('grant usage on schema %I to handbill_app, handbill_worker', room);
    execute format('grant select, insert, update, delete on %s to handbill_app, handbill_worker', wall_table);
end
$$;

revoke execute on function handbill_wall(regclass) from public;

create schema tenants;

create table tenants.tenants (
    tenant_id int generated always as identity primary key,
    public_id uuid not null constraint uq_tenants_public_id unique,
    slug text not null constraint uq_tenants_slug unique check (slug ~ '^[a-z0-9][a-z0-9-]{0,62}$'),
    name text not null check (length(name) between 1 and 200),
    tier text not null default 'standard' check (tier in ('standard', 'enterprise')),
    time_zone text not null default 'UTC',
    status text not null default 'active' check (status in ('active', 'suspended')),
    version int not null default 1,
    created_at timestamptz not null,
    updated_at timestamptz not null
);
select handbill_wall('tenants.tenants');
-- Opening and closing a tenant is the operator's work, never the tenant's own.
revoke insert, delete on tenants.tenants from handbill_app;

-- What a tenant may change about itself. The JWT secret is sealed with the installation's key.
create table tenants.settings (
    tenant_id int primary key references tenants.tenants (tenant_id) on delete cascade,
    jwt jsonb not null default '{}',
    jwt_secret bytea,
    limits jsonb not null default '{}',
    privacy jsonb not null default '{}',
    version int not null default 1,
    updated_at timestamptz not null
);
select handbill_wall('tenants.settings');

-- Write keys are publishable and kept in clear for the tenant to copy; of a secret key only the hash remains.
create table tenants.api_keys (
    tenant_id int not null references tenants.tenants (tenant_id) on delete cascade,
    key_id uuid not null,
    kind text not null check (kind in ('write', 'secret')),
    name text not null check (length(name) between 1 and 200),
    key_hash bytea not null constraint uq_api_keys_hash unique,
    clear_key text,
    hint text not null,
    scopes text[] not null default '{}',
    replaces uuid,
    created_at timestamptz not null,
    expires_at timestamptz,
    revoked_at timestamptz,
    last_used_at timestamptz,
    primary key (tenant_id, key_id),
    constraint ck_api_keys_no_clear_secret check (kind = 'write' or clear_key is null)
);
select handbill_wall('tenants.api_keys');

-- A user belongs to one tenant; an address is known once in the whole installation, so that login needs no tenant.
create table tenants.users (
    tenant_id int not null references tenants.tenants (tenant_id) on delete cascade,
    user_id uuid not null,
    email text not null constraint uq_users_email unique check (email = lower(email)),
    name text not null default '',
    role text not null check (role in ('owner', 'operator', 'viewer')),
    password_hash text not null,
    version int not null default 1,
    created_at timestamptz not null,
    updated_at timestamptz not null,
    primary key (tenant_id, user_id)
);
select handbill_wall('tenants.users');

create table tenants.sessions (
    tenant_id int not null,
    session_id uuid not null,
    user_id uuid not null,
    token_hash bytea not null constraint uq_sessions_token unique,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    primary key (tenant_id, session_id),
    foreign key (tenant_id, user_id) references tenants.users (tenant_id, user_id) on delete cascade
);
create index ix_sessions_user on tenants.sessions (tenant_id, user_id);
create index ix_sessions_expiry on tenants.sessions (expires_at);
select handbill_wall('tenants.sessions');

create table tenants.audit_log (
    tenant_id int not null references tenants.tenants (tenant_id) on delete cascade,
    audit_id uuid not null,
    at timestamptz not null,
    actor text not null,
    action text not null,
    object text not null,
    before jsonb,
    after jsonb,
    request_id text,
    primary key (tenant_id, audit_id)
);
select handbill_wall('tenants.audit_log');
-- History is added to and read, never rewritten.
revoke update, delete on tenants.audit_log from handbill_app;

-- The subject is kept only until its erasure is done: afterwards its digest is enough to answer for it.
create table tenants.erasures (
    tenant_id int not null references tenants.tenants (tenant_id) on delete cascade,
    erasure_id uuid not null,
    subject text,
    subject_hash bytea not null,
    status text not null check (status in ('running', 'done', 'failed')),
    report jsonb not null default '{}',
    requested_by text not null,
    created_at timestamptz not null,
    finished_at timestamptz,
    primary key (tenant_id, erasure_id)
);
select handbill_wall('tenants.erasures');

-- A request that was answered once is answered the same way again. The reply is sealed with the caller's own
-- credential, for it may hold a key that nobody shall read a second time. No status yet = still in flight.
create table tenants.idempotency_keys (
    tenant_id int not null references tenants.tenants (tenant_id) on delete cascade,
    key text not null check (length(key) between 1 and 200),
    request_hash bytea not null,
    status int,
    content_type text,
    reply bytea,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    primary key (tenant_id, key)
);
create index ix_idempotency_keys_expiry on tenants.idempotency_keys (expires_at);
select handbill_wall('tenants.idempotency_keys');

-- Look-ups before a tenant is known. They see over the wall and therefore say as little as possible: tenant and id.
create function tenants.find_key(wanted bytea, out tenant_id int, out key_id uuid) returns setof record
    language sql stable security definer rows 1
    set search_path = pg_catalog, pg_temp
as $$
    select k.tenant_id, k.key_id from tenants.api_keys k where k.key_hash = wanted
$$;

create function tenants.find_session(wanted bytea, out tenant_id int, out session_id uuid) returns setof record
    language sql stable security definer rows 1
    set search_path = pg_catalog, pg_temp
as $$
    select s.tenant_id, s.session_id from tenants.sessions s where s.token_hash = wanted
$$;

create function tenants.find_user(wanted text, out tenant_id int, out user_id uuid) returns setof record
    language sql stable security definer rows 1
    set search_path = pg_catalog, pg_temp
as $$
    select u.tenant_id, u.user_id from tenants.users u where u.email = lower(wanted)
$$;

-- The walls are forced, so an owner that is no superuser would see nothing through its own functions: they belong to
-- the role that bypasses walls. It may own them only where it may create, and only for that moment.
do $$
begin
    begin
        execute format('grant handbill_worker to %I', current_user);
    exception when insufficient_privilege or invalid_grant_operation then
        -- A superuser needs no membership, and a member needs no second one; the next statement tells if it mattered.
        raise notice 'handbill_worker was not granted to %: %', current_user, sqlerrm;
    end;
    grant create on schema tenants to handbill_worker;
    alter function tenants.find_key(bytea) owner to handbill_worker;
    alter function tenants.find_session(bytea) owner to handbill_worker;
    alter function tenants.find_user(text) owner to handbill_worker;
    revoke create on schema tenants from handbill_worker;
end
$$;

revoke execute on function tenants.find_key(bytea), tenants.find_session(bytea), tenants.find_user(text) from public;
grant execute on function tenants.find_key(bytea), tenants.find_session(bytea), tenants.find_user(text) to handbill_app;
