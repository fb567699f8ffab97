-- name: insert_connection
insert into messaging.connections (
    tenant_id, connection_id, name, channel, waba_id, portfolio, sealed, created_at, updated_at, token_ends_at, token_checked_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $8, $9, $10);

-- name: change_connection
update messaging.connections set name = $3, portfolio = $4, sealed = $5, updated_at = $6, version = version + 1, token_ends_at = $7,
    token_state = case when $8 then 'valid' else token_state end, token_note = case when $8 then null else token_note end,
    token_checked_at = case when $8 then $6 else token_checked_at end
where tenant_id = $1 and connection_id = $2
returning version;

-- name: lock_connection
select connection_id, name, channel, waba_id, portfolio, version, created_at, sealed, token_ends_at
from messaging.connections where tenant_id = $1 and connection_id = $2 for update;

-- name: every_connection
-- no-tenant: the clock syncs every tenant's templates; each row names its tenant
select tenant_id, connection_id from messaging.connections order by tenant_id, connection_id;

-- name: find_connection
-- no-tenant: the tenant is what this look-up finds; the function says nothing else
select messaging.find_connection($1);

-- name: read_connections
select c.connection_id, c.name, c.channel, c.waba_id, c.portfolio, c.version, c.created_at,
       c.token_state, c.token_note, c.token_ends_at, c.token_checked_at
from messaging.connections c
where c.tenant_id = $1 and ($2::uuid is null or c.connection_id > $2) and ($4::uuid is null or c.connection_id = $4)
order by c.connection_id limit $3;

-- name: read_numbers
select number_id, connection_id, display, quality, per_second, tier, paused_until, pause_reason
from messaging.numbers where tenant_id = $1 and connection_id = any ($2::uuid[]) order by number_id;

-- A token that was changed a moment ago is not judged by an answer to the one before it ($6: changed before then).
-- name: set_token_state
update messaging.connections c
set token_state = $3, token_note = $4, token_ends_at = coalesce($5, c.token_ends_at), token_checked_at = $7
from (select token_state from messaging.connections where tenant_id = $1 and connection_id = $2 for update) as before
where c.tenant_id = $1 and c.connection_id = $2 and c.updated_at < $6
returning before.token_state;

-- name: connection_of_number
select connection_id from messaging.numbers where tenant_id = $1 and number_id = $2;

-- name: summarise_tokens
-- no-tenant: one figure for the metrics page, of all tenants together
select extract(epoch from min(token_ends_at) filter (where token_state = 'valid') - $1)::float8 as seconds_left,
       count(*) filter (where token_state = 'valid' and token_ends_at < $2) as ending,
       count(*) filter (where token_state = 'dead') as dead
from messaging.connections;

-- name: first_token_ends
-- no-tenant: for the log, which names the tenant of each
select tenant_id, connection_id::text as connection_id, token_ends_at as ends_at from messaging.connections
where token_state = 'valid' and token_ends_at < $1 order by token_ends_at limit $2;

-- name: read_sealed
select sealed from messaging.connections where tenant_id = $1 and connection_id = $2;

-- name: delete_connection
delete from messaging.connections c where c.tenant_id = $1 and c.connection_id = $2
    and not exists (select from messaging.campaigns x where x.tenant_id = $1 and x.connection_id = $2)
    and not exists (select from messaging.single_messages x where x.tenant_id = $1 and x.connection_id = $2)
returning c.connection_id;

-- name: put_number
insert into messaging.numbers (tenant_id, number_id, connection_id, display, quality, per_second, tier, updated_at)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (tenant_id, number_id) do update
set display = excluded.display, quality = excluded.quality, per_second = excluded.per_second, tier = excluded.tier,
    updated_at = excluded.updated_at
where messaging.numbers.connection_id = excluded.connection_id
returning number_id;

-- name: resume_number
update messaging.numbers set paused_until = null, pause_reason = null, throttled = 0, updated_at = $3
where tenant_id = $1 and number_id = $2
returning number_id;

-- A number that an unfinished campaign writes from stays.
-- name: delete_number
delete from messaging.numbers n where n.tenant_id = $1 and n.connection_id = $2 and n.number_id = $3
    and not exists (
        select from messaging.campaigns c
        where c.tenant_id = $1 and n.number_id = any (c.numbers) and c.state in ('draft', 'scheduled', 'queued', 'running', 'paused')
    )
    and not exists (
        select from messaging.messages m
        where m.tenant_id = $1 and m.campaign_id is null and m.number_id = n.number_id and m.state = 'pending'
            and (m.attempts > 0) = any (array[false, true])
    )
returning n.number_id;

-- An older word about a template does not overwrite a newer one.
-- name: put_templates
insert into messaging.templates (tenant_id, connection_id, name, language, template_id, category, state, components, named, changed_at)
select $1, $2, t.name, t.language, t.template_id, t.category, t.state, t.components, t.named, $3
from unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::jsonb[], $10::boolean[])
    as t (name, language, template_id, category, state, components, named)
on conflict (tenant_id, connection_id, name, language) do update
set template_id = excluded.template_id, category = excluded.category, state = excluded.state, components = excluded.components,
    named = excluded.named, reason = '', changed_at = excluded.changed_at
where messaging.templates.changed_at <= excluded.changed_at;

-- name: drop_templates
delete from messaging.templates where tenant_id = $1 and connection_id = $2 and changed_at < $3;

-- The latest word counts; of two at once the worse one ($9: the states in which nothing is wrong).
-- name: template_said
update messaging.templates t set state = $5, reason = $6, changed_at = $7
from messaging.connections c
where t.tenant_id = $1 and c.tenant_id = $1 and c.connection_id = t.connection_id and c.waba_id = $2 and t.name = $3
    and ($4 = '' or t.language = $4)
    and (t.changed_at < $7 or (t.changed_at = $7 and ($8::boolean, $5::text) > (t.state <> all ($9::text[]), t.state)))
returning t.connection_id, t.name, t.language, t.state;

-- name: list_templates
select connection_id, name, language, template_id, category, state, components::text as components, named, reason, changed_at
from messaging.templates
where tenant_id = $1 and ($2::uuid is null or connection_id = $2) and (name, language, connection_id) > ($3, $4, $5)
    and ($7::text is null or state = $7)
order by name, language, connection_id limit $6;

-- name: template_states
select name, language, state from messaging.templates where tenant_id = $1 and connection_id = $2;

-- name: read_template
select name, language, template_id, category, state, components::text as components, named
from messaging.templates where tenant_id = $1 and connection_id = $2 and name = $3 and language = $4;

-- Running campaigns that use a template which stopped being good.
-- name: campaigns_of_template
select campaign_id from messaging.campaigns
where tenant_id = $1 and connection_id = $2 and state in ('queued', 'running', 'scheduled')
    and content ->> 'name' = $3 and content ->> 'language' = $4
order by campaign_id;

-- name: read_switch
select stopped, reason, per_second, updated_at from messaging.switches where tenant_id = $1;

-- name: set_switch
insert into messaging.switches (tenant_id, stopped, reason, updated_at) values ($1, $2, $3, $4)
on conflict (tenant_id) do update set stopped = excluded.stopped, reason = excluded.reason, updated_at = excluded.updated_at
returning stopped, reason, per_second, updated_at;

-- name: set_pace
insert into messaging.switches (tenant_id, per_second, updated_at) values ($1, $2, $3)
on conflict (tenant_id) do update set per_second = excluded.per_second, updated_at = excluded.updated_at
returning stopped, reason, per_second, updated_at;
