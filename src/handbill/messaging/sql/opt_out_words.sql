-- A tenant's own opt-out and opt-in words.

-- name: read_opt_out_words
select languages, stop, start, without, version, updated_at from messaging.opt_out_words where tenant_id = $1;

-- name: lock_opt_out_words
select version from messaging.opt_out_words where tenant_id = $1 for update;

-- name: put_opt_out_words
insert into messaging.opt_out_words (tenant_id, languages, stop, start, without, updated_at) values ($1, $2, $3, $4, $5, $6)
on conflict (tenant_id) do update
set languages = excluded.languages, stop = excluded.stop, start = excluded.start, without = excluded.without,
    version = messaging.opt_out_words.version + 1, updated_at = excluded.updated_at
returning languages, stop, start, without, version, updated_at;

-- name: opt_out_words_of
-- no-tenant: one batch of webhooks is of several tenants; each row names its tenant
select tenant_id, languages, stop, start, without from messaging.opt_out_words where tenant_id = any ($1::int[]);
