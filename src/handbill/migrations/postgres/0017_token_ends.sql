-- When a provider's token ends, and whether the provider still takes it. The tables are small: one row for each account.
alter table messaging.connections
    add column token_state text not null default 'valid' check (token_state in ('valid', 'dead')),
    add column token_note text,
    add column token_ends_at timestamptz,
    add column token_checked_at timestamptz;

alter table adstats.fb_connections
    add column token_ends_at timestamptz,
    add column token_checked_at timestamptz;
